package cli

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/cli/command"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/rights"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

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
