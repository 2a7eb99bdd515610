package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"time"
)

// Why [Ask] has no answer of a daemon.
var (
	ErrNobody   = errors.New("nobody answers")
	ErrSilent   = errors.New("somebody takes the connection and gives no answer")
	ErrStranger = errors.New("what answers is not a daemon of rollbackd")
)

const (
	// dialTimeout bounds one try to connect: the daemon is on this machine, or near.
	dialTimeout = 2 * time.Second
	// askTimeout bounds a question as a whole. A daemon answers from memory.
	askTimeout = 5 * time.Second
	// maxAnswerBytes bounds an answer: a daemon's has a line for each queue.
	maxAnswerBytes = 64 << 10
)

// Answer is what a daemon said, and the address at which it did.
type Answer struct {
	Readiness

	From string
}

// Ask asks the daemon that listens on addr, an address as [Listen] takes it, for its readiness. It goes through no
// proxy and follows no redirect. The error is ErrNobody, ErrSilent or ErrStranger, or why addr cannot be asked. Reasons
// are told to who may look: by the token, if there is one, or from the same machine where none is set up.
func Ask(ctx context.Context, addr, token string) (Answer, error) {
	p, err := get(ctx, addr, "/readyz", token, askTimeout)
	if err != nil {
		return Answer{}, err
	}
	said, err := understand(p)
	return Answer{said, p.from}, err
}

// page is what somebody answered.
type page struct {
	status int
	body   []byte // at most one byte more than maxAnswerBytes
	from   string // the address that answered
}

// get asks whoever listens on addr for a page, in at most the time given.
func get(ctx context.Context, addr, path, token string, limit time.Duration) (page, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer in %v", limit))
	defer cancel()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return page{}, fmt.Errorf("ask %s: %w", addr, err)
	}
	if ip, _ := netip.ParseAddr(host); host == "" || ip.IsUnspecified() { // to dial it reaches this machine
		host = "localhost"
	}
	dialer, from := net.Dialer{Timeout: dialTimeout}, ""
	client := &http.Client{
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				conn, err := dialer.DialContext(ctx, network, addr)
				if err != nil {
					return nil, fmt.Errorf("%w: %w", ErrNobody, err)
				}
				from = conn.RemoteAddr().String()
				return conn, nil
			},
			DisableKeepAlives: true, MaxResponseHeaderBytes: 16 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	where := url.URL{Scheme: "http", Host: net.JoinHostPort(host, port), Path: path}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, where.String(), http.NoBody)
	if err != nil {
		return page{}, fmt.Errorf("ask %s: %w", addr, err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := client.Do(req)
	if err != nil {
		return page{}, unanswered(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }() // it was only read
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes+1))
	if err != nil {
		return page{}, unanswered(ctx, err)
	}
	return page{resp.StatusCode, body, from}, nil
}

// unanswered says which of the errors it is that nothing whole came.
func unanswered(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, ErrNobody):
		return err
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", ErrSilent, context.Cause(ctx))
	}
	return fmt.Errorf("%w: %w", ErrStranger, err)
}

// understand reads an answer. What has not all that a daemon says is somebody else's.
func understand(p page) (said Readiness, err error) {
	switch {
	case p.status != http.StatusOK && p.status != http.StatusServiceUnavailable:
		return said, fmt.Errorf("%w: it answers with HTTP %d", ErrStranger, p.status)
	case len(p.body) > maxAnswerBytes:
		return said, fmt.Errorf("%w: it answers with over %d bytes", ErrStranger, maxAnswerBytes)
	}
	var there map[string]any
	if err := errors.Join(json.Unmarshal(p.body, &there), json.Unmarshal(p.body, &said)); err != nil {
		return Readiness{}, fmt.Errorf("%w: %w", ErrStranger, err)
	}
	for _, name := range []string{"ready", "draining", "waiting", "degraded", "group", "queue"} {
		if there[name] == nil {
			return Readiness{}, fmt.Errorf("%w: its answer lacks what a daemon of this version says", ErrStranger)
		}
	}
	return said, nil
}
