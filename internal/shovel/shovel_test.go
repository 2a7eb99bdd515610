package shovel_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/shovel"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestMain(m *testing.M) { stack.Main(m) }

// world is a broker with rollbackd's queues, and a queue that was there before.
type world struct {
	t    *testing.T
	b    *stack.Broker
	topo rabbit.TopologyConfig
	from string
}

// newWorld has a classic queue, and its test run beside others.
func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	return worldOn(t, stack.AMQP(t), nil)
}

// worldOn makes the old queue with these arguments.
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
	res, err := r.wait()
	require.That(r.t, err == nil && res.Moved == n, "%+v, %v; want %d moved", res, err, n)
}

// waiting is a run over n messages that has met a full main queue.
func (w *world) waiting(n int) *running {
	w.t.Helper()
	w.b.Policy("full", w.topo.Queue, map[string]any{"max-length": 10})
	w.fill("m", n)
	r := w.start(w.options())
	poll.Until(w.t, "it waits for room", func() bool { return r.progress.Load().Why != "" })
	return r
}

// allThere fails unless the main queue has each of these messages, at least once and no others.
func (w *world) allThere(wanted map[string]int, exactly bool) {
	w.t.Helper()
	got := map[string]int{}
	poll.Within(10*time.Second, func() bool { // a large one is long on its way
		for _, d := range w.b.GetAll(w.topo.Queue) {
			got[d.MessageId]++
		}
		return len(got) >= len(wanted)
	})
	if !exactly {
		for id := range got {
			got[id] = 1
		}
	}
	diff := cmp.Diff(wanted, got)
	assert.That(w.t, diff == "", "messages, and how often each came (-want +got):\n%s", diff)
}

// empty fails unless nothing is left in a queue, in hand neither.
func (w *world) empty(queue string) {
	w.t.Helper()
	n, unacked := w.b.Depth(queue), w.b.Unacked(queue)
	assert.That(w.t, n == 0 && unacked == 0, "queue %s has %d messages and %d unacked, want none", queue, n, unacked)
}

// running is a run in the background.
type running struct {
	t      *testing.T
	cancel context.CancelFunc
	done   chan struct{}
	res    shovel.Result
	err    error

	progress atomic.Pointer[shovel.Progress]
	looked   atomic.Int32 // how often the run has told of itself
	said     program.Log
}

func (w *world) start(o shovel.Options) *running {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	r := &running{t: w.t, cancel: cancel, done: make(chan struct{})}
	r.progress.Store(&shovel.Progress{})
	o.Progress = func(p shovel.Progress) { r.progress.Store(&p); r.looked.Add(1) }
	o.Say = func(text string) { fmt.Fprintln(&r.said, text) }
	go func() {
		defer close(r.done)
		r.res, r.err = shovel.Run(ctx, o)
	}()
	w.t.Cleanup(func() { cancel(); <-r.done })
	return r
}

// wait waits for the end of a run by itself.
func (r *running) wait() (shovel.Result, error) {
	r.t.Helper()
	select {
	case <-r.done:
	case <-time.After(time.Minute):
		r.t.Fatalf("still running after a minute: %+v, %q", r.progress.Load(), &r.said)
	}
	return r.res, r.err
}

// stop is Ctrl-C.
func (r *running) stop() (shovel.Result, error) {
	r.t.Helper()
	r.cancel()
	return r.wait()
}

// Given a classic queue with messages, when they are moved, then each stands in the main queue as it was, with its tag
// as its type and without its expiry, and the old queue is empty.
func TestEachMessageIsCarriedAsItWas(t *testing.T) {
	w := newWorld(t)
	w.b.DeclareExchange(w.b.Name("shop"), "topic")
	w.b.Bind(w.from, "#", w.b.Name("shop"))
	at := time.Unix(1_700_000_000, 0)
	w.b.Publish(w.b.Name("shop"), "order.cancelled", stack.Message{
		Body: []byte(`{"order_sn":"A-1"}`), MessageId: "A-1", CorrelationId: "c", ContentType: "application/json",
		ContentEncoding: "identity", AppId: "shop", ReplyTo: "me", Timestamp: at, Priority: 7, Expiration: "3600000",
		Headers: map[string]any{"x-message-key": "k", "n": int64(5), "CC": []any{"nobody"}}, DeliveryMode: 1,
	})
	w.b.Publish(w.b.Name("shop"), "order.cancelled", stack.Message{Body: []byte("b"), Type: "own.tag", MessageId: "A-2"})
	w.start(w.options()).moves(2)
	w.empty(w.from)
	d, _ := w.b.Get(w.topo.Queue)
	assert.That(t, d.Type == "order.cancelled" && d.MessageId == "A-1" && string(d.Body) == `{"order_sn":"A-1"}` &&
		d.Expiration == "" && d.CorrelationId == "c" && d.ContentType == "application/json" &&
		d.ContentEncoding == "identity" && d.AppId == "shop" && d.ReplyTo == "me" && d.Timestamp.Equal(at) &&
		d.Priority == 7 && d.DeliveryMode == 2, "the copy is %+v", d)
	wanted := map[string]any{
		"x-message-key": "k", "n": int64(5), "x-published-at-ms": at.UnixMilli(),
		"x-rollbackd-exchange": w.b.Name("shop"), "x-rollbackd-routing-key": "order.cancelled",
	}
	delete(d.Headers, "x-delivery-count") // the main queue's own, on some versions also of a first delivery
	diff := cmp.Diff(wanted, map[string]any(d.Headers))
	assert.That(t, diff == "", "headers (-want +got):\n%s", diff)
	d, _ = w.b.Get(w.topo.Queue)
	assert.Is(t, d.Type, "own.tag", "the type of a message that has one")
}

// Given messages through a fanout exchange, without a type and without a routing key, when they are moved with a tag,
// then it is theirs, and nobody else's.
func TestATagIsForMessagesThatHaveNone(t *testing.T) {
	w := newWorld(t)
	fanout := w.b.Name("fanout")
	w.b.DeclareExchange(fanout, "fanout")
	w.b.Bind(w.from, "", fanout)
	w.b.Publish(fanout, "", stack.Message{Body: []byte("1")})
	w.b.Publish(fanout, "", stack.Message{Body: []byte("2"), Type: "own"})
	w.b.Publish("", w.from, stack.Message{Body: []byte("3")})
	o := w.options()
	o.Tag = "given"
	w.start(o).moves(3)
	for _, want := range []string{"given", "own", w.from} {
		d, _ := w.b.Get(w.topo.Queue)
		assert.Is(t, d.Type, want, "message %s has type", d.Body)
	}
}

// Given queues of all kinds, when their messages are moved, then acking makes nothing of their own arguments act: no
// dead letter, nothing lost, nothing twice.
func TestWhateverKindTheOldQueueIs(t *testing.T) {
	t.Parallel()
	for name, args := range map[string]map[string]any{
		"classic": {"x-max-priority": int32(10), "x-message-ttl": int32(3_600_000), "x-queue-mode": "lazy",
			"x-max-length": int32(100_000)},
		"quorum": {"x-queue-type": "quorum", "x-delivery-limit": int32(1)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := stack.AMQP(t)
			dead := b.Name("their-dead")
			b.DeclareQueue(dead, nil)
			args["x-dead-letter-exchange"], args["x-dead-letter-routing-key"] = "", dead
			w := worldOn(t, b, args)
			const n = 1200
			w.fill("m", n)
			w.start(w.options()).moves(n)
			w.empty(w.from)
			w.empty(dead)
			w.allThere(want(n, "m"), true)
		})
	}
}

// Given messages that no copy can stand for among many others, when all are moved, then those stay in their queue,
// named, and the others go.
func TestWhatCannotBeCarriedStaysAndStopsNobody(t *testing.T) {
	w := newWorld(t)
	odd := stack.UnreadableHeaders("m")
	w.fill("before", 100)
	for i, h := range odd {
		w.b.Publish("", w.from, stack.Message{Headers: h.Table, MessageId: fmt.Sprintf("odd-%d", i), Body: []byte("{}")})
	}
	// Readable, but with what a copy says besides there is no room for it in a frame.
	w.b.Publish("", w.from, stack.Message{
		MessageId: "large", Headers: map[string]any{"huge": strings.Repeat("x", 130_980)},
	})
	w.fill("after", 100)
	stays := len(odd) + 1
	r := w.start(w.options())
	res, err := r.wait()
	require.That(t, err == nil && res.Moved == 200 && res.Left == stays && len(res.Stays) == stays,
		"%+v, %v; want 200 moved and %d left", res, err, stays)
	for _, words := range []string{`"odd-0"`, "cannot be read", `"large"`, "frame_max"} {
		assert.Has(t, r.said.String(), words, "said")
	}
	poll.Until(t, "what stays is back in its queue", func() bool { return w.b.Depth(w.from) == stays })
	w.allThere(want(100, "before", "after"), true)
}

// Given a main queue that is full and refuses, when messages are moved, then the run waits, with all that it holds
// unacked, and goes on once there is room.
func TestAFullMainQueueMakesItWait(t *testing.T) {
	w := newWorld(t)
	const n = 300
	r := w.waiting(n)
	w.b.Policy("full", w.topo.Queue, nil)
	r.moves(n)
	assert.Has(t, r.said.String(), "takes nothing, waiting", "said")
	assert.Is(t, strings.Count(r.said.String(), "\n"), 1, "lines are said: %s", &r.said)
	w.empty(w.from)
	w.allThere(want(n, "m"), false)
}

// Given a full main queue and messages in hand, when the run is interrupted, then they are back in their queue.
func TestInterruptedWhileItWaitsItGivesEverythingBack(t *testing.T) {
	w := newWorld(t)
	const n = 300
	res, err := w.waiting(n).stop()
	require.That(t, errors.Is(err, context.Canceled) && res.Moved < n, "%+v, %v; want an interrupted run", res, err)
	poll.Until(t, "the rest is back", func() bool { return w.b.Depth(w.from) == n-res.Moved })
	assert.Is(t, w.b.Unacked(w.from), 0, "messages are still unacked")
}

// Given two runs at once on a queue whose old consumer works beside them, then together they take each message once.
func TestTwoRunsAndTheOldConsumerShareTheQueue(t *testing.T) {
	w := newWorld(t)
	const n = 5000
	w.fill("m", n)
	conn := require.Get(rabbit.Dial(t.Context(), config(w.b.URL)))(t)
	defer func() { _ = conn.Close() }()
	old := require.Get(conn.Consume(t.Context(), w.from, "old", 5))(t)
	a, b := w.start(w.options()), w.start(w.options())
	theirs := map[string]int{}
	for range 20 {
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		got, err := old.Collect(soon, 1, 0, nil)
		cancel()
		if err != nil {
			break // the others were faster
		}
		theirs[got[0].MessageID]++
		require.OK(t, old.Ack(got[0].Tag, false))
	}
	require.OK(t, old.Close())
	resA, errA := a.wait()
	resB, errB := b.wait()
	res, err := w.start(w.options()).wait() // what the old consumer gave back after both had seen an empty queue
	err = errors.Join(errA, errB, err)
	assert.That(t, err == nil && resA.Moved+resB.Moved+res.Moved+len(theirs) == n,
		"moved %d, %d and %d beside %d, %v; want %d together", resA.Moved, resB.Moved, res.Moved, len(theirs), err, n)
	w.empty(w.from)
	rest := want(n, "m")
	for id := range theirs {
		delete(rest, id)
	}
	w.allThere(rest, true)
}

// Given a broker that ends all connections and refuses others for a while, when it follows, from an empty queue on,
// then it goes on by itself, until it is interrupted.
func TestABrokerThatRefusesForAWhileLosesNothing(t *testing.T) {
	w := newWorld(t)
	link := stack.Proxy(t, stack.Addr(t, w.b.URL))
	const n = 500
	o := w.options()
	o.Follow, o.Rate = true, 500
	o.Rabbit.URLs = []string{link.Through(w.b.URL)}
	r := w.start(o)
	poll.Until(t, "it has found the queue empty again and again", func() bool { return r.looked.Load() > 3 })
	w.fill("before", n)
	poll.Until(t, "it moves", func() bool { return r.progress.Load().Moved > 50 })
	link.Refuse(true)
	link.Cut()
	poll.Until(t, "it says so", func() bool { return strings.Contains(r.said.String(), "will be made again") })
	link.Refuse(false)
	w.fill("after", n)
	poll.Until(t, "the queue is empty", func() bool { return w.b.Depth(w.from) == 0 && w.b.Unacked(w.from) == 0 })
	_, err := r.stop()
	assert.That(t, errors.Is(err, context.Canceled), "%v", err)
	w.allThere(want(n, "before", "after"), false)
}

// Given what can only be a mistake, or cannot work, then the run ends at once, takes nothing, and says what is wrong.
func TestItEndsAtOnceWhenItCannotWork(t *testing.T) {
	w := newWorld(t)
	w.fill("m", 3)
	single := w.b.Name("single")
	w.b.DeclareQueue(single, map[string]any{"x-single-active-consumer": true})
	w.b.Publish("", single, stack.Message{Body: []byte("b")})
	active := require.Get(rabbit.Dial(t.Context(), config(w.b.URL)))(t)
	defer func() { _ = active.Close() }()
	require.Get(active.Consume(t.Context(), single, "active", 1))(t)
	w.b.Publish("", single, stack.Message{Body: []byte("b")})
	held := w.b.Name("held")
	w.b.DeclareQueue(held, nil)
	w.b.HoldExclusively(held)
	for name, tt := range map[string]struct {
		spoil func(*shovel.Options)
		says  string
	}{
		"main queue":      {func(o *shovel.Options) { o.From = o.Topology.Queue }, "is the main queue itself"},
		"dead letters":    {func(o *shovel.Options) { o.From = rabbit.DeadQueue(o.Topology.Queue) }, "rollbackd's own"},
		"a retry queue":   {func(o *shovel.Options) { o.From = o.Topology.Queue + ".retry.1s" }, "rollbackd's own"},
		"missing queue":   {func(o *shovel.Options) { o.From = "nowhere" }, "404"},
		"no main queue":   {func(o *shovel.Options) { o.Topology.Queue = "nowhere" }, "the main queue"},
		"exclusive":       {func(o *shovel.Options) { o.From = held }, "consumes it exclusively"},
		"nobody delivers": {func(o *shovel.Options) { o.From, o.Patience = single, time.Second }, "single active"},
		"no server": {func(o *shovel.Options) { o.Rabbit.URLs = []string{"amqp://a:secret@127.0.0.1:1/"} },
			"connect to RabbitMQ at 127.0.0.1:1"},
	} {
		o := w.options()
		tt.spoil(&o)
		res, err := w.start(o).wait()
		assert.That(t, err != nil && strings.Contains(err.Error(), tt.says) && !strings.Contains(err.Error(), "secret") &&
			res.Moved == 0, "%s: %+v, %v; want an error with %q", name, res, err, tt.says)
	}
	assert.Is(t, w.b.Depth(w.from), 3, "messages are left in the queue")
}

// Given an account that may read the queue but not publish, or publish but not read, then the messages stay.
func TestMissingRightsTakeNothing(t *testing.T) {
	w := newWorld(t)
	w.fill("m", 3)
	for _, tt := range []struct{ write, read, says string }{
		{"^$", ".*", "does not allow this user to publish"},
		{".*", "^$", "may not read it"},
	} {
		o := w.options()
		o.Rabbit = config(w.as(tt.write, tt.read))
		res, err := w.start(o).wait()
		assert.That(t, err != nil && res.Moved == 0 && strings.Contains(err.Error(), tt.says),
			"write %s, read %s: %+v, %v; want an error with %q", tt.write, tt.read, res, err, tt.says)
	}
	poll.Until(t, "all are back", func() bool { return w.b.Depth(w.from) == 3 })
}

// as makes an account with these rights and returns its URL.
func (w *world) as(write, read string) string {
	w.t.Helper()
	u := require.Get(url.Parse(w.b.URL))(w.t)
	vhost := strings.TrimPrefix(u.Path, "/")
	user := w.b.Name("mover") + rand.Text()
	w.b.Eval(fmt.Sprintf(`ok = rabbit_auth_backend_internal:add_user(<<%q>>, <<"pw">>, <<"tests">>), ok = `+
		`rabbit_auth_backend_internal:set_permissions(<<%q>>, <<%q>>, <<"^$">>, <<%q>>, <<%q>>, <<"tests">>)`, user, user,
		vhost, write, read))
	w.t.Cleanup(func() { w.b.Eval(fmt.Sprintf(`rabbit_auth_backend_internal:delete_user(<<%q>>, <<"tests">>)`, user)) })
	u.User = url.UserPassword(user, "pw")
	return u.String()
}

// Given messages whose bodies together are several times the bound on memory, when they are moved, then all arrive.
func TestLargeMessagesGoThroughAFewAtATime(t *testing.T) {
	w := newWorld(t)
	const n = 40
	for i := range n {
		w.b.Publish("", w.from, stack.Message{MessageId: fmt.Sprintf("m-%d", i), Body: make([]byte, 4<<20)})
	}
	w.start(w.options()).moves(n)
	w.empty(w.from)
	w.allThere(want(n, "m"), true)
}
