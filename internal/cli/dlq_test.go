package cli

import (
	"context"
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/internal/cli/command"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/rights"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Given an export whose letter's body was mended, when it is replayed, then the message is applied, once, and the
// letter with the former body is gone.
func TestAMendedLetterIsReplayedFromAnExport(t *testing.T) {
	s := migrated(t)
	s.play("mended-letter", map[string]func(){
		"its body is mended": func() {
			text := require.Get(os.ReadFile(s.file))(t)
			ln := require.Get(deadletter.ParseLine(text))(t)
			ln.Body = []byte(`{"order_sn":"A-1","items":[{"sku_id":1001,"quantity":2}]}`)
			text = require.Get(json.Marshal(ln))(t)
			s.vars = append(s.vars, "$MENDED", string(text))
		},
		"the other one is left": func() {
			assert.Is(t, s.broker.Depth(s.queue+".dead"), 1, "letters in the queue")
			of := require.Get(s.recorded()[0].Request())(t)
			assert.Is(t, of.From, "-", "the last replay is on record with its file, which is")
		},
	})
}

func TestAnExportIsPublishedAsLettersMovedByHand(t *testing.T) {
	s := migrated(t).dead(`{"order_sn":"A-1"}`)
	s.exec("INSERT INTO stock (sku_id, amount, version) VALUES (1001, 8, 0)")
	s.reserve("A-1", 1001, 2)
	text, stderr, code := runCLI(t, s.environ, "", "dlq", "export")
	require.That(t, code == exitDone && stderr == "consumer: exported 1 letter\n" && strings.Count(text, "\n") == 1,
		"export: exit %d, %q, %q", code, text, stderr)
	stdout, stderr, code := runCLI(t, s.environ, "not json\n\n{}\n"+text, "publish", "--letters")
	require.That(t, code == exitFailed && strings.HasPrefix(stdout, "published 1 message to queue ") &&
		strings.Count(stderr, "consumer: line ") == 2, "publish: exit %d, %q, %q", code, stdout, stderr)
	defer s.daemon()()
	s.eventually(10, "SELECT amount FROM stock WHERE sku_id = 1001")
	s.eventually(1, "SELECT COUNT(*) FROM consumer_log_event WHERE `by` = 'by hand'")
}

func TestAllLetterCommandsKnowTheSameFilters(t *testing.T) {
	s := migrated(t).dead(`{"order_sn":"A-1","items":[]}`, `{"order_sn":"A-2","items":[{"sku_id":1001,"quantity":1}]}`)
	said := map[string]*regexp.Regexp{ // what list and export name, and what replay and discard would do
		"1": regexp.MustCompile(`"key": ?"A-1"|"malformed": [1-9]`),
		"2": regexp.MustCompile(`"key": ?"A-2"|"exhausted": [1-9]`),
	}
	for _, tc := range []struct{ args, want string }{
		{"--key A-1", "1"}, {"--key A-1 --key A-2", "12"}, {"--reason exhausted", "2"},
		{"--reason exhausted --reason malformed", "12"}, {"--tag stock.rollback", "12"}, {"--tag another", ""},
		{"--since 1h", "12"}, {"--until 1h", ""}, {"--key A-2 --reason malformed", ""}, {"--order A-1", "1"},
		{"--order A-", ""}, {"--sku 1001", "2"}, {"--sku 100", ""}, {`--body "items":[]`, "1"}, {"--body order_sn", "12"},
		{"--body order_sn --sku 1001 --order A-2", "2"}, {"--since 1h --limit 1", "one"},
	} {
		for _, command := range []string{
			"list -o json", "export", "replay --dry-run -o json", "discard --why w --dry-run -o json",
		} {
			stdout, _, _ := runCLI(t, s.environ, "", strings.Fields("dlq "+command+" "+tc.args)...)
			got := ""
			for _, letter := range []string{"1", "2"} {
				if said[letter].MatchString(stdout) {
					got += letter
				}
			}
			assert.That(t, got == tc.want || tc.want == "one" && len(got) == 1,
				"%s %s chose %q, want %q", command, tc.args, got, tc.want)
		}
	}
}

// Given a letter whose cause is not cured, when it is replayed by its key, then the exit code says that it is dead
// again; one that was chosen otherwise is only counted. When it was replayed as often as it may, it is parked: it is
// shown as that, and stays until it is forced.
func TestALetterThatDiesAgainIsToldAndParkedInTheEnd(t *testing.T) {
	s := migrated(t)
	s.play("parked", map[string]func(){"its letter is back": func() {
		poll.Until(t, "its letter is back", func() bool { return s.broker.Depth(s.queue+".dead") == 1 })
	}})
}

// Given a long remark with control characters, when a list goes to a file or another program, then it is whole; a
// letter that is shown is short, and neither acts on a terminal.
func TestAListIsWholeAndAShownLetterIsShortAndSafe(t *testing.T) {
	s := migrated(t).dead(`{"order_sn":"A-1","items":[]}`)
	remark := strings.Repeat("why ", 50) + "end"
	s.exec(`UPDATE consumer_log SET msg_body = CONCAT('{"x":"', CHAR(27), '[31m', CHAR(7), REPEAT('y', 200000)), ` +
		`remark = CONCAT(CHAR(27), ']0;title', '` + remark + `')`)
	for args, want := range map[string]string{
		"dlq list": remark, "log list": remark, "dlq show A-1": `{"x":"\x1b[31m\x07yyy`,
	} {
		stdout, stderr, code := runCLI(t, s.environ, "", strings.Fields(args)...)
		assert.That(t, code == exitDone && len(stdout) <= 12_000 && !strings.ContainsAny(stdout, "\x1b\x07") &&
			strings.Contains(stdout, want), "%s: exit %d, %d bytes, %q, %s", args, code, len(stdout),
			stdout[:min(len(stdout), 1500)], stderr)
	}
}

// Given a group that no row has, when its letters or rows are asked for, then that is said beside the empty answer,
// with the groups that there are; of the right group it is not.
func TestAGroupThatNobodyKnowsIsSaid(t *testing.T) { played(t, "unknown-group") }

// Given a MySQL that is frozen, when letters are listed, then the command gives up after eight seconds, once.
func TestAFrozenMySQLIsSaidSoon(t *testing.T) {
	s := migrated(t)
	proxy := stack.Proxy(t, stack.Addr(t, s.dsn))
	s.set("MYSQL_DSN=" + proxy.Through(s.dsn))
	proxy.Hold(true)
	began := time.Now()
	s.answers(exitFailed, "MySQL cannot be used: no answer within 8s", "", "dlq", "list")
	assert.AtMost(t, time.Since(began), 15*time.Second, "it took")
}

func TestAnInterruptedReplayReportsWhatIsLeft(t *testing.T) {
	s := migrated(t).dead(`{"order_sn":"1","items":[]}`, `{"order_sn":"2","items":[]}`, `{"order_sn":"3","items":[]}`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out strings.Builder
	// given no daemon, so that the second letter waits for room until the person gives up
	go func() { defer cancel(); s.eventually(1, "SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 2") }()
	var stderr strings.Builder
	code := run(ctx, []string{"consumer", "dlq", "replay", "--all", "--window", "1", "-o", "json"}, s.environ,
		strings.NewReader(""), &out, &stderr)
	var res deadletter.Result
	if err := json.Unmarshal([]byte(out.String()), &res); err != nil || code != exitFailed || res.Replayed != 1 ||
		res.Unseen != 2 || !strings.Contains(stderr.String(), "interrupted before it was done") {
		t.Errorf("exit %d, %v, %s %s; want one replayed, two left, and that it was interrupted", code, err, out.String(),
			stderr.String())
	}
}

const exampleSQL = "../../deploy/examples/sql/order-state/"

// sqlShell is a shell whose handler is the example with the order's state.
func sqlShell(t *testing.T) *shell {
	t.Helper()
	s := newShell(t, "ROLLBACKD_HANDLER=sql", "ROLLBACKD_SQL_FILE="+exampleSQL+"handler.sql", "ROLLBACKD_LOG_FORMAT=text")
	stack.Script(t, s.db(), exampleSQL+"tables.sql")
	return s
}

// Given an order that is being cancelled, when messages are tried, then each run of a statement is shown and nothing
// changes; when one is tried with --commit, then its effect stays.
func TestHandlerTryShowsWhatAMessageWouldDo(t *testing.T) {
	s := sqlShell(t)
	s.vars = append(s.vars, "$EXAMPLE/", exampleSQL)
	s.play("handler-try", nil)
}

// Given a column that cannot hold every text, when doctor is asked, then it names the column; when a message with an
// emoji for it is tried, then that is said of the message, and nothing of MySQL.
func TestTextThatAColumnCannotHoldIsNamed(t *testing.T) {
	s := sqlShell(t)
	s.quietly("", "migrate")
	s.exec("ALTER TABLE tb_order CONVERT TO CHARACTER SET latin1")
	s.says("note characters = tb_order.order_sn is latin1")
	said := s.answers(exitFailed, "retry: line 4: Error ", `{"order_sn":"😀","items":[]}`, "handler", "try", "-")
	assert.Is(t, strings.Contains(said, "be used"), false, "it says of MySQL that it cannot: %s", said)
}

// Given a file with a mistake, when a daemon is started, then it ends with the exit code of wrong configuration, and
// doctor says the same; a file that the database refuses likewise.
func TestRunAndDoctorRefuseAFileWithAMistake(t *testing.T) {
	s := sqlShell(t)
	s.vars = append(s.vars, "$EXAMPLE", exampleSQL)
	s.play("mistakes", nil)
	assert.Is(t, s.broker.Consumers(s.queue), 0, "consumers were there")
}

// Given the tables that migrate makes, with a lock in MySQL and the outbox, then each is among those that an SQL file
// must not write.
func TestAllThatMigrateMakesIsOurOwn(t *testing.T) {
	s := newShell(t, "ROLLBACKD_HANDLER=http", "ROLLBACKD_HTTP_TARGET=http://127.0.0.1:1", "ROLLBACKD_LOCK=mysql",
		"ROLLBACKD_LOG_TABLE=letters", "ROLLBACKD_OUTBOX=on")
	s.quietly("", "migrate")
	cfg := require.First(config.Load(s.environ))(t)
	own := cfg.OwnTables()
	const made = "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND " +
		"table_type = 'BASE TABLE'"
	s.eventually(len(own), made)
	s.eventually(len(own), made+" AND table_name IN ('"+strings.Join(own, "', '")+"')")
}

// Given messages that are run fresh, tried again, taken over from a worker that died, and replayed, then the statement
// is told which attempt it is since the message was published or replayed, as the row in the log counts them.
func TestAStatementIsToldWhichAttemptItIs(t *testing.T) {
	s := newShell(t, "ROLLBACKD_HANDLER=sql", "ROLLBACKD_SQL_FILE=testdata/servers/attempt.sql",
		"ROLLBACKD_RETRY_DELAYS=5s")
	s.track(s.queue, 5*time.Second)
	s.play("attempt", nil)
}

// Given dead letters, when commands replay, discard, mend and delete, then each is an act with who, why, what and how
// many, found from the story of a letter; a dry run is none.
func TestWhatCommandsDoIsOnRecord(t *testing.T) {
	s := migrated(t)
	s.play("acts", map[string]func(){
		"anna discards a": func() {
			s.quietly("", "dlq", "discard", "--key", "a", "--why", "a \x1b[31mtest\n\u202eorder", "--by", "anna")
		},
		"the discard is on record": func() {
			acts := s.recorded()
			discard := acts[len(acts)-1]
			assert.That(t, len(acts) == 4 && discard.Actor == "anna" && discard.Result.Discarded == 1 &&
				discard.Why == "a [31mtest order" && !discard.Ended.IsZero() && discard.State == operator.Done, "the acts are %+v",
				acts)
			story, _, _ := runCLI(t, s.environ, "", "log", "explain", "a", "-o", "json")
			assert.That(t, strings.Contains(story, "anna, run "+discard.ID) && strings.Contains(story, "a [31mtest order"),
				"the letter's story does not name the act %s:\n%s", discard.ID, story)
			s.vars = append(s.vars, "$DISCARD", discard.ID)
		},
	})
}

// recorded are all acts, the latest first.
func (s *shell) recorded() (acts []operator.Act) {
	_, code := s.reads(&acts, "acts", "--json")
	require.Is(s.t, code == exitDone && len(acts) > 0, true, "acts are listed, exit %d", code)
	return acts
}

// Given a log without the table of acts, when letters are replayed and discarded, then that is done, and said once to
// be missing from the record.
func TestARecordThatCannotBeWrittenStopsNoCommand(t *testing.T) { played(t, "acts-missing") }

// Given an account that may do all that commands do but write the record of acts, when letters are replayed and
// discarded, then that is done, and one line each says that the record lacks it and what to do.
func TestAnAccountWithoutTheRightForTheRecordWorksAndSaysSoOnce(t *testing.T) {
	s := migrated(t).dead(`{"order_sn":"a"}`, `{"order_sn":"b"}`)
	a := s.account(newAdmin(t)).may(rights.CLI)
	a.mayMySQL(slices.DeleteFunc(rights.MySQL(a.names, rights.CLI), func(r rights.TableRight) bool {
		return r.Table == "consumer_log_act" && r.Privilege != "SELECT"
	}))
	for _, args := range [][]string{
		{"dlq", "replay", "--key", "a", "--no-wait"}, {"dlq", "discard", "--key", "b", "--why", "a test"},
	} {
		_, stderr, code := runCLI(t, a.environ, "", args...)
		assert.That(t, code == exitDone && strings.Count(stderr, "\n") == 1 &&
			strings.Contains(stderr, "the record of acts lacks this") && strings.Contains(stderr, "docs/rights.md"),
			"%v: exit %d, %q; want one line about the record", args, code, stderr)
	}
	s.eventually(2, "SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 2 AND msg_key = 'a' OR "+
		"consumer_status = 4 AND msg_key = 'b'")
	s.eventually(0, "SELECT COUNT(*) FROM consumer_log_act")
	s.eventually(0, "SELECT COUNT(*) FROM consumer_log_event WHERE `by` LIKE '%, run %'") // which nobody would find
}

// Given a MySQL that freezes when an act is to be written down, or while it goes on, then the command waits for its
// record for four seconds, says that the record lacks this, and goes on.
func TestAMySQLThatFreezesAtTheRecordEndsNoCommand(t *testing.T) {
	s := migrated(t)
	proxy := stack.Proxy(t, stack.Addr(t, s.dsn))
	var stderr strings.Builder
	a := &command.App{Program: "consumer", Stderr: &stderr,
		Environ: append(s.environ, "ROLLBACKD_MYSQL_DSN="+proxy.Through(s.dsn))}
	cfg := require.Get(a.LoadConfig())(t)
	c := &command.Call{App: a, Config: cfg, Command: "log"}
	defer c.End()
	require.OK(t, c.OpenOperator(t.Context()))
	prune := operator.TaskRequest{Kind: operator.KindPrune}
	for _, whenWorking := range []bool{false, true} {
		stderr.Reset()
		done := false
		var frozen time.Time
		freeze := func(now bool) {
			if now {
				proxy.Hold(true)
				frozen = time.Now()
			}
		}
		freeze(!whenWorking)
		err := c.Acts.Do(t.Context(), operator.Actor{Name: "anna"}, prune, func(context.Context, operator.Task) (
			operator.Result, error) {
			done = true
			freeze(whenWorking)
			return operator.Result{Deleted: 1}, nil
		})
		if took := time.Since(frozen); err != nil || !done || took > 7*time.Second ||
			strings.Count(stderr.String(), "the record of acts lacks this") != 1 {
			t.Errorf("frozen while it works %v: %v after %v, done %v, %q", whenWorking, err, took, done, stderr.String())
		}
		proxy.Hold(false)
	}
}

// Given a daemon, when a person pauses the fleet, then nobody consumes until the pause is ended; one that stands is
// only replaced on purpose.
func TestAPersonPausesTheFleetAndResumesIt(t *testing.T) {
	s := migrated(t)
	s.play("pause", map[string]func(){
		"nobody consumes": func() {
			poll.Until(t, "nobody consumes", func() bool { return s.broker.Consumers(s.queue) == 0 })
		},
		"somebody consumes": s.consumes,
	})
}

// consumes waits until somebody consumes the main queue.
func (s *shell) consumes() {
	s.t.Helper()
	poll.Until(s.t, "somebody consumes", func() bool { return s.broker.Consumers(s.queue) > 0 })
}

// Given an order that goes back in part, with a conflict, bodies that cannot be read and a message that nobody can
// identify, then each that names it is explained, and lists choose among their rows.
func TestAnOrderIsExplainedByAllThatNamesIt(t *testing.T) {
	s := migrated(t)
	s.play("log", map[string]func(){"a message without a usable key": func() {
		s.broker.Publish("", s.queue,
			stack.Message{MessageId: "k-1\x01", Type: "stock.rollback", Body: []byte(`{"order_sn":"A-1"}`), DeliveryMode: 2})
	}})
}

// Given a schema without the tables of stock, as a program with a handler of its own has it, then its messages are
// explained all the same.
func TestAMessageIsExplainedWhereNoStockIs(t *testing.T) { played(t, "no-stock") }

func TestALongListGoesOnWhereItEnded(t *testing.T) {
	s := migrated(t)
	s.exec("INSERT INTO consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times, consumer_timestamp," +
		" created_at, reason) WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 99) " + // three pages
		"SELECT 'stock-rollback', 't', a.i * 100 + b.i, b.i % 5, 1, '2026-11-21 12:00:00', UTC_TIMESTAMP(6), " +
		"IF(b.i % 5 = 3, 'exhausted', NULL) FROM n a, n b WHERE a.i * 100 + b.i < 2105")
	after := regexp.MustCompile(`this goes on: --after (\S+)`)
	for of, all := range map[string]int{"log": 2105, "dlq": 2105 / 5} { // each fifth row is dead
		for _, limit := range []string{"0", "200"} {
			seen := map[string]bool{}
			for args := []string{of, "list", "-o", "json", "--limit", limit}; args != nil; {
				var page []struct{ Key string }
				stderr, code := s.reads(&page, args...)
				require.Is(t, code, exitDone, "exit %s", stderr)
				for _, row := range page {
					seen[row.Key] = true
				}
				if m := after.FindStringSubmatch(stderr); m == nil {
					args = nil
				} else {
					args = append(args[:6], "--after", m[1])
				}
			}
			assert.Is(t, len(seen), all, "%s with a limit of %s: different rows", of, limit)
		}
	}
}

// Given a message and reservations that it gave back, then their story is told in order of time.
func TestTheStoryIsInOrderOfTime(t *testing.T) { played(t, "story") }

// Given rows of several ages, when they are pruned, then what would go is shown first, and what is old and has ended
// goes.
func TestPruneShowsWhatGoesAndDeletesIt(t *testing.T) { played(t, "prune") }

// Given a classic queue that was there before, when its messages are moved, then they stand in the main queue, and what
// cannot work is said with what to do.
func TestMoveCarriesAnotherQueueOver(t *testing.T) {
	s := newShell(t)
	old := s.broker.Name("orders.cancelled")
	s.broker.DeclareQueue(old, nil)
	s.broker.Publish("", old, stack.Message{Body: []byte(`{"order_sn":"A-1"}`), MessageId: "A-1"})
	s.vars = append(s.vars, "$OLD", old)
	s.play("move", map[string]func(){
		"it is in the main queue": func() {
			d, ok := s.broker.Get(s.queue)
			assert.That(t, ok && d.MessageId == "A-1" && d.Type == old, "in the main queue is %+v, %v", d, ok)
		},
		"what comes later follows until it is interrupted": func() {
			stop := s.background("move", "--from", old, "--follow")
			poll.Until(t, "somebody moves", func() bool { return s.broker.Consumers(old) > 0 })
			s.broker.Publish("", old, stack.Message{Body: []byte(`{"order_sn":"A-2"}`), MessageId: "A-2"})
			poll.Until(t, "it follows", func() bool { return s.broker.Depth(s.queue) == 1 })
			stop()
		},
		"a message is too large": func() {
			s.broker.Publish("", old,
				stack.Message{MessageId: "large", Headers: map[string]any{"x": strings.Repeat("x", 130_980)}})
		},
	})
}
