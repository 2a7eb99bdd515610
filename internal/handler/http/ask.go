package http

import (
	"context"
	"net/http"
)

// Ask asks whether the target answers, without a message: a request HEAD with the credentials. Any answer is one; its
// status is returned. The error of a call that came to nothing names the service and no secret.
func Ask(ctx context.Context, o Options) (status int, err error) {
	c, err := newCaller(o)
	if err != nil {
		return 0, err
	}
	login := c.access.now()
	defer login.kept.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, o.Target, nil)
	if err != nil {
		return 0, c.errorf("the target cannot be requested")
	}
	if login.token != "" {
		req.Header.Set("Authorization", "Bearer "+login.token)
	}
	req.Header.Set("User-Agent", "rollbackd doctor")
	resp, err := login.kept.Do(req)
	if err != nil {
		return 0, c.noAnswer(withoutURL(err), false)
	}
	defer resp.Body.Close()
	return resp.StatusCode, nil
}
