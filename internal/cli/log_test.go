package cli

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Given an order that goes back in part, with a conflict, bodies that cannot be read and a message that nobody can
// identify, then each that names it is explained, and lists choose among their rows.
func TestAnOrderIsExplainedByAllThatNamesIt(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	s.play("log", map[string]func(){"a message without a usable key": func() {
		s.broker.Publish("", s.queue, stack.Message{
			MessageId: "k-1\x01", Type: "stock.rollback", Body: []byte(`{"order_sn":"A-1"}`), DeliveryMode: 2,
		})
	}})
}

// Given a schema without the tables of stock, as a program with a handler of its own has it, then its messages are
// explained all the same.
func TestAMessageIsExplainedWhereNoStockIs(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	s.exec("DROP TABLE stock_reservation", "INSERT INTO consumer_log (group_name, msg_tag, msg_key, consumer_status, "+
		"consumer_times, consumer_timestamp, created_at) VALUES ('stock-rollback', 't', 'b1', 1, 1, UTC_TIMESTAMP(6), "+
		"UTC_TIMESTAMP(6))")
	stdout, stderr, code := runCLI(t, s.environ, "", "log", "explain", "b1")
	if code != exitDone || !strings.Contains(stdout, "success") || !strings.Contains(stdout+stderr, "no table of them") {
		t.Errorf("exit %d: %s%s", code, stdout, stderr)
	}
}

func TestALongListGoesOnWhereItEnded(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	var rows []string
	for i := range 2105 { // more than two pages
		rows = append(rows, fmt.Sprintf("('stock-rollback', 't', '%d', %d, 1, '2026-11-21 12:00:00', UTC_TIMESTAMP(6), "+
			"IF(%[2]d = 3, 'exhausted', NULL))", i, i%5))
	}
	s.exec("INSERT INTO consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times, " +
		"consumer_timestamp, created_at, reason) VALUES " + strings.Join(rows, ","))
	list := func(of string, args ...string) (keys []string, after string) {
		t.Helper()
		stdout, stderr, code := runCLI(t, s.environ, "", append([]string{of, "list", "-o", "json"}, args...)...)
		var page []struct{ Key, Status string }
		if err := json.Unmarshal([]byte(stdout), &page); err != nil || code != exitDone {
			t.Fatalf("exit %d, %v: %s", code, err, stderr)
		}
		for _, row := range page {
			keys = append(keys, row.Key+row.Status)
		}
		if m := regexp.MustCompile(`this goes on: --after (\S+)`).FindStringSubmatch(stderr); m != nil {
			after = m[1]
		}
		return keys, after
	}
	for of, all := range map[string]int{"log": 2105, "dlq": 2105 / 5} { // each fifth row is dead
		if keys, after := list(of, "--limit", "0"); len(keys) != all || after != "" {
			t.Errorf("%s: %d rows, after %q", of, len(keys), after)
		}
		seen := map[string]bool{}
		for keys, after := list(of, "--limit", "200"); ; keys, after = list(of, "--limit", "200", "--after", after) {
			for _, key := range keys {
				seen[key] = true
			}
			if after == "" {
				break
			}
		}
		assert.Is(t, len(seen), all, "%s, page by page: different rows", of)
	}
	keys, _ := list("log", "--status", "failed", "--limit", "7")
	if len(keys) != 7 || !strings.HasSuffix(keys[0], "failed") {
		t.Errorf("7 failed ones: %+v", keys)
	}
}

// Given a message and reservations that it gave back, then their story is told in order of time.
func TestTheStoryIsInOrderOfTime(t *testing.T) { played(t, "story") }
