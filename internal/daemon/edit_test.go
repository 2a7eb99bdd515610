package daemon_test

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// Given two letters whose bodies name the wrong order, and two daemons with an outbox, when one is edited on the page,
// then that shows what differs and what the handler would do, its form posted to both daemons sends one message, the
// stock of the right order is back once, the letter never runs, not even when it is replayed with --discarded, and
// pages and explain of either lead to the other; and a command edits the other letter. Both say if the outbox is late.
func TestAnEditedLetterIsSentAndTheOriginalNeverRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "MAX_ATTEMPTS", "1", "MAX_DEAD_RATE", "off", "OUTBOX", "on", "ADMIN_TOKENS_FILE", twoTokens(t))
	orders := w.open(2)
	sent := w.route.Rollbacks(orders)
	for i := range sent {
		sent[i].Message.Body = []byte(strings.ReplaceAll(string(sent[i].Message.Body), orders[i].SN, "wrong-"+orders[i].SN))
	}
	first, second := w.start(), w.start()
	w.publish(sent...)
	w.eventually("both are dead", func() bool { return w.rows(dedup.Dead) == 2 })
	run := func(args ...string) string {
		t.Helper()
		return require.Get(program.Run(t.Context(), program.Shared(t), append(os.Environ(), w.environ()...), args...))(t)
	}
	key, file := sent[0].Message.MessageID, filepath.Join(t.TempDir(), "letter.ndjson")
	run("dlq", "export", "--key", key, "-o", file)
	at := url.Values{"key": {key}, "tag": {"stock.rollback"}}

	w.eventually("the message's page leads to the one that edits it", func() bool {
		return strings.Contains(asks(t, first, anna, "/message?"+at.Encode(), nil).page, "/letter/edit?")
	})
	sees := asks(t, first, rita, "/letter/edit?"+at.Encode(), nil)
	assert.Has(t, sees.page, "wrong-"+orders[0].SN, "the page that edits lacks")
	form := url.Values{"key": at["key"], "tag": at["tag"], "headers": {""}, "body": {string(orders[0].Body()) + "\r\n"}}
	assert.Is(t, asks(t, first, rita, "/letter/edit", form).status, http.StatusForbidden, "who may look edits it: HTTP")
	sees = asks(t, first, anna, "/letter/edit", form)
	for _, want := range []string{"would be applied", "stock_reservation ", "wrong-" + orders[0].SN, "/edited-1"} {
		assert.Has(t, sees.page, want, "the page of what would happen lacks")
	}
	if w.rows(dedup.Dead) != 2 || w.waiting() != 0 || w.count("SELECT COUNT(*) FROM oracle_release") != 0 {
		t.Error("the preview has changed something")
	}
	form = url.Values{"token": {field(t, sees.page, "token")}, "set": {field(t, sees.page, "set")}, "why": {"the order"}}
	answers := make([]said, 4)
	var posting sync.WaitGroup
	for i := range answers {
		posting.Go(func() {
			answers[i] = asks(t, []*program.Process{first, second}[i%2], anna, "/letter/edit/send", form)
		})
	}
	posting.Wait()
	for _, a := range answers {
		if a.status != http.StatusSeeOther || a.location != answers[0].location {
			t.Errorf("one form leads to %q, HTTP %d, and to %q\n%s", a.location, a.status, answers[0].location, a.page)
		}
	}
	w.eventually("the edited one is applied", func() bool { return w.rows(dedup.Success) == 1 })
	assert.Has(t, run("dlq", "replay", "--discarded", "--from", file), "had ended already", "a replay says of the letter")

	body := filepath.Join(t.TempDir(), "body.json")
	require.OK(t, os.WriteFile(body, orders[1].Body(), 0o600))
	w.exec("INSERT INTO rollbackd_outbox (msg_key, body, due_at, next_at, owner) VALUES ('held', '{}', " +
		"UTC_TIMESTAMP(6) - INTERVAL 2 MINUTE, UTC_TIMESTAMP(6) + INTERVAL 4 MINUTE, 'a relay that is gone')")
	form = url.Values{"key": {sent[1].Message.MessageID}, "tag": at["tag"], "body": {string(orders[1].Body())}}
	w.eventually("the page says that the outbox is late", func() bool {
		return strings.Contains(asks(t, first, anna, "/letter/edit", form).page, "<b>The outbox is late</b>")
	})
	says := run("dlq", "edit", sent[1].Message.MessageID, "--body", body, "--why", "the order")
	assert.Has(t, says, "put into the outbox", "the command does not say")
	assert.Has(t, says, "The outbox is late", "the command does not say")
	w.eventually("both edited ones are applied, the letters gone", func() bool {
		return w.rows(dedup.Success) == 2 && w.rows(dedup.Discarded) == 2 && w.broker.Depth(w.config().Queue+".dead") == 0
	})
	for of, other := range map[string]string{key: key + "/edited-1", key + "/edited-1": key} {
		at := url.Values{"key": {other}, "tag": {"stock.rollback"}}
		assert.Has(t, asks(t, second, rita, "/message?key="+url.QueryEscape(of), nil).page, fmt.Sprintf(`href="/message?%s"`,
			strings.ReplaceAll(at.Encode(), "&", "&amp;")), "the page of %s does not lead to %s", of, other)
		assert.Has(t, run("log", "explain", of), "key "+other, "explain of %s does not name %s", of, other)
	}
	is(w, "reservations given back", w.count("SELECT COUNT(DISTINCT order_sn) FROM stock_reservation WHERE status = 2"), 2)
	is(w, "reservations given back twice", w.count("SELECT COUNT(*) FROM (SELECT order_sn, sku_id FROM oracle_release "+
		"GROUP BY order_sn, sku_id HAVING COUNT(*) > 1) r"), 0)
	w.stop(first, second)
}
