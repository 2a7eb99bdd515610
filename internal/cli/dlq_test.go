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
	"github.com/rollbackd/rollbackd/internal/test/poll"
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
// again; one that was chosen otherwise is only counted. When it was replayed as often as it may, it is parked: it is
// shown as that, and stays until it is forced.
func TestALetterThatDiesAgainIsToldAndParkedInTheEnd(t *testing.T) {
	t.Parallel()
	s := deadShop(t, `{"order_sn":"A-1","items":[]}`)
	stop := s.daemon()
	s.run("", "dlq", "replay", "--key", "A-1")
	poll.Until(t, "its letter is back", func() bool { return s.broker.Depth(s.queue+".dead") == 1 })
	s.run("", "dlq", "replay", "--reason", "malformed")
	stop()
	s.exec("UPDATE consumer_log SET replays = 10")
	for _, args := range []string{"list", "replay --all --dry-run", "replay --all", "show A-1", "replay --all --force"} {
		s.run("", append([]string{"dlq"}, strings.Fields(args)...)...)
	}
	s.golden("parked")
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
// with the groups that there are; of the right group it is not.
func TestAGroupThatNobodyKnowsIsSaid(t *testing.T) {
	t.Parallel()
	s := deadShop(t, `{"order_sn":"A-1","items":[]}`)
	for _, group := range []string{"stok-rollback", "stock-rollback"} {
		s.environ = append(s.environ, "ROLLBACKD_GROUP="+group)
		for _, args := range []string{"dlq list", "dlq list --by reason", "dlq export", "log list"} {
			s.run("", append(strings.Fields(args), "--tag", "none")...)
		}
	}
	s.environ = append(s.environ, "ROLLBACKD_GROUP=stok-rollback")
	s.run("", "reconcile")
	s.golden("unknown-group")
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
