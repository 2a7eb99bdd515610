package pages

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/outbox"
)

// outbox makes one with two parked messages.
func (w *world) outbox() {
	w.t.Helper()
	db := require.First(dedup.Open(w.t.Context(), w.dsn, dedup.OpenOptions{}))(w.t)
	require.OK(w.t, outbox.Migrate(w.t.Context(), db))
	pool, _ := db.DB() // which was just used
	_ = pool.Close()
	for _, key := range []string{"o-1", hostile} {
		w.exec("INSERT INTO rollbackd_outbox (msg_tag, msg_key, body, headers, owner, tries, failed_at, parked_at, reason, "+
			"next_at) VALUES ('t', ?, '{\"sn\":\"A-1\",\"note\":\"secret\"}', '{\"x\":\"secret\"}', 'c', 3, UTC_TIMESTAMP(6), "+
			"UTC_TIMESTAMP(6), ?, '9999-12-31')", key, hostile)
	}
	w.exec("INSERT INTO rollbackd_outbox (msg_tag, msg_key, body, due_at) VALUES ('t', 'late', '{}', " +
		"UTC_TIMESTAMP(6) - INTERVAL 1 HOUR)")
}

// Given an outbox with parked messages, strangers' texts in them, and bodies that are hidden; then a person who may act
// finds them from the overview, sees what a retry would do, and asks for it, once.
func TestAPersonFindsParkedMessagesAndRetriesThem(t *testing.T) {
	w := newWorld(t, "", people(t), view.Hide{Pointers: [][]string{{"note"}}})
	w.outbox()
	poll.Until(t, "the overview says what needs a person", func() bool {
		page := w.ask(rita, "/", nil).page
		return strings.Contains(page, "2 messages are parked in the outbox") &&
			strings.Contains(page, "The outbox is late") && strings.Contains(page, ">Outbox<")
	})
	for path, texts := range map[string][]string{
		"/outbox":                        {"o-1", "late", "refused"},
		"/outbox?state=parked&since=1h":  {"o-1", "!>late<"},
		"/outbox/message?key=o-1&tag=t":  {"A-1", "(hidden)", "perhaps, under claim c", "!secret"},
		"/message?key=o-1":               {"parked in the outbox", "(hidden)", "!secret"},
		"/outbox/message?key=none":       {"has no message with this key"},
		"/outbox/act?act=outbox_drop":    {"<b>2</b> messages would be deleted", "Take what still waits too"},
		"/outbox/act?act=outbox_retry":   {"<b>2</b> messages would be sent now"},
		"/outbox/act?act=replay&key=o-1": {"want outbox_retry or outbox_drop"},
	} {
		a := w.ask(rita, path, nil)
		w.holds(path, a, a.status, append(texts, "!<script>alert", "!<img src=x")...)
	}
	sent := form(t, w.ask(anna, "/outbox/act?act=outbox_retry&key=o-1", nil).page, "/outbox/act")
	sent.Set("why", "it is bound again")
	first, again := w.ask(anna, "/outbox/act", sent), w.ask(anna, "/outbox/act", sent)
	require.That(t, first.status == http.StatusSeeOther && first.location == again.location, "HTTP %d to %s, then %s:\n%s",
		first.status, first.location, again.location, first.page)
	a, err := w.desk.Act(t.Context(), strings.TrimPrefix(first.location, "/acts/"))
	assert.That(t, err == nil && a.Kind == operator.KindOutboxRetry && a.Actor == "anna" && a.Why == "it is bound again",
		"the record says %+v, %v", a, err)
	assert.Has(t, w.ask(rita, first.location, nil).page, "--key o-1", "the page of the act")
}

// Given a SELECT of orders whose messages should have come; when a person who may act has the daemons look for them,
// then the act's page says where they are, strangers' texts as texts.
func TestAPersonLooksForWhatShouldHaveCome(t *testing.T) {
	w := newWorld(t, "", people(t), view.Hide{})
	w.exec("CREATE TABLE orders (sn VARBINARY(200) PRIMARY KEY)")
	for _, sn := range []string{"A-1", hostileOrder} {
		w.exec("INSERT INTO orders VALUES (?)", sn)
		w.dead(sn, "{}", hostile, dedup.ReasonPermanent)
	}
	w.holds("a schema without an outbox", w.ask(rita, "/outbox", nil), http.StatusNotFound)
	asked := form(t, w.ask(anna, "/reconcile", nil).page, "/reconcile/expected")
	asked.Set("why", "a backup was lost")
	got := w.ask(anna, "/reconcile/expected", asked)
	require.Is(t, got.status, http.StatusSeeOther, "HTTP: %s", got.page)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { w.desk.Work(ctx); close(ended) }()
	poll.Until(t, "the look ends", func() bool {
		a, err := w.desk.Act(t.Context(), strings.TrimPrefix(got.location, "/acts/"))
		return err == nil && a.State == operator.Done
	})
	stop()
	<-ended
	w.holds("the page of the act", w.ask(rita, got.location, nil), http.StatusOK, "names 2 messages", "has a dead letter",
		">A-1<", "permanent: ", "a backup was lost", "!<script>alert", "!<img src=x")
}
