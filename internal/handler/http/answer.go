package http

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/rollbackd/rollbackd/consumer"
)

const (
	// keptAnswer is how much of an answer that refuses stands beside the message.
	keptAnswer = 1 << 10
	// readAnswer is how much of an answer is read, so that the connection can be used again, for a second at most: an
	// answer without an end has said all with its status.
	readAnswer = 64 << 10
	// mostText is how long an error is: it goes into logs, rows, letters and to /readyz.
	mostText = keptAnswer + 200
)

// meaning says in the engine's words what an answer means. The service's own reason phrase is not repeated: it may be
// of any length.
func (c *caller) meaning(resp *http.Response, said string) error {
	status := strings.TrimSpace(strconv.Itoa(resp.StatusCode) + " " + http.StatusText(resp.StatusCode))
	switch code := resp.StatusCode; {
	case code >= 200 && code <= 299:
		return nil
	case code < 200 || code >= 300 && code <= 399:
		return consumer.Misconfigured(c.errorf("it answered %s, and redirects are not followed: change the target",
			status))
	}
	if said != "" {
		status += ": " + said
	}
	err := c.errorf("it answered %s", status)
	switch resp.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired:
		return consumer.Misconfigured(err)
	case http.StatusTooManyRequests, http.StatusConflict: // the second: a call with this key runs still
		return consumer.Later(err, retryAfter(resp.Header.Get("Retry-After"), c.now()))
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return consumer.Unavailable(err)
	case http.StatusRequestTimeout, http.StatusLocked, http.StatusTooEarly:
		return err
	}
	if resp.StatusCode < 500 {
		return consumer.Permanent(err)
	}
	return err
}

// noAnswer says what a call means that nothing came back from.
func (c *caller) noAnswer(err error, sent bool) error {
	if _, wrong := errors.AsType[*tls.CertificateVerificationError](err); wrong {
		return consumer.Misconfigured(c.errorf("its certificate: %v", err))
	}
	if proxy, ok := errors.AsType[*proxyError](err); ok {
		return consumer.Misconfigured(c.errorf("%v", proxy))
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "remote error" { // what a TLS alert of the other end is
		return consumer.Misconfigured(c.errorf("it refuses the connection, perhaps our certificate: %v", err))
	}
	late := errors.Is(err, context.DeadlineExceeded)
	switch {
	case sent && late:
		return consumer.Unanswered(c.errorf("perhaps applied: no answer within %v", c.o.Timeout))
	case sent:
		return consumer.Unanswered(c.errorf("perhaps applied: the call was sent, and instead of an answer came: %v", err))
	case late:
		return consumer.Unavailable(c.errorf("no connection within %v", c.o.Timeout))
	}
	return consumer.Unavailable(c.errorf("no connection: %v", err))
}

// body is the beginning of an answer as one line of text; the rest is read so that the connection can be used again.
// When that takes too long stop ends it, or Close, where it is a 101 and no context reaches the connection. The time
// that ctx leaves for the call is never used up: a call whose time is over counts as one without an answer.
func body(ctx context.Context, resp *http.Response, stop func()) string {
	bound := time.Second
	if ends, ok := ctx.Deadline(); ok {
		bound = min(bound, time.Until(ends)/2)
	}
	defer time.AfterFunc(bound, func() { stop(); _ = resp.Body.Close() }).Stop()
	kept, _ := io.ReadAll(io.LimitReader(resp.Body, keptAnswer)) // its status has said all
	_, _ = io.CopyN(io.Discard, resp.Body, readAnswer)
	return oneLine(string(kept))
}

// errorf names the service. Its text is short and does nothing to a terminal, whatever the service has sent: the client
// library quotes what it cannot read.
func (c *caller) errorf(format string, args ...any) error {
	text := fmt.Sprintf("%s: "+format, append([]any{c.host}, args...)...)
	if len(text) > mostText {
		text = text[:mostText] + "…"
	}
	return errors.New(oneLine(text))
}

// oneLine is text that does nothing to a terminal.
func oneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) || !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	return strings.Join(strings.Fields(s), " ")
}

// retryAfter is the header's time, in seconds or as a date, and a day when it is longer. It is 0, no wish, when the
// time is over or nobody can read it.
func retryAfter(header string, now time.Time) time.Duration {
	const most = 24 * time.Hour
	seconds, err := strconv.ParseUint(header, 10, 64)
	if err == nil || errors.Is(err, strconv.ErrRange) {
		return time.Duration(min(seconds, uint64(most/time.Second))) * time.Second
	}
	if at, err := http.ParseTime(header); err == nil {
		return min(max(0, at.Sub(now)), most)
	}
	return 0
}
