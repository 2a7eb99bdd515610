package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/stock"
)

// paste runs a printed command as a shell would: quotes, a pipe from printf, a comment. What is for MySQL goes there.
func (s *shell) paste(command string) {
	if strings.HasPrefix(command, "UPDATE ") {
		statement, _, _ := strings.Cut(command, "    -- ")
		s.exec(statement)
		return
	}
	stdin := ""
	if printf, rest, ok := strings.Cut(command, " | "); ok {
		stdin, command = words(s.t, printf)[2]+"\n", rest
	}
	args := words(s.t, command)
	require.Is(s.t, args[0], "consumer", "%q is no command of ours", command)
	if args[1] == "reconcile" { // which fails because of what other commands mend
		report, _ := s.reconcileJSON(args[2:]...)
		fmt.Fprintf(&s.script, "$ %s    # mended: %d of %d\n\n", strings.Join(args, " "), len(report.Findings)-report.Open(),
			len(report.Findings))
		return
	}
	s.answers(exitDone, "", stdin, args[1:]...)
	fmt.Fprintf(&s.script, "$ %s\n\n", strings.Join(args, " "))
}

func words(t *testing.T, command string) (all []string) {
	t.Helper()
	command, _, _ = strings.Cut(command, "    # ")
	for _, w := range regexp.MustCompile(`(?:'[^']*'|\\'|[^\s'\\])+`).FindAllString(command, -1) {
		all = append(all, strings.NewReplacer(`'\''`, "'", "'", "").Replace(w))
	}
	return all
}

// reconcileJSON runs the command and reads what it says, and what cures each finding.
func (s *shell) reconcileJSON(args ...string) (r operator.Report, cures []string) {
	s.t.Helper()
	var said json.RawMessage
	_, _ = s.reads(&said, append([]string{"reconcile", "-o", "json"}, args...)...)
	var cured struct{ Findings []struct{ Cure string } }
	require.OK(s.t, json.Unmarshal(said, &r), json.Unmarshal(said, &cured))
	for _, f := range cured.Findings {
		cures = append(cures, f.Cure)
	}
	return r, cures
}

// Given a purged queue, a moved letter, and rows and reservations changed by hand, when reconcile looks, then it
// finds each, and the command that it prints mends it.
func TestWhatDisagreesIsFoundAndItsCommandMendsIt(t *testing.T) {
	s := migrated(t)
	s.play("reconcile", map[string]func(){
		"letters go astray": func() {
			dead := rabbit.DeadQueue(s.queue)
			letters := s.broker.GetAll(dead)
			require.Is(t, len(letters), 7, "letters")
			for _, d := range letters {
				m := stack.Message{Body: d.Body, Headers: d.Headers, MessageId: d.MessageId, Type: d.Type, DeliveryMode: 2,
					ContentType: d.ContentType}
				switch d.MessageId {
				case "no-row", "stale", "cut-off":
					s.broker.Publish("", dead, m)
				case "moved":
					s.broker.Publish("", s.queue, m)
				}
			}
		},
		"each is found as what it is, and what its command says is done": func() {
			report, cures := s.reconcileJSON()
			found := map[operator.FindingKind][]string{}
			for _, f := range report.Findings {
				found[f.Kind] = append(found[f.Kind], f.Key+f.Order)
			}
			for kind, want := range map[operator.FindingKind][]string{
				operator.LetterWithoutRow: {"no-row"}, operator.StaleLetter: {"stale"}, operator.DeadWithoutLetter: {"moved",
					"purged"},
				operator.Overdue: {"claimed", "overdue"}, operator.InterruptedReplay: {"cut-off"},
				operator.ReleasedWithoutSuccess: {"applied-1applied-1"}, operator.SuccessNotReleased: {"applied-2applied-2"},
				operator.NamedNotReleased: {"applied-3applied-3", "applied-4applied-4"}, operator.NegativeStock: {""},
			} {
				assert.Equal(t, found[kind], want, "%s", kind)
			}
			// and when what it says is done, nothing is left
			done := map[string]bool{}
			for _, cure := range cures {
				command := strings.Replace(cure, "amount = …", "amount = 5", 1)
				if args := words(t, command); !done[strings.Join(args, " ")] {
					done[strings.Join(args, " ")] = true
					s.paste(command)
				}
			}
		},
		"a slow Redis may not get a done marker in time": func() {
			marker := regexp.MustCompile(`(lock +)done marker, for another [^\n]+`)
			script := marker.ReplaceAllString(s.script.String(), "${1}free")
			s.script.Reset()
			s.script.WriteString(script)
		},
	})
}

func TestCuresAreWhatTheFindingNeeds(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		f    operator.Finding
		want string
	}{
		"too old": {operator.Finding{Kind: operator.LetterWithoutRow, Hindrance: "too_old"},
			"x reconcile --adopt --force    # it may have had its effect"},
		"key taken": {operator.Finding{Kind: operator.LetterWithoutRow, Hindrance: "key_taken"},
			"x reconcile --adopt --force    # another body"},
		"cut": {operator.Finding{Kind: operator.DeadWithoutLetter, Hindrance: "its row keeps no body"},
			"x dlq replay --from FILE    # with the whole message from its producer, because its row keeps no body"},
		"dead": {operator.Finding{Kind: operator.ReleasedWithoutSuccess, Status: "dead", Tag: "t", Key: "it's"},
			`x dlq replay --tag t --key 'it'\''s'    # it finds`},
		"discarded": {operator.Finding{Kind: operator.ReleasedWithoutSuccess, Status: "discarded", Tag: "t", Key: "k"},
			"x log explain k --tag t    # a person"},
		"failed": {operator.Finding{Kind: operator.ReleasedWithoutSuccess, Status: "failed"}, "x run    # its next attempt"},
		"odd order": {operator.Finding{
			Kind: operator.NamedNotReleased, Was: stock.Reserved, Order: `it's a\b`, Tag: "t",
			Items: []operator.Item{{SKU: 1, Quantity: 2}},
		}, `printf '%s\n' ` +
			`'{"order_sn":"it'\''s a\\b","reason":"reconcile","items":[{"sku_id":1,"quantity":2}],` +
			`"repair":"repair/it'\''s a\\b/20261121T120000Z"}' | x publish --key-field repair --tag repair`},
		"deducted": {operator.Finding{Kind: operator.NamedNotReleased, Was: stock.Deducted, Order: "a'b", SKU: 3},
			"UPDATE stock_reservation SET rollback_tag = NULL, rollback_key = NULL WHERE order_sn = x'612762' AND sku_id = " +
				"3    -- "},
		"next kinds": {operator.Finding{Kind: "later version", Tag: "t", Key: "k"}, "x log explain k --tag t"},
	} {
		got := tc.f.Cure("x", now)
		assert.That(t, strings.HasPrefix(got, tc.want), "%s: %q, want %q", name, got, tc.want)
	}
	for _, kind := range operator.FindingKinds() {
		if f := (operator.Finding{Kind: kind}); kind.Means() == "" || strings.Contains(f.Cure("x", now), "log explain") {
			t.Errorf("%s has no explanation or no cure of its own", kind)
		}
	}
}

// selects writes the file and says what names it.
func (s *shell) selects(text string) (path string) {
	s.t.Helper()
	path = filepath.Join(s.t.TempDir(), "cancelled.sql")
	require.OK(s.t, os.WriteFile(path, []byte(text), 0o600))
	s.replace = append(s.replace, path, "cancelled.sql")
	return path
}

// Given cancelled orders whose messages are wherever a message can be, and rows that a transaction has locked, when
// reconcile is asked for what should have come, then it says of each where it is, and waits for nobody. What was lost
// is put into the outbox once nothing speaks against it, and comes, once.
func TestWhatShouldHaveComeIsFoundAndSentOnce(t *testing.T) {
	s := migrated(t, "ROLLBACKD_OUTBOX=on")
	s.vars = append(s.vars, "$SELECT", s.selects(blocksOf(t, "docs/outbox.md", "sql", "reconcile_test.go")[0]))
	locked := require.Get(s.db().BeginTx(t.Context(), nil))(t)
	s.play("expected", map[string]func(){
		"a transaction has locked all rows": func() {
			for _, table := range []string{"orders", "consumer_log", "rollbackd_outbox"} {
				rows := require.Get(locked.QueryContext(t.Context(), "SELECT 1 FROM "+table+" FOR UPDATE"))(t)
				for rows.Next() {
				}
				require.OK(t, rows.Close())
			}
		},
		"it is over": func() { require.OK(t, locked.Rollback()) },
	})
}

// Given orders whose messages were never seen in a schema without an outbox, then a look says so and what makes the
// table, before it begins, when it is to publish; without that it needs none. Doctor says of the file what run would.
func TestWhatShouldHaveComeCannotBePutWithoutAnOutbox(t *testing.T) {
	played(t, "expected-without-outbox")
}

// Given more orders than one piece has, with keys of numbers and of texts, then each is seen once; and a SELECT that
// could leave some out, or that is none, is refused.
func TestWhatShouldHaveComeIsReadInPieces(t *testing.T) {
	s := migrated(t, "ROLLBACKD_OUTBOX=on")
	s.exec("CREATE TABLE orders (id BIGINT UNSIGNED PRIMARY KEY, order_sn VARCHAR(50) COLLATE utf8mb4_general_ci NOT "+
		"NULL UNIQUE, uuid BINARY(2) NOT NULL UNIQUE, body LONGTEXT NULL)",
		"INSERT INTO orders (id, order_sn, uuid) WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE "+
			"i < 49), m (i) AS (SELECT a.i * 50 + b.i + 1 FROM n a, n b) SELECT i * 7 + 9223372036854775900, "+
			"CONCAT('order-', i), UNHEX(LPAD(HEX(i * 11 + 20000), 4, '0')) FROM m")
	selects := func(key, after, order string) string {
		return "SELECT 't' AS MSG_TAG, " + key + " AS msg_key, NULL AS body, NULL AS created_at, " + after + " AS after " +
			"FROM orders WHERE " + after + " > :after ORDER BY " + order + " LIMIT :limit"
	}
	byID := selects("order_sn", "id", "id")
	for name, tc := range map[string]struct{ text, instead, says string }{
		"by a number":            {},
		"by a text":              {selects("order_sn", "order_sn", "order_sn"), "", ""},
		"by what is the key too": {selects("id", "id", "id"), "", ""},
		"by bytes":               {selects("order_sn", "uuid", "uuid"), "", ""},
		"with large bodies":      {"NULL", "REPEAT('x', 20000)", ""},
		"in another order":       {"ORDER BY id", "ORDER BY id DESC", "stood before it"},
		"by a time":              {"id AS after", "NOW() AS after", "stood before it"},
		"by what is not unique":  {"id AS after", "7 AS after", "stood before it"},
		"one message twice":      {"order_sn AS msg_key", "CEILING(id / 50) AS msg_key", "did not come: 2500"},
		"half left out":          {"SELECT * FROM (" + byID + ") x WHERE after % 2 = 0", "", "did not come: 1250"},
		"without a body":         {"NULL AS body, ", "", "they must be msg_tag, msg_key, body"},
		"of an unknown table":    {"orders", "ordres", "ordres"},
		"a DELETE":               {"DELETE FROM orders WHERE id > :after LIMIT :limit", "", "1:1: the file must hold"},
	} {
		text := strings.Replace(byID, tc.text, tc.instead, 1)
		if strings.HasPrefix(tc.text, "SELECT") || strings.HasPrefix(tc.text, "DELETE") {
			text = tc.text
		}
		stdout, stderr, code := runCLI(t, s.environ, "", "reconcile", "--expected", s.selects(text), "--limit", "2")
		if tc.says != "" {
			assert.That(t, code != exitDone && strings.Contains(stderr, tc.says),
				"%s: exit %d, %s%s; want %q", name, code, stdout, stderr, tc.says)
			continue
		}
		if !strings.Contains(stdout, "\n2500") || code != exitFailed || strings.Count(stdout, "\nnot_seen  t") != 2 {
			t.Errorf("%s: exit %d, %s%s; want 2500 messages that were not seen, and two of them", name, code, stdout, stderr)
		}
	}
	s.eventually(2500, "SELECT COUNT(*) FROM orders")
}
