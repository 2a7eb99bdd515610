package daemon_test

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/shop"
)

// shards are several main queues behind one exchange, as docs/scaling.md describes them: producers publish to an
// exchange that hashes the order and passes each message on to the exchange of one of the queues.
type shards struct {
	w      *world
	audits []string // of each shard: everything that its exchange has passed on
}

const orderHeader = "order_sn"

// queuesOfExample is how many queues deploy/examples/queues is for.
const queuesOfExample = 4

// newShards makes them, all on one database.
func newShards(t *testing.T, pairs ...string) *shards {
	t.Helper()
	w := emptyWorld(t, pairs...)
	w.route.Exchange = "stock.by-order"
	s := &shards{w: w}
	for i := range queuesOfExample {
		s.choose(i)
		if i == 0 {
			w.migrate()
		} else {
			w.declare(w.config())
		}
		audit := fmt.Sprintf("audit.%d", i)
		w.broker.DeclareQueue(audit, nil)
		w.broker.Bind(audit, w.route.Key, w.env["EXCHANGE"])
		s.audits = append(s.audits, audit)
	}
	w.broker.Import(string(require.Get(os.ReadFile("../../deploy/examples/queues/rabbitmq-definitions.json"))(t)))
	return s
}

// choose makes the settings those of the daemons of one shard.
func (s *shards) choose(i int) {
	s.w.set("EXCHANGE", fmt.Sprintf("stock.%d", i), "QUEUE", fmt.Sprintf("stock.rollback.%d", i))
}

func (s *shards) start(i int) *program.Process {
	s.choose(i)
	return s.w.start()
}

// message is about the order, whose number is hashed.
func (s *shards) message(key string, o shop.Order) oracle.Sent {
	p := s.w.route.Message(key, o.Body())
	p.Message.Headers = rabbit.Table{orderHeader: o.SN}
	return oracle.Sent{Publishing: p, Fate: oracle.ToBeApplied(), Order: o.SN}
}

// Given four queues behind an exchange that hashes the order, each with daemons of its own, when two messages about
// each order come, all of them twice, some before their order has reserved, some that name no order to the exchange,
// and a daemon is killed in the middle,
// then each order's goods are back once, and all messages of an order have gone through one queue.
func TestFourQueuesBehindAHashAreOneShop(t *testing.T) {
	t.Parallel()
	const ordinary, late, unnamed = 300, 40, 10
	const messages = 2*(ordinary+late) + unnamed
	s := newShards(t, "BATCH_SIZE", "100", "LANES", "2", "LOCK_TTL", "1s", "HANDLER_TIMEOUT", "3s", "LEASE", "5s",
		"RETRY_DELAYS", "200ms,500ms,1s,2s,5s", "MAX_ATTEMPTS", "6")
	w := s.w
	orders := w.open(ordinary + unnamed)
	nameless := orders[ordinary:]
	lateOnes := shop.Orders(w.rng, "late", late, skus)
	var sent []oracle.Sent
	for _, o := range slices.Concat(orders[:ordinary], lateOnes) {
		first, second := s.message(o.Key(), o), s.message("again-"+o.SN, o)
		sent = append(sent, first, second, first, second)
	}
	for _, o := range nameless {
		sent = append(sent, w.route.Rollback(o))
	}
	w.mixed(sent)

	killed := s.start(0)
	w.freezeInside(killed, 50)
	w.kill(killed)
	fleet := []*program.Process{s.start(0)} // two daemons on the first queue
	for i := range queuesOfExample {
		fleet = append(fleet, s.start(i))
	}
	w.eventually("orders that have not reserved have failed", func() bool { return w.rows(dedup.Failed) > 0 })
	require.OK(t, shop.SeedReserved(t.Context(), w.db, lateOnes))
	for i := range queuesOfExample {
		s.choose(i)
		w.ended(messages)
	}
	w.stop(fleet...)

	s.choose(0)
	w.oracle.Queue = w.env["QUEUE"]
	w.judged(messages, 0, oracle.Allowance{Attempts: 2})
	s.everyOrderOnOneQueue(ordinary + late + 1) // messages that name no order are as those of one
}

// everyOrderOnOneQueue reads what the exchange has passed on to each of the queues.
func (s *shards) everyOrderOnOneQueue(orders int) {
	t := s.w.t
	t.Helper()
	queueOf := map[string]int{}
	for i, audit := range s.audits {
		for _, d := range s.w.broker.GetAll(audit) {
			order, _ := d.Headers[orderHeader].(string)
			if earlier, seen := queueOf[order]; seen && earlier != i {
				t.Fatalf("order %q has messages on queue %d and on queue %d", order, earlier, i)
			}
			queueOf[order] = i
		}
	}
	assert.Is(t, len(queueOf), orders, "orders were passed on")
	share := map[int]int{}
	for _, i := range queueOf {
		share[i]++
	}
	t.Logf("orders on each queue: %v", share)
	for i := range s.audits {
		assert.AtLeast(t, share[i], orders/len(s.audits)/2, "queue %d has of %d orders", i, orders)
	}
}
