package daemon_test

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/shop"
)

// mostMemory is what a daemon with default settings may take whatever comes, in MiB.
const mostMemory = 200

// peak is the most memory that a process had so far, in MiB.
func peak(t *testing.T, p *program.Process) (mib int) {
	t.Helper()
	text := require.Get(os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid())))(t)
	_, after, found := bytes.Cut(text, []byte("VmHWM:"))
	if _, err := fmt.Sscan(string(after), &mib); !found || err != nil {
		t.Fatalf("no VmHWM in the process's status: %v", err)
	}
	return mib >> 10
}

// padded is an order's message with a body of the largest size that is allowed.
func (w *world) padded(orders []shop.Order) []oracle.Sent {
	sent := w.route.Rollbacks(orders)
	for i := range sent {
		body := sent[i].Body
		pad := consumer.MaxBody - len(body) - len(`,"note":""`)
		whole := append(bytes.TrimSuffix(bytes.Clone(body), []byte("}")), `,"note":"`...)
		whole = append(append(whole, bytes.Repeat([]byte("x"), pad)...), `"}`...)
		sent[i].Body = whole
	}
	return sent
}

// Given default settings and a MySQL that is blocked, when hundreds of the largest bodies wait that are allowed, then
// the daemon's memory stays within its bound, also while it works them off; and nothing is lost.
func TestLargeBodiesStayWithinTheMemoryBudget(t *testing.T) {
	for name, small := range map[string]int{"from the beginning": 0, "after small ones": sized(2_000, 100_000)} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "HTTP_ADDR", "off")
			large := sized(400, 2400)
			orders := w.open(small + large)
			daemon := w.start()
			w.publish(w.route.Rollbacks(orders[:small])...)
			w.eventually("the small ones are applied", func() bool { return w.rows(dedup.Success) == small })
			unblock := w.hold([]string{"UNLOCK TABLES"}, "LOCK TABLES consumer_log WRITE")
			w.publish(w.padded(orders[small:])...)
			queue := w.config().Queue
			taken := 0
			w.eventually("it has taken what it can", func() bool {
				now := w.broker.Unacked(queue)
				full := now > 0 && now == taken
				taken = now
				return full
			})
			t.Logf("blocked: %d of %d in hand, at most %d MiB", taken, large, peak(t, daemon))
			unblock()
			w.ended(len(orders))
			if most := peak(t, daemon); most > mostMemory {
				t.Errorf("the daemon took %d MiB, want at most %d", most, mostMemory)
			} else {
				t.Logf("at most %d MiB", most)
			}
			w.rest(daemon)
		})
	}
}

// Given bodies that are nearly as large as the whole budget among good messages, then each comes through alone and is a
// letter, and the good ones are applied.
func TestBodiesAsLargeAsTheBudgetComeThroughAlone(t *testing.T) {
	w := newWorld(t, "HTTP_ADDR", "off")
	const huge = 60_000_000
	w.broker.LimitMessages(2 * huge) // RabbitMQ 4 takes 16 MiB at most by default
	orders := w.open(600)
	sent := w.route.Rollbacks(orders)
	for i := range 4 {
		s := w.route.Message(fmt.Sprintf("huge-%d", i), bytes.Repeat([]byte("x"), huge))
		sent = append(sent[:150*i+50], append([]oracle.Sent{{Publishing: s, Fate: oracle.ToDie(dedup.ReasonMalformed)}},
			sent[150*i+50:]...)...)
	}
	w.publish(sent...)
	daemon := w.start()
	w.ended(len(sent))
	most := peak(t, daemon)
	t.Logf("at most %d MiB", most)
	assert.AtMost(t, most, 64+5*huge>>20+100, "the daemon took MiB")
	w.rest(daemon)
}
