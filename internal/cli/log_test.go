package cli

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestAnOrderIsExplainedByAllThatNamesIt(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	s.exec(
		"INSERT INTO stock (sku_id, amount, version) VALUES (1, 0, 0), (2, 0, 0)",
		"INSERT INTO stock_reservation (order_sn, sku_id, quantity, status, updated_at) VALUES ('A-1', 1, 2, 1, "+
			"UTC_TIMESTAMP(6)), ('A-1', 2, 3, 1, UTC_TIMESTAMP(6)), ('B-1', 1, 7, 3, UTC_TIMESTAMP(6))",
	)
	// given an order that goes back in part, with a conflict, two bodies that cannot be read, and one that nobody can
	// identify
	stop := s.daemon()
	s.run(`{"id":"k-1","order_sn":"A-1","items":[{"sku_id":1,"quantity":2}]}`+"\n", "publish", "--key-field", "id")
	s.eventually(1, "SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 1")
	for i, body := range []string{ // one after the other, so that the list has their order
		`{"id":"k-1","order_sn":"A-1","items":[{"sku_id":2,"quantity":3}]}`, `{"id":"k-3","order_sn":"A-1","items":[]}`,
		`{"id":"k-4","order_sn":"\u0041-1","items":[{"sku_id":2,"quantity":99}]}`, `{"id":"k-5","order_sn":"A-12"}`,
	} {
		s.run(body+"\n", "publish", "--key-field", "id")
		s.eventually(i+1, "SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 3")
	}
	s.broker.Publish("", s.queue, stack.Message{
		MessageId: "k-1\x01", Type: "stock.rollback", Body: []byte(`{"order_sn":"A-1"}`), DeliveryMode: 2,
	})
	s.eventually(5, "SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 3")
	stop()
	s.script.Reset()
	for _, args := range [][]string{
		{"--order", "A-1"},
		{"k-1"},
		{"k-1", "--tag", "stock.rollback", "--count-letters"},
		{"k-3", "--count-letters"},
		{"--order", "B-1", "-o", "json"},
		{"--order", "none"},
	} {
		s.run("", append([]string{"log", "explain"}, args...)...)
	}
	for _, args := range [][]string{
		{"--status", "success,dead", "--tag", "stock.rollback"},
		{"--key", "k-1", "--key", "k-3", "-o", "json"},
		{"--since", "2026-01-01", "--until", "2026-01-02"},
		{"--after", "nonsense"},
	} {
		s.run("", append([]string{"log", "list"}, args...)...)
	}
	s.golden("log")
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
		if len(seen) != all {
			t.Errorf("%s, page by page: %d different rows, want all %d", of, len(seen), all)
		}
	}
	keys, _ := list("log", "--status", "failed", "--limit", "7")
	if len(keys) != 7 || !strings.HasSuffix(keys[0], "failed") {
		t.Errorf("7 failed ones: %+v", keys)
	}
}

func TestTheStoryIsInOrderOfTime(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	s.exec(
		"INSERT INTO stock_reservation (order_sn, sku_id, quantity, status, rollback_tag, rollback_key, updated_at) VALUES "+
			"('A', 1, 2, 2, 't', 'k', '2026-11-21 12:00:01'), ('A', 0, 0, 4, 't', 'k', '2026-11-21 12:00:01.2'), ('A', 2, 1, "+
			"3, NULL, NULL, '2026-11-21 11:00:00')",
		"INSERT INTO consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times, consumer_timestamp, "+
			"created_at) VALUES ('stock-rollback', 't', 'k', 1, 1, '2026-11-21 12:00:01.5', '2026-11-21 12:00:01.5')",
	)
	s.run("", "log", "explain", "k") // found by a search: the key is not the order's number
	s.run("", "log", "explain", "--order", "A")
	s.golden("story")
}
