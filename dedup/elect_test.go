package dedup

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
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
	case <-time.After(time.Minute):
		t.Fatalf("still not: %s", what)
	}
	return v
}

func (c *candidate) leader() int64 {
	c.w.t.Helper()
	return require.Get(c.w.log.Leader(c.w.t.Context(), "g"))(c.w.t)
}

// waits wants that somebody asks for the lock in vain.
func (w *world) waits() {
	w.t.Helper()
	poll.Until(w.t, "somebody waits for the lock", func() bool {
		return w.number("SELECT COUNT(*) FROM "+stack.Processes+" WHERE db = DATABASE() AND info LIKE 'SELECT "+
			"GET_LOCK(%'") == 1
	})
}

// Given two who stand for election, when the first one's session is killed or it stops, then the other takes over, and
// the first may be elected again; another group, and another schema, have an election of their own. The lock dies with
// its session, which must not come back to the pool with it.
func TestOneIsElectedAndTheNextTakesOver(t *testing.T) {
	w := newWorld(t)
	first := stand(t, w.dsn, "g")
	receive(t, "the first is elected", first.on)
	second := stand(t, w.dsn, "g")
	w.waits()
	other, another := stand(t, w.dsn, "other"), stand(t, newWorldOn(t, stack.MySQL(t)).dsn, "g")
	receive(t, "another group", other.on)
	receive(t, "another schema", another.on)
	other.stop()
	select {
	case <-second.on:
		t.Error("two are elected")
	default:
	}

	w.exec("KILL ?", first.leader())
	receive(t, "the second takes over", second.on)
	assert.Error(t, receive(t, "the first notices", first.ended), ErrLeadershipLost, "the first one's end")
	id := second.leader()
	second.stop()
	receive(t, "the second ends", second.gone)
	assert.Error(t, <-second.ended, context.Canceled, "the second one's end")
	receive(t, "the first is elected again", first.on)
	assert.That(t, first.leader() != 0, "nobody holds the lock")
	poll.Until(t, "the session's end", func() bool {
		return w.number("SELECT COUNT(*) FROM "+stack.Processes+" WHERE id = ?", id) == 0
	})
}

// Given two processes that stand for two posts each, then one is elected for both, on one connection; and when it
// stops, the other is elected for both.
func TestOneConnectionStandsForSeveralPosts(t *testing.T) {
	w := newWorld(t)
	elected := make(chan string, 10)
	campaign := func(name string) (end func()) {
		ctx, stop := context.WithCancel(t.Context())
		log, gone := worldOf(t, w.dsn, openWith(t, w.dsn, OpenOptions{})).log, make(chan struct{})
		lead := func(group string) Post {
			return Post{log, group, func(ctx context.Context) {
				elected <- name + " " + group
				<-ctx.Done()
			}}
		}
		go func() {
			defer close(gone)
			Campaign(ctx, slog.New(slog.DiscardHandler), lead("a"), lead("b"))
		}()
		end = func() {
			stop()
			<-gone
		}
		t.Cleanup(end)
		return end
	}
	leaders := func() (a, b int64) {
		t.Helper()
		a, errA := w.log.Leader(t.Context(), "a")
		b, errB := w.log.Leader(t.Context(), "b")
		assert.OK(t, errors.Join(errA, errB))
		return a, b
	}
	both := func(name string) {
		t.Helper()
		got := []string{receive(t, "a post is taken", elected), receive(t, "another post is taken", elected)}
		if slices.Sort(got); !slices.Equal(got, []string{name + " a", name + " b"}) {
			t.Errorf("elected are %q, want the %s for both", got, name)
		}
		a, b := leaders()
		assert.That(t, a != 0 && a == b, "connections %d and %d lead, want one", a, b)
	}
	end := campaign("first")
	both("first")
	campaign("second")
	end()
	both("second")
}

func TestAnElectionOutlivesTheDatabase(t *testing.T) {
	t.Parallel()
	server := stack.OwnMySQL(t)
	c := stand(t, newWorldOn(t, server.Database(t)).dsn, "g")
	receive(t, "elected", c.on)
	assert.OK(t, server.Kill())
	assert.Error(t, receive(t, "its leadership is lost", c.ended), ErrLeadershipLost, "its end")
	assert.OK(t, server.Start())
	receive(t, "elected again", c.on)
	// a server that hangs is noticed, too, and a stop does not wait for it
	assert.OK(t, server.Freeze())
	receive(t, "its leadership is lost", c.ended)
	c.stop()
	receive(t, "the end", c.gone)
	assert.OK(t, server.Thaw())
}

func TestTheLocksNameFitsAndTellsFleetsApart(t *testing.T) {
	w := newWorld(t)
	conn := require.Get(w.pool.Conn(t.Context()))(t)
	defer conn.Close()
	name := func(table, group string) string {
		l := *w.log
		l.o.Table = table
		n := require.Get(l.leadName(t.Context(), conn, group))(t)
		assert.AtMost(t, len(n), 64, "%q has characters, the server takes 64", n)
		return n
	}
	seen := map[string]bool{}
	for _, c := range [][2]string{{"consumer_log", "g"}, {"consumer_lo", "gg"}, {"consumer_log", "G"},
		{"consumer_logg", ""}} {
		seen[name(c[0], c[1])] = true
	}
	assert.Is(t, len(seen), 4, "names of 4 fleets")
}
