package server

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
	"strings"
	"time"
)

// Why a daemon that was asked has not said what it should.
var (
	ErrNobody   = errors.New("nobody answers")
	ErrSilent   = errors.New("somebody takes the connection and gives no answer")
	ErrStranger = errors.New("what answers is not a daemon of rollbackd")
	ErrStuck    = errors.New("the daemon is stuck")
	ErrNotReady = errors.New("the daemon takes no deliveries")
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
	return ask(ctx, addr, token, askTimeout)
}

func ask(ctx context.Context, addr, token string, limit time.Duration) (Answer, error) {
	_, body, from, err := get(ctx, addr, "/readyz", token, limit)
	said := Answer{From: from}
	if err != nil {
		return said, err
	}
	err = json.Unmarshal(body, &said.Readiness)
	if err == nil && (said.Waiting == nil || said.Degraded == nil) {
		err = errors.New("its answer lacks what a daemon says")
	}
	if err != nil {
		return Answer{}, fmt.Errorf("%w: %w", ErrStranger, err)
	}
	return said, nil
}

// Alive asks whether the daemon that listens on addr is alive, within limit. The error is ErrStuck with the daemon's
// reason, or as those of [Ask].
func Alive(ctx context.Context, addr string, limit time.Duration) error {
	status, body, _, err := get(ctx, addr, "/healthz", "", limit)
	text := strings.TrimSpace(string(body))
	switch {
	case err != nil:
		return err
	case status == http.StatusServiceUnavailable:
		return fmt.Errorf("%w: %s", ErrStuck, text)
	case text != aliveText:
		return fmt.Errorf("%w: it answers with HTTP %d", ErrStranger, status)
	}
	return nil
}

// Ready asks whether the daemon that listens on addr takes deliveries, within limit. The error is ErrNotReady with what
// the daemon waits for, without reasons where tokens are set up, or as those of [Ask].
func Ready(ctx context.Context, addr string, limit time.Duration) error {
	said, err := ask(ctx, addr, "", limit)
	switch {
	case err != nil || said.Ready:
		return err
	case said.Draining:
		return fmt.Errorf("%w: it drains", ErrNotReady)
	}
	return fmt.Errorf("%w: it waits for %s", ErrNotReady, strings.Join(said.Waiting, "; "))
}

// get asks whoever listens on addr for a page, in at most the time given. What answers with another status than a
// daemon, or at more length, is a stranger.
func get(ctx context.Context, addr, path, token string, limit time.Duration) (
	status int, body []byte, from string, err error,
) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer in %v", limit))
	defer cancel()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return 0, nil, "", fmt.Errorf("ask %s: %w", addr, err)
	}
	if ip, _ := netip.ParseAddr(host); host == "" || ip.IsUnspecified() { // to dial it reaches this machine
		host = "localhost"
	}
	dialer := net.Dialer{Timeout: dialTimeout}
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
		return 0, nil, "", fmt.Errorf("ask %s: %w", addr, err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := client.Do(req)
	if err == nil {
		defer func() { _ = resp.Body.Close() }() // it was only read
		status = resp.StatusCode
		body, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes+1))
	}
	switch {
	case errors.Is(err, ErrNobody):
		return 0, nil, "", err
	case err != nil && ctx.Err() != nil:
		return 0, nil, "", fmt.Errorf("%w: %w", ErrSilent, context.Cause(ctx))
	case err != nil:
		return 0, nil, "", fmt.Errorf("%w: %w", ErrStranger, err)
	case status != http.StatusOK && status != http.StatusServiceUnavailable:
		return 0, nil, "", fmt.Errorf("%w: it answers with HTTP %d", ErrStranger, status)
	case len(body) > maxAnswerBytes:
		return 0, nil, "", fmt.Errorf("%w: it answers with over %d bytes", ErrStranger, maxAnswerBytes)
	}
	return status, body, from, nil
}
