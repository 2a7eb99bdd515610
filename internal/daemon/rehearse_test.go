package daemon_test

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// checksums are those of all tables but those in which acts are written down, and what daemons write from time to time
// whatever is asked of them: who keeps house, and the figures of a minute.
func (w *world) checksums() map[string]string {
	w.t.Helper()
	sums := map[string]string{}
	var tables string
	require.OK(w.t, w.db.QueryRowContext(w.t.Context(), "SELECT GROUP_CONCAT(table_name) FROM information_schema.tables "+
		"WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE' AND table_name NOT IN ('consumer_log_act', "+
		"'consumer_log_once', 'consumer_log_minute', 'rollbackd_meta')").Scan(&tables))
	for table := range strings.SplitSeq(tables, ",") {
		var name, sum string
		require.OK(w.t, w.db.QueryRowContext(w.t.Context(), "CHECKSUM TABLE "+table+" EXTENDED").Scan(&name, &sum))
		sums[table] = sum
	}
	return sums
}

// Given dead orders whose reservations are back but for one, and two daemons, when the form of a rehearsal is posted to
// both, then one is done by the running handler, its page and the command say which orders would be applied and what
// would change, no table has changed, and the page leads to the replay, which comes to that.
func TestARehearsalSaysWhatTheReplayThenComesTo(t *testing.T) {
	t.Parallel()
	n := sized(60, 10_000)
	w, orders, both := deadOrders(t, n, 2, "MAX_ATTEMPTS", "1")
	w.exec("UPDATE stock_reservation SET order_sn = CONCAT('x-', order_sn) WHERE order_sn = ?", orders[0].SN)

	sees := asks(t, both[0], anna, "/letters/act?act=replay&tag=stock.rollback", nil)
	card := sees.page[strings.Index(sees.page, `aria-label="Rehearse"`):]
	form := url.Values{"token": {field(t, card, "token")}, "set": {field(t, card, "set")}}
	before := w.checksums() // once a form was issued
	assert.Is(t, asks(t, both[0], rita, "/letters/rehearse", form).status, http.StatusForbidden, "who may look posts it:")
	answers := make([]said, 2)
	began := time.Now()
	var posting sync.WaitGroup
	for i := range answers {
		posting.Go(func() { answers[i] = asks(t, both[i], anna, "/letters/rehearse", form) })
	}
	posting.Wait()
	if answers[0].location == "" || answers[0].location != answers[1].location {
		t.Fatalf("one form leads to %+v and %+v", answers[0], answers[1])
	}
	var act said
	w.eventually("the rehearsal is done", func() bool {
		act = asks(t, both[1], rita, answers[0].location, nil)
		return strings.Contains(act.page, `<span class="tag success">done</span>`)
	})
	took := time.Since(began)
	t.Logf("%d letters were rehearsed within %v", n, took.Round(10*time.Millisecond))
	if took > time.Minute {
		t.Error("that is over a minute")
	}
	for _, want := range []string{"would fail", "would be applied", "no reservation", "stock_reservation ",
		"Nothing was written", ">" + map[int]string{60: "59", 10_000: "9,999"}[n] + "<"} {
		assert.Has(t, act.page, want, "the page of the rehearsal lacks")
	}
	if after := w.checksums(); !maps.Equal(before, after) {
		t.Errorf("tables have changed: %v, were %v", after, before)
	}
	out := require.Get(program.Run(t.Context(), program.Shared(t), append(os.Environ(), w.environ()...), "dlq", "replay",
		"--all", "--rehearse"))(t)
	for _, want := range []string{"would fail", fmt.Sprint(n - 1), "would be applied", "this was a rehearsal"} {
		assert.Has(t, out, want, "the command does not say")
	}

	at := act.page[strings.Index(act.page, "/letters/act?"):]
	to := strings.ReplaceAll(at[:strings.Index(at, `"`)], "&amp;", "&")
	sees = asks(t, both[0], anna, to, nil)
	form = url.Values{"token": {field(t, sees.page, "token")}, "set": {field(t, sees.page, "set")}}
	assert.Is(t, asks(t, both[0], anna, "/letters/act", form).status, http.StatusSeeOther, "the replay")
	w.eventually("all but one are applied", func() bool {
		return w.rows(dedup.Success) == n-1 && w.rows(dedup.Dead) == 1
	})
	w.exec("UPDATE stock_reservation SET order_sn = SUBSTRING(order_sn, 3) WHERE order_sn LIKE 'x-%'")
	w.eventually("the last one is replayed", func() bool { // its first letter may lie there still, and then it is told so
		_, err := program.Run(t.Context(), program.Shared(t), append(os.Environ(), w.environ()...), "dlq", "replay", "--all",
			"--no-wait")
		return err == nil
	})
	w.eventually("all are applied", func() bool { return w.rows(dedup.Success) == n })
	w.rest(both...)
}

// Given a handler that calls a service, when a rehearsal is asked for, then the command says that it cannot be.
func TestAHandlerThatCallsAServiceIsNotRehearsed(t *testing.T) {
	t.Parallel()
	service, settings := startStock(t)
	w := newWorld(t, append(settings, "MAX_ATTEMPTS", "1", "MAX_DEAD_RATE", "off")...)
	service.answerWith(http.StatusUnprocessableEntity)
	w.publish(w.route.Rollbacks(w.open(1))...)
	d := w.start()
	w.eventually("it is dead", func() bool { return w.rows(dedup.Dead) == 1 })
	out, err := program.Run(t.Context(), program.Shared(t), append(os.Environ(), w.environ()...), "dlq", "replay", "--all",
		"--rehearse")
	if err == nil || !strings.Contains(out, "the handler acts outside MySQL") {
		t.Errorf("%v: %s", err, out)
	}
	w.stop(d)
}
