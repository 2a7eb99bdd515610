package cli

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// deadShop is a shop with rollbacks of some orders among its dead letters: the named ones, none of them reserved.
func deadShop(t *testing.T, bodies ...string) *shell {
	t.Helper()
	s := migrated(t)
	if code := s.run(strings.Join(bodies, "\n"), "publish", "--key-field", "order_sn"); code != exitDone {
		t.Fatalf("publish: exit %d", code)
	}
	stop := s.daemon()
	s.eventually(len(bodies), "SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 3")
	stop()
	s.script.Reset()
	return s
}

func TestAMendedLetterIsReplayedFromAnExport(t *testing.T) {
	t.Parallel()
	s := deadShop(t, `{"order_sn":"A-1","items":[]}`, `{"order_sn":"A-2","items":[]}`)
	s.exec("INSERT INTO stock (sku_id, amount, version) VALUES (1001, 8, 0)")
	s.reserve("A-1", 1001, 2)
	file := filepath.Join(t.TempDir(), "letters.ndjson")
	s.replace = append(s.replace, file, "FILE")
	s.run("", "dlq", "list", "--by", "reason")
	s.run("", "dlq", "show", "A-1")
	s.run("", "dlq", "show", "NOPE")
	s.run("", "dlq", "export", "--key", "A-1", "--reason", "malformed", "-o", file)
	s.run("", "dlq", "export", "-o", file) // which is there already
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := deadletter.ParseLine(text)
	if err != nil {
		t.Fatal(err)
	}
	ln.Body = []byte(`{"order_sn":"A-1","items":[{"sku_id":1001,"quantity":2}]}`)
	if text, err = json.Marshal(ln); err != nil {
		t.Fatal(err)
	}
	s.run(string(text), "dlq", "replay", "--from", "-", "--dry-run")
	stop := s.daemon()
	if code := s.run(string(text), "dlq", "replay", "--from", "-", "--by", "ann"); code != exitDone {
		t.Errorf("replay: exit %d", code)
	}
	s.eventually(10, "SELECT amount FROM stock WHERE sku_id = 1001")
	// and again, and the letter with the former body is gone
	s.run(string(text), "dlq", "replay", "--from", "-")
	stop()
	s.run("", "dlq", "list")
	s.run("", "log", "explain", "A-1")
	s.eventually(10, "SELECT amount FROM stock WHERE sku_id = 1001")
	if n := s.broker.Depth(s.queue + ".dead"); n != 1 {
		t.Errorf("%d letters in the queue, want the other one", n)
	}
	s.golden("mended-letter")
}

func TestAnExportIsPublishedAsLettersMovedByHand(t *testing.T) {
	t.Parallel()
	s := deadShop(t, `{"order_sn":"A-1"}`)
	s.exec("INSERT INTO stock (sku_id, amount, version) VALUES (1001, 8, 0)")
	s.reserve("A-1", 1001, 2)
	text, stderr, code := runCLI(t, s.environ, "", "dlq", "export")
	if code != exitDone || stderr != "consumer: exported 1 letter\n" || strings.Count(text, "\n") != 1 {
		t.Fatalf("export: exit %d, %q, %q", code, text, stderr)
	}
	stdout, stderr, code := runCLI(t, s.environ, "not json\n\n{}\n"+text, "publish", "--letters")
	if code != exitFailed || !strings.HasPrefix(stdout, "published 1 message to queue ") ||
		strings.Count(stderr, "consumer: line ") != 2 {
		t.Fatalf("publish: exit %d, %q, %q", code, stdout, stderr)
	}
	defer s.daemon()()
	s.eventually(10, "SELECT amount FROM stock WHERE sku_id = 1001")
	s.eventually(1, "SELECT COUNT(*) FROM consumer_log_event WHERE `by` = 'by hand'")
}

func TestLettersAreListedPageByPage(t *testing.T) {
	t.Parallel()
	s := deadShop(t, `{"order_sn":"A-1","items":[]}`, `{"order_sn":"A-2","items":[]}`, `{"order_sn":"A-3","items":[]}`)
	seen := map[string]bool{}
	args := []string{"dlq", "list", "--limit", "1", "-o", "json"}
	for after := ""; len(seen) < 3; {
		stdout, stderr, code := runCLI(t, s.environ, "", append(args, "--after", after)...)
		var page []deadletter.Letter
		if err := json.Unmarshal([]byte(stdout), &page); err != nil || code != exitDone || len(page) != 1 ||
			seen[page[0].Key] {
			t.Fatalf("exit %d, %v, %s %s; want one letter that was not seen", code, err, stdout, stderr)
		}
		seen[page[0].Key] = true
		_, next, more := strings.Cut(stderr, "--after ")
		if more != (len(seen) < 3) {
			t.Fatalf("after %d of 3 letters: %q", len(seen), stderr)
		}
		after = strings.TrimSpace(next)
	}
}

func TestAllLetterCommandsKnowTheSameFilters(t *testing.T) {
	t.Parallel()
	s := deadShop(t, `{"order_sn":"A-1","items":[]}`, `{"order_sn":"A-2","items":[{"sku_id":1001,"quantity":1}]}`)
	chosen := map[string]func(args ...string) string{
		"list": func(args ...string) string {
			stdout, _, _ := runCLI(t, s.environ, "", append([]string{"dlq", "list", "-o", "json"}, args...)...)
			return keysIn(stdout)
		},
		"export": func(args ...string) string {
			stdout, _, _ := runCLI(t, s.environ, "", append([]string{"dlq", "export"}, args...)...)
			return keysIn(stdout)
		},
		"replay": func(args ...string) string {
			stdout, _, _ := runCLI(t, s.environ, "", append([]string{"dlq", "replay", "--dry-run", "-o", "json"}, args...)...)
			return reasonsIn(t, stdout)
		},
		"discard": func(args ...string) string {
			stdout, _, _ := runCLI(t, s.environ, "", append([]string{"dlq", "discard", "--why", "w", "--dry-run", "-o", "json"},
				args...)...)
			return reasonsIn(t, stdout)
		},
	}
	one := map[string]string{"list": "A-1", "export": "A-1", "replay": "malformed", "discard": "malformed"}
	other := map[string]string{"list": "A-2", "export": "A-2", "replay": "exhausted", "discard": "exhausted"}
	both := map[string]string{
		"list": "A-1 A-2", "export": "A-1 A-2", "replay": "exhausted malformed", "discard": "exhausted malformed",
	}
	none := map[string]string{}
	for _, tc := range []struct {
		args []string
		want map[string]string
	}{
		{[]string{"--key", "A-1"}, one},
		{[]string{"--key", "A-1", "--key", "A-2"}, both},
		{[]string{"--reason", "exhausted"}, other},
		{[]string{"--reason", "exhausted", "--reason", "malformed"}, both},
		{[]string{"--tag", "stock.rollback"}, both},
		{[]string{"--tag", "another"}, none},
		{[]string{"--since", "1h"}, both},
		{[]string{"--until", "1h"}, none},
		{[]string{"--key", "A-2", "--reason", "malformed"}, none},
		{[]string{"--order", "A-1"}, one},
		{[]string{"--order", "A-"}, none},
		{[]string{"--sku", "1001"}, other},
		{[]string{"--sku", "100"}, none},
		{[]string{"--body", `"items":[]`}, one},
		{[]string{"--body", "order_sn"}, both},
		{[]string{"--body", "order_sn", "--sku", "1001", "--order", "A-2"}, other},
	} {
		for command, choose := range chosen {
			if got := choose(tc.args...); got != tc.want[command] {
				t.Errorf("%s %v chose %q, want %q", command, tc.args, got, tc.want[command])
			}
		}
	}
	for command, choose := range chosen {
		if got := choose("--since", "1h", "--limit", "1"); got == "" || got == both[command] {
			t.Errorf("%s --limit 1 chose %q, want one", command, got)
		}
	}
}

// keysIn finds which of the two keys a text names.
func keysIn(text string) string {
	var keys []string
	for _, key := range []string{"A-1", "A-2"} {
		if strings.Contains(text, `"`+key+`"`) {
			keys = append(keys, key)
		}
	}
	return strings.Join(keys, " ")
}

// reasonsIn are the reasons of the letters that a run chose.
func reasonsIn(t *testing.T, text string) string {
	t.Helper()
	var res deadletter.Result
	if err := json.Unmarshal([]byte(text), &res); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	var reasons []string
	for _, reason := range []dedup.Reason{dedup.ReasonExhausted, dedup.ReasonMalformed} {
		if res.ByReason[reason] > 0 {
			reasons = append(reasons, string(reason))
		}
	}
	return strings.Join(reasons, " ")
}

// Given a letter whose cause is not cured, when it is replayed by its key, then the exit code says that it is dead
// again; one that was chosen otherwise is only counted.
func TestAReplayByKeyThatEndsInALetterAgainFails(t *testing.T) {
	t.Parallel()
	s := deadShop(t, `{"order_sn":"A-1","items":[]}`)
	stop := s.daemon()
	defer stop()
	stdout, stderr, code := runCLI(t, s.environ, "", "dlq", "replay", "--key", "A-1")
	if code != exitFailed || !strings.Contains(stdout, "and are dead again") ||
		!strings.Contains(stderr, "letters with a --key that are dead again: 1") {
		t.Errorf("by key: exit %d, %s%s", code, stdout, stderr)
	}
	if stdout, stderr, code := runCLI(t, s.environ, "", "dlq", "replay", "--reason", "malformed"); code != exitDone ||
		!strings.Contains(stdout, "and are dead again") {
		t.Errorf("by reason: exit %d, %s%s", code, stdout, stderr)
	}
}

// Given a remark that is longer than a line, when a list goes to a file or another program, then it is whole.
func TestAListThatIsReadOnIsNotCut(t *testing.T) {
	t.Parallel()
	s := deadShop(t, `{"order_sn":"A-1","items":[]}`)
	remark := strings.Repeat("why ", 50) + "end"
	s.exec("UPDATE consumer_log SET remark = '" + remark + "'")
	for _, list := range []string{"dlq", "log"} {
		if stdout, _, code := runCLI(t, s.environ, "", list, "list"); code != exitDone || !strings.Contains(stdout, remark) {
			t.Errorf("%s list: exit %d, %s", list, code, stdout)
		}
	}
}

// Given a group that no row has, when its letters or rows are asked for, then that is said beside the empty answer,
// with the groups that there are.
func TestAGroupThatNobodyKnowsIsSaid(t *testing.T) {
	t.Parallel()
	s := deadShop(t, `{"order_sn":"A-1","items":[]}`)
	wrong := append(s.environ[:len(s.environ):len(s.environ)], "ROLLBACKD_GROUP=stok-rollback")
	const want = "consumer: consumer_log has no row of group stok-rollback (ROLLBACKD_GROUP); it has stock-rollback\n"
	if _, stderr, _ := runCLI(t, wrong, "", "reconcile"); !strings.Contains(stderr, want) {
		t.Errorf("reconcile: %q, want %q", stderr, want)
	}
	for _, args := range []string{"dlq list", "dlq list --by reason", "dlq export", "log list"} {
		if _, stderr, code := runCLI(t, wrong, "", strings.Fields(args)...); code != exitDone || !strings.Contains(stderr,
			want) {
			t.Errorf("%s: exit %d, %q, want %q", args, code, stderr, want)
		}
		_, stderr, _ := runCLI(t, s.environ, "", append(strings.Fields(args), "--tag", "none")...)
		if strings.Contains(stderr, "no row of group") {
			t.Errorf("%s with the right group: %q", args, stderr)
		}
	}
}

// Given a MySQL that is frozen, when letters are listed, then the answer comes within ten seconds.
func TestAFrozenMySQLIsSaidSoon(t *testing.T) {
	t.Parallel()
	server := stack.OwnMySQL(t)
	s := newShell(t)
	s.environ = append(s.environ, "ROLLBACKD_MYSQL_DSN="+server.Database(t))
	s.run("", "migrate")
	if err := server.Freeze(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := server.Thaw(); err != nil {
			t.Error(err)
		}
	}()
	began := time.Now()
	_, stderr, code := runCLI(t, s.environ, "", "dlq", "list")
	if took := time.Since(began); code != exitFailed || took > 10*time.Second || !strings.Contains(stderr,
		"MySQL cannot be used: no answer within 8s") {
		t.Errorf("exit %d after %v: %s", code, took, stderr)
	}
}

func TestAnInterruptedReplayReportsWhatIsLeft(t *testing.T) {
	t.Parallel()
	s := deadShop(t, `{"order_sn":"A-1","items":[]}`, `{"order_sn":"A-2","items":[]}`, `{"order_sn":"A-3","items":[]}`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out strings.Builder
	// given no daemon, so that the second letter waits for room until the person gives up
	go func() {
		s.eventually(1, "SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 2")
		cancel()
	}()
	var stderr strings.Builder
	code := run(ctx, []string{"consumer", "dlq", "replay", "--all", "--window", "1", "-o", "json"}, s.environ,
		strings.NewReader(""), &out, &stderr)
	var res deadletter.Result
	if err := json.Unmarshal([]byte(out.String()), &res); err != nil || code != exitFailed || res.Replayed != 1 ||
		res.Unseen != 2 {
		t.Errorf("exit %d, %v, %s %s; want one replayed, two left", code, err, out.String(), stderr.String())
	}
}

func TestAShownLetterIsSafeAndShortOnATerminal(t *testing.T) {
	t.Parallel()
	s := deadShop(t, `{"order_sn":"A-1","items":[]}`)
	s.exec(`UPDATE consumer_log SET msg_body = CONCAT('{"x":"', CHAR(27), '[31m', CHAR(7), REPEAT('y', 200000)), ` +
		`remark = CONCAT(CHAR(27), ']0;title')`)
	stdout, stderr, code := runCLI(t, s.environ, "", "dlq", "show", "A-1")
	if code != exitDone || len(stdout) > 12_000 || strings.ContainsAny(stdout, "\x1b\x07") ||
		!strings.Contains(stdout, `{"x":"\x1b[31m\x07yyy`) {
		t.Errorf("exit %d, %d bytes, %q, %s", code, len(stdout), stdout[:min(len(stdout), 1500)], stderr)
	}
}

func TestAParkedLetterIsShownAndStaysUntilItIsForced(t *testing.T) {
	t.Parallel()
	s := deadShop(t, `{"order_sn":"A-1","items":[]}`)
	s.exec("UPDATE consumer_log SET replays = 10")
	if stdout, _, _ := runCLI(t, s.environ, "", "dlq", "list"); !strings.Contains(stdout, "10 (parked)") {
		t.Errorf("list: %s", stdout)
	}
	for _, more := range [][]string{{"--dry-run"}, nil} {
		stdout, stderr, code := runCLI(t, s.environ, "", append([]string{"dlq", "replay", "--all"}, more...)...)
		if code != exitFailed || !strings.Contains(stderr, "1 stay (parked), they were replayed "+
			"ROLLBACKD_MAX_REPLAYS times") || !strings.Contains(stdout, "of them parked") {
			t.Errorf("replay %v: exit %d, %s%s", more, code, stdout, stderr)
		}
	}
	if stdout, _, _ := runCLI(t, s.environ, "", "dlq", "show", "A-1"); !strings.Contains(stdout,
		"parked after 10 replays of at most 10: items: is empty") {
		t.Errorf("show: %s", stdout)
	}
	if _, stderr, code := runCLI(t, s.environ, "", "dlq", "replay", "--all", "--force"); code != exitDone {
		t.Errorf("forced: exit %d, %s", code, stderr)
	}
}
