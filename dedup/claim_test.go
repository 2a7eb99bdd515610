package dedup

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func entriesNamed(prefix string, n int) (entries []Entry) {
	for i := range n {
		entries = append(entries, entryOf(key(fmt.Sprintf("%s%04d", prefix, i))))
	}
	return entries
}

// counting counts the statements that change something, and notes the names in the order in which they are written.
type counting struct {
	Execer
	n     int
	names []string
}

func (c *counting) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	c.n++
	for _, arg := range args {
		if b, ok := arg.([]byte); ok && strings.HasPrefix(string(b), "order-") {
			c.names = append(c.names, string(b))
		}
	}
	return c.Execer.ExecContext(ctx, query, args...)
}

// Whoever holds claims holds off those who would take them over, and finds out whom it has lost. Those of one version
// succeed in one statement: that is what makes failures fast.
func TestClaimsThatAreHeldAreComparedOneByOne(t *testing.T) {
	w := newWorld(t)
	for name, spoil := range map[string]string{
		"taken over":    "UPDATE consumer_log SET owner = 'b'",
		"counted":       "UPDATE consumer_log SET consumer_times = 3",
		"replayed":      "UPDATE consumer_log SET replays = 1",
		"another state": "UPDATE consumer_log SET consumer_status = 2",
		"gone":          "DELETE FROM consumer_log",
	} {
		entries := entriesNamed(name, 5)
		blamed := mapped(entries, func(e Entry) Blamed { return Blamed{Entry: e, Cause: "no"} })
		rows := require.All(w.log.BlameAll(t.Context(), blamed, "blame/1"))(t)
		for _, e := range entries {
			w.older(e.Identity, time.Hour)
		}
		claims, _ := w.log.ClaimAll(t.Context(), known(rows), "claim/1")
		hold := func() error {
			return w.inTx(func(tx *sql.Tx) error {
				if err := w.log.Hold(t.Context(), tx, claims); err != nil {
					return err
				}
				count := &counting{Execer: tx}
				err := w.log.SuccessAll(t.Context(), count, claims[:2])
				assert.Is(t, count.n, 1, "%s: statements for two rows", name)
				return err
			})
		}
		w.exec(spoil+keyIs, keyArgs(claims[3].Identity)...)
		assert.Error(t, hold(), ErrLost, name)
		wantVersion(t, w.read(claims[0].Identity), claims[0].version())
		claims = append(claims[:3:3], claims[4])
		assert.OK(t, hold())
		row := w.read(claims[1].Identity)
		assert.That(t, row.Version == claims[1].Applied() && row.Body == nil, "%s: the second is %+v", name, row)
	}
}

// Given rows that are blamed, failed or put off with a time of their handler's, longer or shorter than the delay of
// their attempts, then none is due or claimed before, each is then, however young it is, and a claim, a reopening and a
// clock that has gone back forget the time.
func TestARowIsDueWhenItsHandlerHasSaid(t *testing.T) {
	w := newWorld(t)
	ways := map[string]func(k Identity, after time.Duration) error{
		"blamed": func(k Identity, after time.Duration) error {
			_, err := first(w.log.BlameAll(t.Context(), []Blamed{{Entry: entryOf(k), Cause: "boom", After: after}}, "lane/1"))
			return err
		},
		"failed": func(k Identity, after time.Duration) error {
			row, err := first(w.log.FailAll(t.Context(), []Failure{{w.claim(absent(k), "a"), "boom", after}}))
			assert.That(t, !row.Due && row.Wait != 0, "it is left due: %+v", row)
			return err
		},
		"put off": func(k Identity, after time.Duration) error {
			return errors.Join(w.log.PutOffAll(t.Context(), []Failure{{w.claim(absent(k), "a"), "busy", after}})...)
		},
	}
	passes := func(k Identity, d time.Duration) {
		w.exec("UPDATE consumer_log SET due_at = due_at - INTERVAL ? MICROSECOND"+keyIs,
			append([]any{d.Microseconds()}, keyArgs(k)...)...)
	}
	for name, move := range ways {
		for _, after := range []time.Duration{10 * time.Minute, 5 * testDelay} {
			k := key(fmt.Sprint(name, after))
			moved := time.Now()
			assert.OK(t, move(k, after))
			row := w.read(k)
			assert.That(t, !row.Due && row.Wait <= after && row.Wait >= after-time.Minute && w.log.Overdue(row) == 0,
				"%v: %+v, want it to wait", k, row)
			_, err := w.log.Claim(t.Context(), row, entryOf(k), "early")
			assert.Error(t, err, ErrLost, "a claim before its time")
			passes(k, after-time.Second) // it is due half a second early
			row = w.read(k)
			early := row.Due && time.Since(moved) < time.Second/2 // which a busy machine may take to come here
			assert.That(t, !early && row.Wait <= time.Second, "%v: %+v, want it to wait for half a second", k, row)
			passes(k, time.Minute)
			row = w.read(k)
			assert.That(t, row.Due && w.log.Overdue(row) >= 30*time.Second, "%v: %+v, want it due for a minute", k, row)
			w.claim(row, "late")
			is := w.number("SELECT COUNT(*) FROM consumer_log"+keyIs+" AND due_at IS NULL", keyArgs(k)...)
			assert.Is(t, is, 1, "%v: a claim keeps the time", k)
		}
		back := key(name + " when the clock has gone back")
		assert.OK(t, move(back, time.Hour))
		passes(back, -721*time.Hour)
		w.claim(w.read(back), "back")
		again := key(name + " and reopened")
		assert.OK(t, move(again, time.Hour))
		row, err := w.log.Reopen(t.Context(), w.read(again), entryOf(again), ReplayNote{By: "x", Token: "r"})
		assert.That(t, err == nil && row.Due, "%v: %+v, %v; want it due at once", again, row, err)
		w.claim(w.read(again), "reopened")
	}
}

// candidate is a process that stands for posts, with a pool of its own.
type candidate struct {
	on    chan string // gets the group for which it is elected
	ended chan error  // gets the cause when its leadership of one ends
	stop  context.CancelFunc
	gone  chan struct{} // closed when Campaign has returned
}

func stand(t *testing.T, dsn string, groups ...string) *candidate {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	c := &candidate{make(chan string, 10), make(chan error, 10), stop, make(chan struct{})}
	log, posts := worldOf(t, dsn, OpenOptions{DialTimeout: time.Second, ReadTimeout: 3 * time.Second}).log, []Post{}
	for _, group := range groups {
		posts = append(posts, Post{log, group, func(ctx context.Context) {
			c.on <- group
			<-ctx.Done()
			c.ended <- context.Cause(ctx)
		}})
	}
	go func() {
		defer close(c.gone)
		Campaign(ctx, slog.New(slog.DiscardHandler), posts...)
	}()
	t.Cleanup(func() {
		stop()
		<-c.gone
	})
	return c
}

// Given two processes that stand for two posts each, then one is elected for both, on one connection; and when it
// stops, the other is elected for both. Another schema has an election of its own.
func TestOneConnectionStandsForSeveralPosts(t *testing.T) {
	w := newWorld(t)
	both := func(who string, c *candidate) {
		t.Helper()
		got := []string{poll.Receive(t, who+" takes a post", c.on), poll.Receive(t, who+" takes another post", c.on)}
		assert.Equal(t, slices.Sorted(slices.Values(got)), []string{"a", "b"}, "%s is elected for", who)
		a, b := require.Get(w.log.Leader(t.Context(), "a"))(t), require.Get(w.log.Leader(t.Context(), "b"))(t)
		assert.That(t, a != 0 && a == b, "connections %d and %d lead, want one", a, b)
	}
	first := stand(t, w.dsn, "a", "b")
	both("the first", first)
	second := stand(t, w.dsn, "a", "b")
	poll.Receive(t, "another schema", stand(t, newWorldOn(t, stack.MySQL(t)).dsn, "a").on)
	first.stop()
	both("the second", second)
	assert.Error(t, <-first.ended, context.Canceled, "the first one's end")
}

func TestAnElectionOutlivesTheDatabase(t *testing.T) {
	t.Parallel()
	server := stack.OwnMySQL(t)
	c := stand(t, newWorldOn(t, server.Database(t)).dsn, "g")
	poll.Receive(t, "elected", c.on)
	assert.OK(t, server.Kill())
	assert.Error(t, poll.Receive(t, "its leadership is lost", c.ended), ErrLeadershipLost, "its end")
	assert.OK(t, server.Start())
	poll.Receive(t, "elected again", c.on)
	// a server that hangs is noticed, too, and a stop does not wait for it
	assert.OK(t, server.Freeze())
	poll.Receive(t, "its leadership is lost", c.ended)
	c.stop()
	poll.Receive(t, "the end", c.gone)
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
