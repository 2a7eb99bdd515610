package daemon_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/poll"
)

// events lets a relay send what is in the outbox, and reads the queue that the events come to: their bodies by key.
func (w *world) events() map[string][]string {
	w.t.Helper()
	queue := w.broker.Name("events")
	w.broker.DeclareQueue(queue, map[string]any{"x-queue-type": "quorum"})
	w.broker.Bind(queue, "stock.released", w.route.Exchange)
	stop := w.relay()
	w.eventually("the outbox is empty", func() bool { return w.waiting() == 0 })
	stop()
	came := map[string][]string{}
	poll.Until(w.t, "nothing is left in the queue", func() bool {
		d, more := w.broker.Get(queue)
		if more {
			came[d.Type+" "+d.MessageId] = append(came[d.Type+" "+d.MessageId], string(d.Body))
		}
		return !more
	})
	return came
}

// Given orders of which two messages tell under two keys, each sent twice, some before their reservation, and some that
// cannot be applied; a daemon that dies with a batch written; two that go on; and a replay of what died: then each
// message that gave something back has one event in the queue, which says what that was, and no other has any. An event
// that is led back to the daemons changes nothing.
func TestEachReleaseIsToldByOneEvent(t *testing.T) {
	t.Parallel()
	for _, point := range []consumer.Point{consumer.PointEffect, consumer.PointCommitted} {
		t.Run(string(point), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "EMIT", "stock.released", "LOCK_TTL", "1s", "LEASE", "4s", "HANDLER_TIMEOUT", "2s", "LANES", "2",
				"BATCH_SIZE", "50", "MAX_ATTEMPTS", "2", "RETRY_DELAYS", "100ms", "MAX_DEAD_RATE", "off")
			orders := w.open(110)
			held, late := orders[:10], orders[10:30]
			for _, o := range late {
				w.exec("UPDATE stock_reservation SET order_sn = CONCAT('x-', order_sn) WHERE order_sn = ?", o.SN)
			}
			sent := w.route.Rollbacks(orders[10:])
			for _, o := range orders[10:] {
				again := w.route.Message("again-"+o.SN, o.Body())
				sent = append(sent, oracle.Sent{Publishing: again, Fate: oracle.ToBeApplied(), Order: o.SN})
			}
			sent = append(sent, badRollbacks(w.route, held)...)
			w.mixed(append(slices.Clone(sent), sent...))

			w.exits(w.child(crashEnv+"="+string(point)), killed, time.Minute)
			one, other := w.start(), w.start()
			w.ended(len(sent))
			w.exec("UPDATE stock_reservation SET order_sn = SUBSTRING(order_sn, 3) WHERE order_sn LIKE 'x-%'")
			w.exits(w.command("dlq", "replay", "--all", "--no-wait"), 0, time.Minute)
			w.eventually("what came too early is applied", func() bool {
				return w.rows(dedup.Success) == len(sent)-2*len(held)
			})
			w.ended(len(sent))

			want := w.pairs("SELECT CONCAT('stock.released ', rollback_tag, '/', rollback_key), " +
				`CONCAT('{"order_sn":"', order_sn, '","items":[', GROUP_CONCAT('{"sku_id":', sku_id, ',"quantity":', quantity,
				'}' ORDER BY sku_id), '],"message":{"tag":"', rollback_tag, '","key":"', rollback_key, '"}}')
				FROM stock_reservation WHERE status = 2 GROUP BY order_sn, rollback_tag, rollback_key`)
			got := w.events()
			missing, twice := 0, 0
			for key, body := range want {
				if !slices.Contains(got[key], body) {
					missing++
				}
				twice += max(0, len(got[key])-1)
			}
			if missing > 0 || twice > 0 || len(got) != len(want) || len(want) != 100 {
				t.Errorf("%d releases: %d events missing, %d doubled, %d in all; want\n%v\ngot\n%v", len(want), missing, twice,
					len(got), want, got)
			}

			var misled []oracle.Sent
			for _, key := range slices.Sorted(maps.Keys(got))[:5] {
				back := w.route.Message("misled "+key, []byte(got[key][0]))
				misled = append(misled, oracle.Sent{Publishing: back, Fate: oracle.ToBeApplied()})
			}
			w.publish(misled...)
			w.ended(len(sent) + len(misled))
			is(w, "events of events", w.waiting(), 0)
			w.stop(one, other)
			w.judge(oracle.Allowance{Attempts: 4})
		})
	}
}
