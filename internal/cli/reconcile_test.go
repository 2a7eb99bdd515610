package cli

import (
	"encoding/json"
	"fmt"
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
	s.t.Helper()
	if strings.HasPrefix(command, "UPDATE ") {
		statement, _, _ := strings.Cut(command, "    -- ")
		if _, err := s.db().ExecContext(s.t.Context(), statement); err != nil {
			s.t.Errorf("%s: %v", statement, err)
		}
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
	if _, stderr, code := runCLI(s.t, s.environ, stdin, args[1:]...); code != exitDone {
		s.t.Errorf("%q failed: %s", command, stderr)
	}
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

// curedReport is what reconcile says in JSON.
type curedReport struct {
	operator.Report
	Findings []struct {
		operator.Finding
		Cure string
	} `json:"findings"`
}

// Open counts the findings that are not mended.
func (r curedReport) Open() (n int) {
	for _, f := range r.Findings {
		if !f.Mended {
			n++
		}
	}
	return n
}

// reconcileJSON runs the command and reads what it says.
func (s *shell) reconcileJSON(args ...string) (r curedReport, code int) {
	s.t.Helper()
	stdout, stderr, code := runCLI(s.t, s.environ, "", append([]string{"reconcile", "-o", "json"}, args...)...)
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		s.t.Fatalf("exit %d, %q, %q: %v", code, stdout, stderr, err)
	}
	return r, code
}

// prepareDisagreements makes letters and applied orders with a daemon, and then everything that can disagree by hand.
func prepareDisagreements(t *testing.T, s *shell) {
	t.Helper()
	s.exec("INSERT INTO stock (sku_id, amount, version) VALUES (1, 100, 0), (9, 5, 0)")
	var bodies strings.Builder
	for _, order := range []string{"applied-1", "applied-2", "applied-3", "applied-4"} {
		s.reserve(order, 1, 2)
		bodies.WriteString(`{"order_sn":"` + order + "\"}\n")
	}
	for _, order := range []string{"no-row", "stale", "purged", "moved", "overdue", "claimed", "cut-off"} {
		bodies.WriteString(`{"order_sn":"` + order + "\"}\n")
	}
	s.run(bodies.String(), "publish", "--key-field", "order_sn")
	stop := s.daemon()
	s.eventually(7, "SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 3")
	s.eventually(4, "SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 1")
	stop()
	s.script.Reset()
	s.run("", "reconcile")

	dead := rabbit.DeadQueue(s.queue)
	var letters []stack.Delivery
	for range 7 {
		d, ok := s.broker.Get(dead)
		if !ok {
			t.Fatal("a letter is missing")
		}
		letters = append(letters, d)
	}
	for _, d := range letters {
		m := stack.Message{
			Body: d.Body, Headers: d.Headers, MessageId: d.MessageId, Type: d.Type, DeliveryMode: 2, ContentType: d.ContentType,
		}
		switch d.MessageId {
		case "no-row", "stale", "cut-off":
			s.broker.Publish("", dead, m)
		case "moved":
			s.broker.Publish("", s.queue, m)
		}
	}
	const longAgo = ", consumer_timestamp = consumer_timestamp - INTERVAL 2 HOUR"
	s.exec("DELETE FROM consumer_log WHERE msg_key = 'no-row'",
		"UPDATE consumer_log SET consumer_status = 1 WHERE msg_key = 'stale'",
		"UPDATE consumer_log SET consumer_status = 2, consumer_times = 1, reason = NULL"+longAgo+" WHERE msg_key = 'overdue'",
		"UPDATE consumer_log SET consumer_status = 0, consumer_times = 1, owner = 'host/1/2/3/4'"+longAgo+
			" WHERE msg_key = 'claimed'",
		"UPDATE consumer_log SET consumer_status = 2, consumer_times = 0, replays = 1"+longAgo+" WHERE msg_key = 'cut-off'",
		"DELETE FROM consumer_log WHERE msg_key = 'applied-1'",
		"UPDATE stock_reservation SET status = 1, rollback_tag = NULL, rollback_key = NULL WHERE order_sn = 'applied-2'",
		"UPDATE stock_reservation SET status = 1 WHERE order_sn = 'applied-3'",
		"UPDATE stock_reservation SET status = 3 WHERE order_sn = 'applied-4'",
		"ALTER TABLE stock DROP CONSTRAINT stock_never_oversold", "UPDATE stock SET amount = -5 WHERE sku_id = 9")
}

// Given a purged queue, a moved letter, and rows and reservations changed by hand, when reconcile looks, then it
// finds each, and the command that it prints mends it.
func TestWhatDisagreesIsFoundAndItsCommandMendsIt(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	prepareDisagreements(t, s)
	// when it is looked at, each is found as what it is
	assert.Is(t, s.run("", "reconcile"), exitFailed, "exit")
	report, _ := s.reconcileJSON()
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
	for _, f := range report.Findings {
		command := strings.Replace(f.Cure, "amount = …", "amount = 5", 1)
		if args := words(t, command); !done[strings.Join(args, " ")] {
			done[strings.Join(args, " ")] = true
			s.paste(command)
		}
	}
	assert.Is(t, s.run("", "reconcile"), exitFailed, "before a daemon has taken the repairs: exit")
	stop := s.daemon()
	s.eventually(0, "SELECT COUNT(*) FROM stock_reservation WHERE status = 1")
	s.eventually(0, "SELECT COUNT(*) FROM consumer_log WHERE consumer_status IN (0, 2)")
	stop()
	assert.Is(t, s.run("", "reconcile"), exitDone, "a second reconcile: exit")
	s.run("", "log", "explain", "no-row")
	s.run("", "log", "explain", "applied-1")
	// the stock has each order's goods once more than it should only where somebody put the reservation back by hand
	s.eventually(112, "SELECT amount FROM stock WHERE sku_id = 1")
	// A done marker is a hint, which a slow Redis may not get in time.
	script := regexp.MustCompile(`(lock +)done marker, for another [^\n]+`).ReplaceAllString(s.script.String(), "${1}free")
	s.script.Reset()
	s.script.WriteString(script)
	s.golden("reconcile")
}

// Given a daemon that applies, dead-letters and takes replays all the time, when reconcile runs beside it, then it
// reports nothing that is only on its way.
func TestReconcileMayRunBesideDaemonsAndReplays(t *testing.T) {
	t.Parallel()
	s := migrated(t, "ROLLBACKD_MAX_DEAD_RATE=off")
	db := s.db()
	s.exec("INSERT INTO stock (sku_id, amount, version) VALUES (1, 0, 0)")
	s.daemon()
	// given a daemon that applies, dead-letters and takes replays all the time
	stop, done := make(chan struct{}), make(chan struct{})
	defer func() { close(stop); <-done }() // also when a look fails
	go func() {
		defer close(done)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			var bodies strings.Builder
			for i := range 50 {
				order := fmt.Sprintf("order-%d-%d", n, i)
				fmt.Fprintf(&bodies, "{\"order_sn\":%q}\n", order)
				if i%2 == 0 {
					if _, err := db.ExecContext(t.Context(), "INSERT INTO stock_reservation (order_sn, sku_id, quantity, status, "+
						"updated_at) VALUES (?, 1, 2, 1, UTC_TIMESTAMP(6))", order); err != nil {
						t.Error(err)
					}
				}
			}
			if _, stderr, code := runCLI(t, s.environ, bodies.String(), "publish", "--key-field", "order_sn"); code != exitDone {
				t.Error(stderr)
			}
			if n%3 == 2 {
				if _, stderr, code := runCLI(t, s.environ, "", "dlq", "replay", "--all", "--no-wait"); code != exitDone &&
					!strings.Contains(stderr, "stay") {
					t.Error(stderr)
				}
			}
		}
	}()
	for look := range 4 {
		if report, _ := s.reconcileJSON(); len(report.Findings) > 0 {
			t.Errorf("look %d: %+v; want nothing, everything is only in motion", look, report.Findings)
		}
	}
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
		"failed": {operator.Finding{Kind: operator.ReleasedWithoutSuccess, Status: "failed"},
			"x run    # its next attempt"},
		"odd order": {operator.Finding{
			Kind: operator.NamedNotReleased, Was: stock.Reserved, Order: "it's", Tag: "t",
			Items: []operator.Item{{SKU: 1, Quantity: 2}},
		}, `printf '%s\n' ` +
			`'{"order_sn":"it'\''s","reason":"reconcile","items":[{"sku_id":1,"quantity":2}],` +
			`"repair":"repair/it'\''s/20261121T120000Z"}' | x publish --key-field repair --tag repair`},
		"deducted": {operator.Finding{Kind: operator.NamedNotReleased, Was: stock.Deducted, Order: "a'b", SKU: 3},
			"UPDATE stock_reservation SET rollback_tag = NULL, rollback_key = NULL WHERE order_sn = x'612762' AND sku_id = " +
				"3    -- "},
		"next kinds": {operator.Finding{Kind: "later version", Tag: "t", Key: "k"}, "x log explain k --tag t"},
	} {
		if got := tc.f.Cure("x", now); !strings.HasPrefix(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
	for _, kind := range operator.FindingKinds() {
		if f := (operator.Finding{Kind: kind}); kind.Means() == "" || strings.Contains(f.Cure("x", now), "log explain") {
			t.Errorf("%s has no explanation or no cure of its own", kind)
		}
	}
}
