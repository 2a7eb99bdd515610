package daemon_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/shop"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Given MySQL's clock jumps 40 days ahead, over the retention, and comes back: then no row is deleted that is seconds
// old, so what is sent again is a duplicate; what failed meanwhile, and what died, goes on when it would have anyhow;
// and /readyz says that the clocks differ for as long as they do.
func TestTheClockOfMySQLJumpsAndComesBack(t *testing.T) {
	if os.Getenv("ROLLBACKD_TEST_CLOCK") == "" {
		t.Skip("make test ONLY=clock runs this: a server asks for the time so often that a false clock costs a processor")
	}
	t.Parallel()
	const jump = 40 * 24 * time.Hour
	server := stack.Own(t, stack.Options{Only: []stack.Kind{stack.KindMySQL}, MySQLClock: true})
	setClock := func(offset time.Duration) {
		t.Helper()
		require.OK(t, server.SetClock(offset))
	}
	w := newWorld(t, "MYSQL_DSN", server.Database(t), "LANES", "1", "MAX_ATTEMPTS", "3", "RETRY_DELAYS", "1s,3s",
		"COMPENSATE_AFTER", "2s", "MAX_DEAD_RATE", "100/60s", "OUTBOX", "on")
	w.exec("INSERT INTO rollbackd_outbox (msg_tag, msg_key, body, next_at, parked_at) " +
		"VALUES ('t', 'k', '', '9999-12-31', UTC_TIMESTAMP(6))")
	orders := w.open(10)
	late := shop.Orders(w.rng, "late", 2, skus) // whose reservations come later
	w.remember()
	applied := w.route.Rollbacks(orders)
	w.publish(applied...)
	first := w.start()
	w.eventually("the first are applied", func() bool { return w.rows(dedup.Success) == len(orders) })
	w.stop(first)

	setClock(jump)
	daemon := w.start() // which looks for old rows within ten seconds
	clocks := func() bool {
		_, r := w.readyz(daemon)
		return strings.Contains(strings.Join(r.Degraded, "; "), "clocks do not agree")
	}
	w.eventually("/readyz says that the clocks differ", clocks)
	w.eventually("retention says that it does nothing", func() bool {
		said := w.logs.Tail(1000)
		return strings.Contains(said, "old rows of the consumer log could not be deleted") &&
			strings.Contains(said, "old messages of the outbox could not be deleted")
	})
	w.publish(w.route.Rollback(late[0]))
	w.eventually("it has died in the future", func() bool { return w.rows(dedup.Dead) == 1 })
	w.publish(w.route.Rollback(late[1]))
	w.eventually("it has failed in the future", func() bool { return w.rows(dedup.Failed) == 1 })
	setClock(0)
	const ahead = "SELECT COUNT(*) FROM consumer_log WHERE consumer_timestamp > UTC_TIMESTAMP(6) + INTERVAL 30 DAY"
	require.Is(t, w.count(ahead), 2, "rows are ahead of the clock")
	assert.Is(t, w.rows(dedup.Success), len(orders), "rows in success are left")
	is(w, "parked messages of the outbox", w.waiting(), 1)
	require.OK(t, shop.SeedReserved(t.Context(), w.db, late))
	w.publish(applied...) // a re-send
	w.eventually("all are applied", func() bool { return w.rows(dedup.Success) == len(orders)+len(late) })
	w.eventually("/readyz says no more that the clocks differ", func() bool { return !clocks() })
	w.ended(len(orders) + len(late))
	w.stop(daemon)
	w.judge(oracle.Allowance{Attempts: 3}) // those that had no reservation yet
}
