package http

import (
	"context"
	"crypto/tls"
	"errors"
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
	// readAnswer is how much of an answer is read, so that the connection can be used again.
	readAnswer = 64 << 10
)

// meaning says in the engine's words what an answer means.
func (c *caller) meaning(resp *http.Response) error {
	said := body(resp)
	err := c.errorf("it answered %s", strings.TrimSpace(resp.Status))
	if said != "" {
		err = c.errorf("it answered %s: %s", strings.TrimSpace(resp.Status), said)
	}
	switch code := resp.StatusCode; {
	case code >= 200 && code <= 299:
		return nil
	case code < 200 || code >= 300 && code <= 399:
		return consumer.Misconfigured(c.errorf("it answered %s, and redirects are not followed: change the target",
			strings.TrimSpace(resp.Status)))
	}
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
		return consumer.Misconfigured(c.errorf("its certificate: %w", err))
	}
	if proxy, ok := errors.AsType[*proxyError](err); ok {
		return consumer.Misconfigured(c.errorf("%w", proxy))
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "remote error" { // what a TLS alert of the other end is
		return consumer.Misconfigured(c.errorf("it refuses the connection, perhaps our certificate: %w", err))
	}
	late := errors.Is(err, context.DeadlineExceeded)
	switch {
	case sent && late:
		return consumer.Unanswered(c.errorf("perhaps applied: no answer within %v", c.o.Timeout))
	case sent:
		return consumer.Unanswered(c.errorf("perhaps applied: the call was sent, and instead of an answer came: %w", err))
	case late:
		return consumer.Unavailable(c.errorf("no connection within %v", c.o.Timeout))
	}
	return consumer.Unavailable(c.errorf("no connection: %w", err))
}

// body is the beginning of an answer as one line of text; the rest is read so that the connection can be used again.
func body(resp *http.Response) string {
	kept, _ := io.ReadAll(io.LimitReader(resp.Body, keptAnswer)) // its status has said all
	_, _ = io.CopyN(io.Discard, resp.Body, readAnswer)
	return oneLine(kept)
}

// oneLine is text that does nothing to a terminal.
func oneLine(b []byte) string {
	s := strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) || !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(string(b), "\uFFFD"))
	return strings.Join(strings.Fields(s), " ")
}

// retryAfter is the header's time, in seconds or as a date; 0 when it has none. No wait is longer than a day.
func retryAfter(header string, now time.Time) time.Duration {
	const most = 24 * time.Hour
	if seconds, err := strconv.ParseUint(header, 10, 32); err == nil {
		return min(time.Duration(seconds)*time.Second, most)
	}
	if at, err := http.ParseTime(header); err == nil {
		return min(max(0, at.Sub(now)), most)
	}
	return 0
}
