package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// What is wrong with a daemon that answers a probe.
var (
	ErrStuck    = errors.New("the daemon is stuck")
	ErrNotReady = errors.New("the daemon takes no deliveries")
)

// Alive asks whether the daemon that listens on addr, an address as [Listen] takes it, is alive, within limit. The
// error is nil, ErrStuck with the daemon's reason, ErrNobody, ErrSilent or ErrStranger, or why addr cannot be asked.
func Alive(ctx context.Context, addr string, limit time.Duration) error {
	p, err := get(ctx, addr, "/healthz", "", limit)
	if err != nil {
		return err
	}
	text := strings.TrimSpace(string(p.body))
	switch {
	case p.status == http.StatusOK && text == aliveText:
		return nil
	case p.status == http.StatusServiceUnavailable:
		return fmt.Errorf("%w: %s", ErrStuck, text)
	}
	return fmt.Errorf("%w: it answers with HTTP %d", ErrStranger, p.status)
}

// Ready asks whether the daemon that listens on addr takes deliveries, within limit. The error is nil, ErrNotReady with
// what the daemon waits for, without reasons where tokens are set up, or as those of [Alive].
func Ready(ctx context.Context, addr string, limit time.Duration) error {
	p, err := get(ctx, addr, "/readyz", "", limit)
	if err != nil {
		return err
	}
	said, err := understand(p)
	switch {
	case err != nil:
		return err
	case said.Ready:
		return nil
	case said.Draining:
		return fmt.Errorf("%w: it drains", ErrNotReady)
	}
	return fmt.Errorf("%w: it waits for %s", ErrNotReady, strings.Join(said.Waiting, "; "))
}
