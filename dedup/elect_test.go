package dedup

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// candidate is a process that stands for election, with a pool of its own.
type candidate struct {
	w     *world
	on    chan struct{} // gets a value when it is elected
	ended chan error    // gets the cause when its leadership ends
	stop  context.CancelFunc
	gone  chan struct{} // closed when Lead has returned
}

func stand(t *testing.T, dsn, group string) *candidate {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	db := openWith(t, dsn, OpenOptions{DialTimeout: time.Second, ReadTimeout: 3 * time.Second})
	c := &candidate{
		w: worldOf(t, dsn, db), on: make(chan struct{}, 10), ended: make(chan error, 10), stop: stop,
		gone: make(chan struct{}),
	}
	go func() {
		defer close(c.gone)
		c.w.log.Campaign(ctx, group, slog.New(slog.DiscardHandler), func(ctx context.Context) {
			c.on <- struct{}{}
			<-ctx.Done()
			c.ended <- context.Cause(ctx)
		})
	}()
	t.Cleanup(func() {
		stop()
		<-c.gone
	})
	return c
}

func receive[T any](t *testing.T, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(30 * time.Second):
		t.Fatalf("still not: %s", what)
	}
	return v
}

func (c *candidate) leader() int64 {
	c.w.t.Helper()
	id, err := c.w.log.Leader(c.w.t.Context(), "g")
	wantError(c.w.t, "Leader", err, nil)
	return id
}

func (c *candidate) wantIdle(t *testing.T) {
	t.Helper()
	select {
	case <-c.on:
		t.Error("two are elected")
	default:
	}
}

func TestOneIsElectedAndTheNextTakesOverWhenItStops(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := stand(t, w.dsn, "g")
	receive(t, "the first is elected", first.on)
	second := stand(t, w.dsn, "g")
	// the second has asked at least once, in vain
	poll.Until(t, "the second waits", func() bool {
		return w.number("SELECT COUNT(*) FROM "+stack.Processes+" WHERE db = DATABASE() AND info LIKE 'SELECT "+
			"GET_LOCK(%'") == 1
	})
	second.wantIdle(t)
	// another group, and another schema, have an election of their own
	other, another := stand(t, w.dsn, "other"), stand(t, newWorld(t).dsn, "g")
	receive(t, "another group", other.on)
	receive(t, "another schema", another.on)

	first.stop()
	receive(t, "the first ends", first.gone)
	if err := <-first.ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the first one's leadership ended with %v, want the caller's end", err)
	}
	receive(t, "the second is elected", second.on)
	first.wantIdle(t)
}

func TestWhoeverLosesItsSessionLosesTheLeadershipAndMayBeElectedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := stand(t, w.dsn, "g")
	receive(t, "the first is elected", first.on)
	second := stand(t, w.dsn, "g")
	poll.Until(t, "the second waits", func() bool {
		return w.number("SELECT COUNT(*) FROM "+stack.Processes+" WHERE db = DATABASE() AND info LIKE 'SELECT "+
			"GET_LOCK(%'") == 1
	})
	// when somebody kills the session that holds the lock
	w.exec("KILL ?", first.leader())
	receive(t, "the second takes over", second.on)
	if err := receive(t, "the first notices", first.ended); !errors.Is(err, ErrLeadershipLost) {
		t.Errorf("the first one's leadership ended with %v, want ErrLeadershipLost", err)
	}
	// when the second stops, then the first is elected again
	second.stop()
	receive(t, "the first is elected again", first.on)
	if first.leader() == 0 {
		t.Error("nobody holds the lock")
	}
}

func TestAnElectionOutlivesTheDatabase(t *testing.T) {
	t.Parallel()
	server := stack.OwnMySQL(t)
	c := stand(t, newWorldOn(t, server.Database(t)).dsn, "g")
	receive(t, "elected", c.on)
	wantError(t, "kill the server", server.Kill(), nil)
	if err := receive(t, "its leadership is lost", c.ended); !errors.Is(err, ErrLeadershipLost) {
		t.Errorf("the leadership ended with %v, want ErrLeadershipLost", err)
	}
	wantError(t, "start the server", server.Start(), nil)
	receive(t, "elected again", c.on)
	// a server that hangs is noticed, too, and a stop does not wait for it
	wantError(t, "freeze", server.Freeze(), nil)
	receive(t, "its leadership is lost", c.ended)
	c.stop()
	receive(t, "the end", c.gone)
	wantError(t, "thaw", server.Thaw(), nil)
}

// The lock dies with its session, which must not come back to the pool with it.
func TestASessionThatWasElectedEndsWithItsTerm(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := stand(t, w.dsn, "g")
	receive(t, "elected", c.on)
	id := c.leader()
	c.stop()
	receive(t, "the end", c.gone)
	poll.Until(t, "the session's end", func() bool {
		return w.number("SELECT COUNT(*) FROM "+stack.Processes+" WHERE id = ?", id) == 0
	})
}

func TestTheLocksNameFitsAndTellsFleetsApart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	conn, err := w.pool.Conn(t.Context())
	wantError(t, "connection", err, nil)
	defer conn.Close()
	name := func(table, group string) string {
		l := *w.log
		l.o.Table = table
		n, err := l.leadName(t.Context(), conn, group)
		wantError(t, "name", err, nil)
		if len(n) > 64 {
			t.Errorf("%q has %d characters, the server takes 64", n, len(n))
		}
		return n
	}
	seen := map[string]bool{}
	for _, c := range [][2]string{{"consumer_log", "g"}, {"consumer_lo", "gg"}, {"consumer_log", "G"},
		{"consumer_logg", ""}} {
		seen[name(c[0], c[1])] = true
	}
	if len(seen) != 4 {
		t.Errorf("%d names of 4 fleets", len(seen))
	}
}
