package rabbit_test

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func topology(b *stack.Broker) rabbit.TopologyConfig {
	t := rabbit.TopologyConfig{
		Exchange: b.Name("stock"), Queue: b.Name("main"), RoutingKeys: []string{"stock.rollback", "stock.#"},
		Delays: []time.Duration{time.Second, time.Minute},
	}
	b.Track(t.Queues()...)
	b.TrackExchanges(t.Exchange)
	return t
}

func TestQueueNamesShowTheDelayInItsShortestForm(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		time.Millisecond: "q.retry.1ms", 1500 * time.Millisecond: "q.retry.1500ms", time.Second: "q.retry.1s",
		90 * time.Second: "q.retry.90s", 2 * time.Minute: "q.retry.2m", time.Hour: "q.retry.1h",
		90 * time.Minute: "q.retry.90m", 48 * time.Hour: "q.retry.48h",
	} {
		assert.Is(t, rabbit.RetryQueue("q", d), want, "RetryQueue(%v)", d)
	}
	assert.That(t, rabbit.DeadQueue("q") == "q.dead" && rabbit.BackstopQueue("q") == "q.backstop",
		"names of the dead-letter queue and the backstop")
}

func TestImpossibleTopologyIsRefusedBeforeAskingTheBroker(t *testing.T) {
	t.Parallel()
	good := rabbit.TopologyConfig{
		Exchange: "e", Queue: "q", RoutingKeys: []string{"k"}, Delays: []time.Duration{time.Second},
	}
	require.OK(t, good.Validate())
	for name, spoil := range map[string]func(*rabbit.TopologyConfig){
		"no exchange":       func(c *rabbit.TopologyConfig) { c.Exchange = "" },
		"no queue":          func(c *rabbit.TopologyConfig) { c.Queue = "" },
		"reserved queue":    func(c *rabbit.TopologyConfig) { c.Queue = "amq.q" },
		"long derived name": func(c *rabbit.TopologyConfig) { c.Queue = strings.Repeat("q", 250) },
		"long routing key":  func(c *rabbit.TopologyConfig) { c.RoutingKeys = []string{strings.Repeat("k", 256)} },
		"no delay":          func(c *rabbit.TopologyConfig) { c.Delays = []time.Duration{0} },
		"part of a ms":      func(c *rabbit.TopologyConfig) { c.Delays = []time.Duration{time.Second + time.Microsecond} },
		"too long a delay":  func(c *rabbit.TopologyConfig) { c.Delays = []time.Duration{30 * 24 * time.Hour} },
	} {
		c := good
		spoil(&c)
		assert.That(t, c.Validate() != nil, "%s: accepted", name)
	}
}

func declare(t *testing.T, c *rabbit.Conn, topo rabbit.TopologyConfig) {
	t.Helper()
	require.Get(rabbit.Declare(t.Context(), c, topo))(t)
}

func TestDeclareSaysWhichArgumentDiffers(t *testing.T) {
	t.Parallel()
	b := stack.AMQP(t)
	c := dial(t, b.URL)
	for _, tt := range []struct {
		queue, arg string
		other      any
	}{
		{".dead", "x-delivery-limit", int64(20)}, {".backstop", "x-delivery-limit", int64(20)},
		{"", "x-delivery-limit", int64(20)}, {"", "x-dead-letter-strategy", "at-most-once"},
		{"", "x-dead-letter-routing-key", "elsewhere"}, {"", "x-overflow", "drop-head"},
	} {
		t.Run(tt.queue+tt.arg, func(t *testing.T) {
			topo := topology(b)
			topo.Queue += tt.queue + "." + tt.arg
			b.Track(topo.Queues()...)
			args := quorum(nil)
			if tt.queue == "" {
				args = rabbit.Table{
					"x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": topo.Queue + ".backstop",
					"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish", "x-delivery-limit": int64(200),
				}
			}
			args[tt.arg] = tt.other
			b.DeclareQueue(topo.Queue+tt.queue, args)
			_, err := rabbit.Declare(t.Context(), c, topo)
			e, ok := errors.AsType[*rabbit.ArgumentError](err)
			require.That(t, ok && e.What == fmt.Sprintf("queue %q", topo.Queue+tt.queue) && e.Arg == tt.arg &&
				strings.Contains(err.Error(), tt.arg), "Declare = %v", err)
		})
	}
	topo := topology(b)
	topo.Exchange += ".fanout"
	b.DeclareExchange(topo.Exchange, "fanout")
	_, err := rabbit.Declare(t.Context(), c, topo)
	e, ok := errors.AsType[*rabbit.ArgumentError](err)
	assert.That(t, ok && e.Arg == "type", "exchange of another type: %v", err)
}

func TestWithoutTheRightToConfigureDeclareOnlyChecks(t *testing.T) {
	t.Parallel()
	b := stack.AMQP(t)
	u := require.Get(url.Parse(b.URL))(t)
	vhost := strings.TrimPrefix(u.Path, "/")
	user := "worker-" + vhost
	b.Eval(fmt.Sprintf(`ok = rabbit_auth_backend_internal:add_user(<<%q>>, <<"pw">>, <<"tests">>), ok = `+
		`rabbit_auth_backend_internal:set_permissions(<<%q>>, <<%q>>, <<"^$">>, <<".*">>, <<".*">>, <<"tests">>)`, user, user,
		vhost))
	t.Cleanup(func() { b.Eval(fmt.Sprintf(`rabbit_auth_backend_internal:delete_user(<<%q>>, <<"tests">>)`, user)) })
	topo := topology(b)
	u.User = url.UserPassword(user, "pw")
	worker := dial(t, u.String())

	_, err := rabbit.Declare(t.Context(), worker, topo)
	assert.That(t, err != nil && strings.Contains(err.Error(), "not allowed to declare") &&
		strings.Contains(err.Error(), "404"), "Declare of missing things: %v", err)
	declare(t, dial(t, b.URL), topo)
	warnings := require.Get(rabbit.Declare(t.Context(), worker, topo))(t)
	for _, q := range topo.Queues() {
		if !slices.ContainsFunc(warnings, func(w string) bool {
			return strings.Contains(w, fmt.Sprintf("%q", q)) && strings.Contains(w, "arguments are unchecked")
		}) {
			t.Errorf("no warning for %s in %q", q, warnings)
		}
	}
}

// Given a topology that was declared before, when a connection made anew declares it again, then a queue that is
// missing is made with its bindings; and where nothing is missing, nothing is asked that all nodes of a cluster must
// agree on, for which a binding taken away stands here.
func TestRedeclareMakesOnlyWhatIsMissing(t *testing.T) {
	t.Parallel()
	b := stack.AMQP(t)
	c := dial(t, b.URL)
	topo := topology(b)
	declare(t, c, topo)
	routed := func() bool {
		p := publisher(t, config(b.URL))
		return p.Publish(t.Context(), []rabbit.Publishing{{Exchange: topo.Exchange, Key: "stock.by.the.last"}})[0] == nil
	}
	for _, key := range topo.RoutingKeys {
		b.Unbind(topo.Queue, key, topo.Exchange)
	}
	_, err := rabbit.Redeclare(t.Context(), c, topo)
	assert.That(t, err == nil && !routed(), "with everything there: %v; want nothing done", err)
	b.Delete(topo.Queue)
	_, err = rabbit.Redeclare(t.Context(), c, topo)
	assert.That(t, err == nil && routed(), "with the main queue missing: %v; want it made and bound", err)
}

func TestInspectComparesWhatExistsAndMakesNothing(t *testing.T) {
	t.Parallel()
	b := stack.AMQP(t)
	c := dial(t, b.URL)
	topo := topology(b)
	inspect := func() map[string]rabbit.Inspection {
		t.Helper()
		all := require.Get(rabbit.Inspect(t.Context(), c, topo))(t)
		found := map[string]rabbit.Inspection{}
		for _, one := range all {
			found[one.Queue] = one // the exchange under ""
		}
		require.That(t, len(all) == 1+len(topo.Queues()) && len(found) == len(all),
			"%+v; want the exchange and every queue once", all)
		return found
	}
	for what, one := range inspect() {
		assert.That(t, one.Missing && one.Err == nil, "%q: %+v; want it missing", what, one)
	}
	missing := func(want int) {
		t.Helper()
		assert.Is(t, len(require.Get(rabbit.Missing(t.Context(), c, topo))(t)), want, "missing")
	}
	missing(1 + len(topo.Queues()))
	declare(t, c, topo)
	declare(t, c, topo)
	missing(0)
	dead, retry := rabbit.DeadQueue(topo.Queue), rabbit.RetryQueue(topo.Queue, topo.Delays[0])
	b.Delete(dead, retry)
	missing(2)
	b.DeclareQueue(dead, map[string]any{"x-queue-type": "quorum"})
	b.Publish("", topo.Queue, stack.Message{Body: []byte("{}")})
	found := inspect()
	main := found[topo.Queue]
	assert.That(t, !main.Missing && !main.Unchecked && main.Err == nil && main.Ready == 1 && main.Consumers == 0,
		"main queue: %+v; want it good, with one message", main)
	wrong, ok := errors.AsType[*rabbit.ArgumentError](found[dead].Err)
	assert.That(t, ok && wrong.Arg == "x-delivery-limit", "dead-letter queue: %+v; want another limit", found[dead])
	assert.That(t, found[retry].Missing && !b.Exists(retry), "retry queue: %+v; want it missing, and not made",
		found[retry])
	assert.OK(t, c.MayRead(t.Context(), rabbit.BackstopQueue(topo.Queue)), "the backstop may not be read:")
	_, consumed := c.Consume(t.Context(), retry, "tag", 1)
	_, _, looked := c.Depth(t.Context(), retry)
	for _, err := range []error{c.MayRead(t.Context(), retry), consumed, looked} {
		assert.Has(t, fmt.Sprint(err), "no queue '"+retry+"'", "a queue that is not there")
	}
}
