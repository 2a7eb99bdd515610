package consumer_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// links are proxies between an engine and its servers.
type links struct{ amqp, mysql, redis *stack.TCPProxy }

// proxied leads the next engine through proxies; the test itself goes directly.
func (w *world) proxied() links {
	w.t.Helper()
	l := links{
		amqp:  stack.Proxy(w.t, stack.Addr(w.t, w.amqpURL)),
		mysql: stack.Proxy(w.t, stack.Addr(w.t, w.dsn)),
	}
	w.amqpURL, w.dsn = l.amqp.Through(w.amqpURL), l.mysql.Through(w.dsn)
	if w.redisURL != "" {
		l.redis = stack.Proxy(w.t, stack.Addr(w.t, w.redisURL))
		w.redisURL = l.redis.Through(w.redisURL)
	}
	return l
}

// sever cuts all links for good.
func (l links) sever() {
	for _, p := range []*stack.TCPProxy{l.amqp, l.mysql, l.redis} {
		if p != nil {
			p.Refuse(true)
			p.Cut()
		}
	}
}

// crashAt runs an engine into a point and lets it die there: it stands still and its links are cut, so that from there
// on it is for its servers what a killed process is. It returns once that has happened.
func (w *world) crashAt(point consumer.Point) {
	w.t.Helper()
	w.crashAtThe(1, point)
}

// crashAtThe is crashAt at the n-th time.
func (w *world) crashAtThe(n int64, point consumer.Point) {
	w.t.Helper()
	cfg, amqp, dsn, redis := w.cfg, w.amqpURL, w.dsn, w.redisURL
	defer func() { w.cfg, w.amqpURL, w.dsn, w.redisURL = cfg, amqp, dsn, redis }()
	l := w.proxied()
	reached, released := make(chan struct{}), make(chan struct{})
	var once sync.Once
	var came atomic.Int64
	w.cfg.DrainTimeout = 50 * time.Millisecond
	w.cfg.Hook = func(p consumer.Point) {
		if p == point && came.Add(1) >= n {
			once.Do(func() { close(reached) })
		}
		select {
		case <-reached: // the whole process has stopped, at whatever points its lanes are
			<-released
		default:
		}
	}
	r := w.launch()
	w.t.Cleanup(func() {
		close(released)
		_ = r.drained() // it cannot: it is cut off
	})
	await(w.t, reached, "the engine comes to the point "+string(point))
	l.sever()
}

// blockAt makes engines started from now on wait at a point, once, from reached until release.
func (w *world) blockAt(point consumer.Point) (reached <-chan struct{}, release func()) {
	at, goOn := make(chan struct{}), make(chan struct{})
	var once, released sync.Once
	w.cfg.Hook = func(p consumer.Point) {
		if p == point {
			once.Do(func() {
				close(at)
				<-goOn
			})
		}
	}
	release = func() { released.Do(func() { close(goOn) }) }
	w.t.Cleanup(release)
	return at, release
}

func await(t *testing.T, event <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-event:
	case <-time.After(time.Minute):
		t.Fatalf("still not after a minute: %s", what)
	}
}

// commit is MySQL's command COMMIT on the wire; READ COMMITTED is not.
var commit = []byte("\x03COMMIT")

// nthCommit matches the n-th COMMIT, from 1.
func nthCommit(n int) func([]byte) bool {
	seen := 0
	return func(piece []byte) bool {
		if bytes.HasSuffix(piece, commit) {
			seen++
			return seen == n
		}
		return false
	}
}

// paused waits until the engine names what is missing.
func (w *world) paused(r *running, what string) {
	w.t.Helper()
	w.eventually("paused because of "+what, func() bool { return waitsFor(r, what) })
}

// recovered waits until nothing is missing.
func (w *world) recovered(r *running) {
	w.t.Helper()
	w.eventually("nothing is missing", func() bool {
		s := r.State()
		return s.Consuming && len(s.Paused) == 0
	})
}

func waitsFor(r *running, what string) bool {
	for _, p := range r.State().Paused {
		if strings.HasPrefix(p, what+":") {
			return true
		}
	}
	return false
}

// ended waits until every key has a row in this status.
func (w *world) ended(status dedup.Status, keys ...string) {
	w.t.Helper()
	var names []dedup.Identity
	for _, k := range keys {
		names = append(names, dedup.Identity{Group: group, Tag: tag, Key: k})
	}
	w.eventually("all rows say "+status.String(), func() bool {
		rows, err := w.records.LookUp(context.WithoutCancel(w.t.Context()), names)
		if err != nil {
			return false // the test may have killed the server
		}
		for _, r := range rows {
			if r.Status != status {
				return false
			}
		}
		return true
	})
}

// quiet waits until no message is in the main queue or on its way back to it, then checks that no more was done than
// asked.
func (w *world) quiet() {
	w.t.Helper()
	// While it is looked at one queue after the other, a message may go from one that comes to one that is done: so it
	// must be true a few times.
	const times = 3
	quiet := 0
	live := slices.DeleteFunc(w.topology().Queues(), func(q string) bool { return q == rabbit.DeadQueue(w.cfg.Queue) })
	w.eventually("the main queue and the retry queues are empty", func() bool {
		quiet++
		for _, q := range live {
			if w.broker.Depth(q) > 0 {
				quiet = 0
				return false
			}
		}
		if w.broker.Leaving(live...) > 0 || w.broker.Unacked(w.cfg.Queue) > 0 {
			quiet = 0
		}
		return quiet >= times
	})
}

// dead is the number of letters.
func (w *world) dead() int { return w.broker.Depth(rabbit.DeadQueue(w.cfg.Queue)) }

// letter takes a letter.
func (w *world) letter() stack.Delivery {
	w.t.Helper()
	d, ok := w.broker.Get(rabbit.DeadQueue(w.cfg.Queue))
	if !ok {
		w.t.Fatal("there is no letter")
	}
	return d
}

// times is how often the handler was called with this key.
func (w *world) times(key string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.timesLocked(key)
}

// events is the story of a key.
func (w *world) events(key string) []dedup.Event {
	w.t.Helper()
	events, err := w.records.Events(w.t.Context(), dedup.Identity{Group: group, Tag: tag, Key: key})
	if err != nil {
		w.t.Fatal(err)
	}
	return events
}

// number reads one number from the database.
func (w *world) number(query string) (n int) {
	w.t.Helper()
	if err := w.db.QueryRowContext(w.t.Context(), query).Scan(&n); err != nil {
		w.t.Fatalf("%s: %v", query, err)
	}
	return n
}

// end waits until the deliveries have ended like this, all of them.
func (w *world) end(want map[string]int) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("outcomes %v", want), func() bool { return maps.Equal(w.outcomes(), want) })
}

// database is the name of the test's database.
func (w *world) database() (name string) {
	w.t.Helper()
	if err := w.db.QueryRowContext(w.t.Context(), "SELECT DATABASE()").Scan(&name); err != nil {
		w.t.Fatal(err)
	}
	return name
}

// timesLocked is times for a rejecting function, which is called with mu held; the present call is not counted.
func (w *world) timesLocked(key string) (n int) {
	for _, call := range w.calls {
		for _, k := range call {
			if k == key {
				n++
			}
		}
	}
	return n
}

// publishInto publishes straight into a queue and declares nothing.
func (w *world) publishInto(queue string, keys ...string) {
	w.t.Helper()
	for _, key := range keys {
		w.broker.Publish("", queue, stack.Message{
			MessageId: key, Type: tag, Body: []byte("{}"), DeliveryMode: rabbit.Persistent,
		})
	}
}

// oneBatch makes sure that the next n messages come in one batch, however slow the machine is.
func (w *world) oneBatch(n int) {
	w.cfg.Lanes, w.cfg.BatchSize, w.cfg.BatchLinger = 1, n, 2*time.Second
	w.cfg.MemoryBudget = 1 << 30 // else the first batch is smaller while no body was seen
}
