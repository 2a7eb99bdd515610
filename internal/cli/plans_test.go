package cli

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Given tables with some thousand rows each, on a server that writes down every statement, when a daemon works beside
// them with its lock in the same database, and people ask for all that there is with commands, pages and the API, then
// no statement reads a table of the program from end to end, on MariaDB and MySQL.
func TestNoStatementOfTheProgramReadsAWholeTable(t *testing.T) {
	addr := stack.FreeAddr(t)
	s := newShell(t, "ROLLBACKD_LOCK=mysql", "ROLLBACKD_HTTP_ADDR="+addr, "ROLLBACKD_LOG_RETENTION=240h",
		"ROLLBACKD_COMPENSATE_AFTER=1h", "ROLLBACKD_OUTBOX=on")
	server := stack.OwnMySQL(t)
	s.dsn = server.Database(t)
	s.set("MYSQL_DSN=" + s.dsn)
	s.run("", "migrate")
	fill := func(into, values string) {
		t.Helper()
		var rows []string
		for i := range 3000 {
			rows = append(rows, "("+strings.ReplaceAll(values, "#", fmt.Sprint(i))+")")
		}
		s.exec("INSERT INTO " + into + " VALUES " + strings.Join(rows, ","))
	}
	then := "UTC_TIMESTAMP(6) - INTERVAL # MINUTE"
	fill("consumer_log (group_name, msg_tag, msg_key, msg_body, properties, body_hash, consumer_status, consumer_times, "+
		"consumer_timestamp, created_at, dead_at, reason, remark)", "'stock-rollback', 'stock.rollback', 'O-#', '{}', '{}', "+
		"UNHEX(SHA2('{}', 256)), ELT(1 + # % 10, 3, 3, 4, 2, 0, 1, 1, 1, 1, 1), 1, "+then+", "+then+", IF(# % 10 < 2, "+then+
		", NULL), IF(# % 10 < 2, 'exhausted', NULL), 'no stock of shelf #'")
	fill("consumer_log_event (group_name, msg_tag, msg_key, `at`, `to`, attempt, replays, `by`)",
		"'stock-rollback', 'stock.rollback', 'O-#', "+then+", 1, 1, 0, 'them'")
	fill("consumer_log_act (id, group_name, queue, kind, state, work, actor, request, created_at)",
		"UUID(), IF(# % 20 = 0, 'stock-rollback', 'other'), '"+s.queue+"', 'replay', 'done', 0, 'them', '{}', "+then)
	fill("consumer_log_once (group_name, actor, name, act_id, state, created_at)",
		"'stock-rollback', 'them', 'key-#', UUID(), 2, "+then)
	fill("consumer_log_minute", "'stock-rollback', 'other', TIMESTAMPDIFF(MINUTE, '1970-01-01', UTC_TIMESTAMP()) - #"+
		strings.Repeat(", 0", 29)+", NULL, NULL")
	fill("rollbackd_lock (name, value, expires_at)", "'name-#', 'done', "+then)
	s.exec(classicTable)
	fill("trade_mq_consumer_log", "'0A1B', 'cancel_group', 'cancel', 'C-#', '{}', # % 3, 1, '2026-11-01 10:00:00', NULL")
	fill("stock (sku_id, amount)", "#, 10")
	fill("stock_reservation (order_sn, sku_id, quantity, status, updated_at)", "'O-#', #, 1, 1 + # % 4, "+then)
	fill("rollbackd_outbox (msg_tag, msg_key, body, due_at)",
		"'t', 'later-#', 'x', UTC_TIMESTAMP(6) + INTERVAL # + 60 MINUTE")
	tables := []string{"consumer_log", "consumer_log_event", "consumer_log_act", "consumer_log_once",
		"consumer_log_minute", "rollbackd_lock", "rollbackd_outbox", "stock", "stock_reservation", "trade_mq_consumer_log"}
	s.exec("ANALYZE TABLE " + strings.Join(tables, ", "))
	server.KeepStatements(t)

	// when a daemon applies, refuses, fails and files
	stop := s.daemon()
	s.run("{\"order_sn\":\"O-0\"}\n{\"order_sn\":\"O-4\"}\n{\"order_sn\":\"O-4\"}\n{\"order_sn\":\"none\"}\n{\"n\":1}\n",
		"publish", "--key-field", "order_sn")
	done := `/* the test's */ SELECT COUNT(*) FROM consumer_log WHERE msg_key = "none" AND consumer_status = 3`
	s.eventually(1, done)
	// and people ask by commands
	const takeOver = "migrate --from trade_mq_consumer_log --map-group cancel_group=stock-rollback " +
		"--map-tag cancel=stock.rollback"
	for _, args := range []string{
		"log list --limit 5", "log list --status processing,failed --until 1h", "log list --key O-7 --tag stock.rollback",
		"log explain O-7", "log explain --order O-7", "log explain none", "log prune --older-than 240h --dry-run",
		"log prune --older-than 240h", "dlq list --limit 5", "dlq list --by reason --since 24h", "dlq list --key O-10",
		"dlq list --reason exhausted --tag stock.rollback", "dlq show none", "dlq export --key none", "doctor",
		"dlq replay --key none --dry-run", "dlq replay --key none", "dlq discard --key O-10 --why test",
		"pause --why test --for 1m", "resume", "reconcile --limit 5", "migrate", "migrate --status",
		takeOver, takeOver + " --last-pass",
	} {
		code := s.run("", strings.Fields(args)...)
		assert.That(t, code != exitUsage, "%s: exit %d", args, code)
	}
	s.eventually(1, done)
	// and by pages and programs
	hex := regexp.MustCompile(`[0-9a-f]{8,}[-0-9a-f]*`)
	seen := map[string]bool{} // by what is the same in the addresses of a kind of page
	for next := []string{"/", "/api/v1/log", "/api/v1/letters", "/api/v1/letters/groups", "/api/v1/letter?key=none",
		"/api/v1/acts", "/api/v1/pause", "/api/v1/overview", "/api/v1/hour", "/api/v1/charts?span=week",
		"/api/v1/message?key=O-7", "/api/v1/order?sn=O-7",
		"/api/v1/runs/preview?kind=replay&all=true"}; len(next) > 0; next = next[1:] {
		address := require.Get(url.Parse(next[0]))(t)
		kind := hex.ReplaceAllString(address.Path, "ID") + fmt.Sprint(slices.Sorted(maps.Keys(address.Query())))
		if seen[kind] {
			continue
		}
		seen[kind] = true
		for _, link := range links.FindAllStringSubmatch(s.page(addr, next[0]), -1) {
			next = append(next, strings.ReplaceAll(link[1], "&amp;", "&"))
		}
	}
	s.page(addr, "/log?key=O-7")
	s.page(addr, "/letters?text=shelf+20&by=error")
	s.page(addr, "/find?q=O-7")
	stop()

	reads, looked := server.WholeReads(t, s.dsn, tables...)
	for _, text := range reads {
		if !strings.Contains(text, "FROM stock WHERE amount < 0") { // reconcile looks at every stock, once
			t.Error("reads ", text)
		}
	}
	t.Logf("%d statements, %d kinds of pages", looked, len(seen))
	assert.That(t, looked >= 80 && len(seen) >= 30, "only %d statements and %d kinds of pages", looked, len(seen))
}

var links = regexp.MustCompile(`href="(/[^"#]*)`)

// page is what a daemon answers.
func (s *shell) page(addr, path string) (body string) {
	s.t.Helper()
	poll.Until(s.t, "the daemon answers for "+path, func() bool {
		req := require.Get(http.NewRequestWithContext(s.t.Context(), http.MethodGet, "http://"+addr+path, nil))(s.t)
		answer, err := http.DefaultClient.Do(req)
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		body = string(text)
		again := answer.StatusCode == http.StatusServiceUnavailable // on a busy machine
		assert.That(s.t, answer.StatusCode == http.StatusOK || again || !strings.HasPrefix(path, "/api/"), "%s: %s, %s", path,
			answer.Status, text)
		return err == nil && !again
	})
	return body
}
