package rabbit_test

import (
	"errors"
	"testing"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

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
		if len(all) != 1+len(topo.Queues()) || len(found) != len(all) {
			t.Fatalf("%+v; want the exchange and every queue once", all)
		}
		return found
	}
	for what, one := range inspect() {
		if !one.Missing || one.Err != nil {
			t.Errorf("%q: %+v; want it missing", what, one)
		}
	}
	missing := func(want int) {
		t.Helper()
		if missing, err := rabbit.Missing(t.Context(), c, topo); err != nil || len(missing) != want {
			t.Errorf("missing %q, %v; want %d", missing, err, want)
		}
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
	if one := found[topo.Queue]; one.Missing || one.Unchecked || one.Err != nil || one.Ready != 1 || one.Consumers != 0 {
		t.Errorf("main queue: %+v; want it good, with one message", one)
	}
	if wrong, ok := errors.AsType[*rabbit.ArgumentError](found[dead].Err); !ok || wrong.Arg != "x-delivery-limit" {
		t.Errorf("dead-letter queue: %+v; want another x-delivery-limit", found[dead])
	}
	if !found[retry].Missing || b.Exists(retry) {
		t.Errorf("retry queue: %+v; want it missing, and not made", found[retry])
	}
	assert.OK(t, c.MayRead(t.Context(), rabbit.BackstopQueue(topo.Queue)), "the backstop may not be read:")
	if err := c.MayRead(t.Context(), retry); err == nil {
		t.Error("a queue that is not there may be read")
	}
}
