package daemon_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/shop"
)

// Given the same messages, a fifth of them twice and some of them bad, when a daemon consumes them one by one and
// another in batches of 500, then stock, reservations and the fate of every message are the same.
func TestBatchSizeChangesNothingButSpeed(t *testing.T) {
	t.Parallel()
	orders := sized(1_000, 20_000)
	type end struct {
		stock        oracle.Stock
		reservations map[string]string
		fates        map[string]string
	}
	run := func(t *testing.T, batch int) end {
		w := newWorld(t, "BATCH_SIZE", itoa(batch), "PREFETCH", "1000")
		w.rng = rand.New(rand.NewPCG(20, 20)) // the same orders, messages and sequence in both runs
		reserved := w.open(orders + 10)
		good, bad := w.route.Rollbacks(reserved[:orders]), badRollbacks(w.route, reserved[orders:])
		messages := len(good) + len(bad)
		sent := shop.Repeat(w.rng, append(good, bad...), .2)
		daemon := w.start()
		began := time.Now()
		w.publish(sent...)
		w.ended(messages)
		took := time.Since(began)
		w.stop(daemon)
		report := w.judge(oracle.Allowance{})
		t.Logf("BATCH_SIZE %d: %d deliveries in %v, %.0f/s", batch, len(sent), took.Round(time.Millisecond),
			float64(len(sent))/took.Seconds())
		assert.Is(t, report.DuplicatesAbsorbed, len(sent)-messages, "duplicates absorbed")
		return end{
			report.After,
			w.pairs("SELECT CONCAT(order_sn, '/', sku_id), CONCAT_WS(' ', quantity, status, rollback_tag, rollback_key) FROM " +
				"stock_reservation"),
			w.pairs("SELECT CONCAT(group_name, '/', msg_tag, '/', msg_key), CONCAT_WS(' ', consumer_status, reason) FROM " +
				"consumer_log"),
		}
	}
	var ends []end
	for _, batch := range []int{1, 500} {
		t.Run(fmt.Sprintf("batch of %d", batch), func(t *testing.T) { ends = append(ends, run(t, batch)) })
	}
	if len(ends) < 2 {
		t.Fatal("a run did not end")
	}
	for what, diff := range map[string]string{
		"stock": cmp.Diff(ends[0].stock, ends[1].stock), "reservations": cmp.Diff(ends[0].reservations, ends[1].reservations),
		"fates": cmp.Diff(ends[0].fates, ends[1].fates),
	} {
		assert.Is(t, diff, "", "%s differ between BATCH_SIZE 1 (-) and 500 (+)", what)
	}
}

// badRollbacks are messages that no retry can help: each is dead after its first attempt or before it. held are orders
// that no good message gives back.
func badRollbacks(r shop.Route, held []shop.Order) []oracle.Sent {
	var sent []oracle.Sent
	for _, o := range held {
		o.Items[0].Quantity += 1000
		sent = append(sent,
			oracle.Sent{Publishing: r.Message(o.Key(), o.Body()), Fate: oracle.ToDie(dedup.ReasonPermanent)},
			oracle.Sent{
				Publishing: r.Message("malformed-"+o.SN, []byte(`{"order_sn":`)), Fate: oracle.ToDie(dedup.ReasonMalformed),
			})
	}
	return sent
}

// pairs reads two columns as text.
func (w *world) pairs(query string) map[string]string {
	w.t.Helper()
	rows := require.Get(w.db.QueryContext(w.t.Context(), query))(w.t)
	defer rows.Close()
	found := map[string]string{}
	for rows.Next() {
		var k, v string
		require.OK(w.t, rows.Scan(&k, &v))
		found[k] = v
	}
	require.OK(w.t, rows.Err())
	return found
}
