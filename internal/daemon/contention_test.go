package daemon_test

import (
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Given a shop that inserts reservations without a lock of their order, when one comes between a rollback's look at the
// order and its release, then that is no failed attempt: the rollback looks again, and gives all of it back.
func TestAReservationThatComesMeanwhileCostsNoAttempt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "LANES", "1")
	w.open(1)
	const reserve = "INSERT INTO stock_reservation (order_sn, sku_id, quantity, status, updated_at) VALUES ('late', ?, " +
		"2, 1, UTC_TIMESTAMP(6))"
	w.exec(reserve, 5)
	w.exec(reserve, 6)
	w.exec("INSERT INTO consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times, consumer_timestamp, "+
		"created_at)"+
		" VALUES (?, 'stock.rollback', 'late', 2, 1, UTC_TIMESTAMP(6) - INTERVAL 1 HOUR, UTC_TIMESTAMP(6))", w.config().Group)
	comes := w.hold([]string{strings.Replace(reserve, "?", "3", 1), "COMMIT"}, "BEGIN",
		"UPDATE stock_reservation SET updated_at = UTC_TIMESTAMP(6) WHERE order_sn = 'late' AND sku_id = 6")
	daemon := w.start()
	w.publish(oracle.Sent{Publishing: w.route.Message("late", []byte(`{"order_sn":"late","reason":"cancelled"}`))})
	w.eventually("the rollback has passed sku 5 and waits for sku 6", func() bool {
		return w.count("SELECT COUNT(*) FROM "+stack.Processes+" WHERE db = DATABASE() AND info LIKE 'SELECT "+
			"order_sn, sku_id%FOR UPDATE'") > 0
	})
	comes()
	w.ended(1)
	w.stop(daemon)
	is(w, "of 3 reservations are given back",
		w.count("SELECT COUNT(*) FROM stock_reservation WHERE order_sn = 'late' AND status = 2"), 3)
	is(w, "attempts",
		w.count("SELECT consumer_times FROM consumer_log WHERE consumer_status = ?", int(dedup.Success)), 2)
}
