package shovel_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/shovel"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// world is a broker with rollbackd's queues, and a queue that was there before.
type world struct {
	t    *testing.T
	b    *stack.Broker
	topo rabbit.TopologyConfig
	from string
}

// newWorld makes the old queue with these arguments; a nil args makes a classic queue.
func newWorld(t *testing.T, args map[string]any) *world {
	t.Helper()
	return worldOn(t, stack.AMQP(t), args)
}

func worldOn(t *testing.T, b *stack.Broker, args map[string]any) *world {
	t.Helper()
	w := &world{t: t, b: b, from: b.Name("old")}
	w.topo = rabbit.TopologyConfig{
		Exchange: b.Name("stock"), Queue: b.Name("main"), RoutingKeys: []string{"stock.rollback"},
		Delays: []time.Duration{time.Second},
	}
	b.Track(w.topo.Queues()...)
	b.TrackExchanges(w.topo.Exchange)
	c := require.Get(rabbit.Dial(t.Context(), config(b.URL)))(t)
	defer func() { _ = c.Close() }()
	require.Get(rabbit.Declare(t.Context(), c, w.topo))(t)
	b.DeclareQueue(w.from, args)
	return w
}

func config(url string) rabbit.Config {
	return rabbit.Config{
		URLs: []string{url}, Name: rabbit.ConnectionName("test"), Heartbeat: 2 * time.Second,
		ConfirmTimeout: 3 * time.Second, CloseTimeout: 2 * time.Second,
	}
}

func (w *world) options() shovel.Options {
	return shovel.Options{Rabbit: config(w.b.URL), Topology: w.topo, From: w.from}
}

// fill puts n messages into the old queue, with the keys PREFIX-0 and so on.
func (w *world) fill(prefix string, n int) {
	w.t.Helper()
	p := rabbit.NewPublisher(config(w.b.URL))
	defer func() { _ = p.Close(context.WithoutCancel(w.t.Context())) }()
	batch := make([]rabbit.Publishing, n)
	for i := range batch {
		batch[i] = rabbit.Publishing{Key: w.from, Message: rabbit.Message{
			MessageID: fmt.Sprintf("%s-%d", prefix, i), Body: fmt.Appendf(nil, `{"order_sn":"%s-%d"}`, prefix, i),
		}}
	}
	require.OK(w.t, p.Publish(w.t.Context(), batch)...)
}

// ids takes all messages out of a queue and counts them by message_id.
func (w *world) ids(queue string) map[string]int {
	w.t.Helper()
	c := require.Get(rabbit.Dial(w.t.Context(), config(w.b.URL)))(w.t)
	defer func() { _ = c.Close() }()
	s := require.Get(c.Consume(w.t.Context(), queue, "count", 1000))(w.t)
	found := map[string]int{}
	for {
		soon, cancel := context.WithTimeout(w.t.Context(), time.Second)
		got, err := s.Collect(soon, 1000, 0, nil)
		cancel()
		if len(got) == 0 {
			ready, _, depthErr := c.Depth(w.t.Context(), queue)
			if !errors.Is(err, context.DeadlineExceeded) || depthErr != nil {
				w.t.Fatal(err, depthErr)
			}
			if ready == 0 && w.b.Unacked(queue) == 0 { // a large one is long on its way
				return found
			}
		}
		for _, d := range got {
			found[d.MessageID]++
			require.OK(w.t, s.Ack(d.Tag, false))
		}
	}
}

// want is n keys of each prefix, each once.
func want(n int, prefixes ...string) map[string]int {
	all := map[string]int{}
	for _, prefix := range prefixes {
		for i := range n {
			all[fmt.Sprintf("%s-%d", prefix, i)] = 1
		}
	}
	return all
}

// moves waits for the end of a run, which must have moved so many.
func (r *running) moves(n int) {
	r.t.Helper()
	if res, err := r.wait(); err != nil || res.Moved != n {
		r.t.Fatalf("%+v, %v; want %d moved", res, err, n)
	}
}

// waiting is a run over n messages that has met a full main queue.
func (w *world) waiting(n int) *running {
	w.t.Helper()
	w.b.Policy("full", w.topo.Queue, map[string]any{"max-length": 10})
	w.fill("m", n)
	r := w.start(w.options())
	poll.Until(w.t, "it waits for room", func() bool { return r.progress().Why != "" })
	return r
}

// allThere fails unless the main queue has each of these messages, at least once and no others.
func (w *world) allThere(wanted map[string]int, exactly bool) {
	w.t.Helper()
	got := w.ids(w.topo.Queue)
	if !exactly {
		for id := range got {
			got[id] = 1
		}
	}
	if diff := cmp.Diff(wanted, got); diff != "" {
		w.t.Errorf("messages, and how often each came (-want +got):\n%s", diff)
	}
}

// empty fails unless nothing is left in a queue, in hand neither.
func (w *world) empty(queue string) {
	w.t.Helper()
	if n, unacked := w.b.Depth(queue), w.b.Unacked(queue); n != 0 || unacked != 0 {
		w.t.Errorf("queue %s has %d messages and %d unacked, want none", queue, n, unacked)
	}
}

// running is a run in the background.
type running struct {
	t      *testing.T
	cancel context.CancelFunc
	done   chan struct{}
	res    shovel.Result
	err    error

	mu   sync.Mutex
	at   shovel.Progress
	told int // how often
	said []string
}

func (w *world) start(o shovel.Options) *running {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	r := &running{t: w.t, cancel: cancel, done: make(chan struct{})}
	o.Progress = func(p shovel.Progress) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.at = p
		r.told++
	}
	o.Say = func(text string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.said = append(r.said, text)
	}
	go func() {
		defer close(r.done)
		r.res, r.err = shovel.Run(ctx, o)
	}()
	w.t.Cleanup(func() { cancel(); <-r.done })
	return r
}

func (r *running) progress() shovel.Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.at
}

// looked is how often the run has told of itself.
func (r *running) looked() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.told
}

// words are what is said, a line each.
func (r *running) words() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.said, "\n")
}

// wait waits for the end of a run by itself.
func (r *running) wait() (shovel.Result, error) {
	r.t.Helper()
	select {
	case <-r.done:
	case <-time.After(time.Minute):
		r.t.Fatalf("still running after a minute: %+v, %q", r.progress(), r.words())
	}
	return r.res, r.err
}

// stop is Ctrl-C.
func (r *running) stop() (shovel.Result, error) {
	r.t.Helper()
	r.cancel()
	return r.wait()
}

func TestMain(m *testing.M) { stack.Main(m) }
