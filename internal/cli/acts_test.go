package cli

import (
	"context"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/cli/command"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/rights"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Given dead letters, when commands replay, discard, mend and delete, then each is an act with who, why, what and how
// many, found from the story of a letter; a dry run is none.
func TestWhatCommandsDoIsOnRecord(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	s.play("acts", map[string]func(){
		"anna discards a": func() {
			s.quietly("", "dlq", "discard", "--key", "a", "--why", "a \x1b[31mtest\n\u202eorder", "--by", "anna")
		},
		"the discard is on record": func() {
			acts := s.recorded()
			discard := acts[len(acts)-1]
			if len(acts) != 4 || discard.Actor != "anna" || discard.Result.Discarded != 1 ||
				discard.Why != "a [31mtest order" || discard.Ended.IsZero() || discard.State != operator.Done {
				t.Errorf("the acts are %+v", acts)
			}
			story, _, _ := runCLI(t, s.environ, "", "log", "explain", "a", "-o", "json")
			if !strings.Contains(story, "anna, run "+discard.ID) || !strings.Contains(story, "a [31mtest order") {
				t.Errorf("the letter's story does not name the act %s:\n%s", discard.ID, story)
			}
			s.vars = append(s.vars, "$DISCARD", discard.ID)
		},
	})
}

// recorded are all acts, the latest first.
func (s *shell) recorded() (acts []operator.Act) {
	s.t.Helper()
	stdout, stderr, code := runCLI(s.t, s.environ, "", "acts", "--json")
	if err := json.Unmarshal([]byte(stdout), &acts); err != nil || code != exitDone || len(acts) == 0 {
		s.t.Fatalf("exit %d, %v: %s%s", code, err, stdout, stderr)
	}
	return acts
}

// Given a log without the table of acts, when letters are replayed and discarded, then that is done, and said once to
// be missing from the record.
func TestARecordThatCannotBeWrittenStopsNoCommand(t *testing.T) { played(t, "acts-missing") }

// Given an export of dead letters, when it is replayed, then the act says from which file.
func TestAReplayFromAFileIsOnRecord(t *testing.T) {
	t.Parallel()
	s := deadShop(t, `{"order_sn":"a"}`)
	file := filepath.Join(t.TempDir(), "letters")
	s.run("", "dlq", "export", "-o", file)
	s.run("", "dlq", "replay", "--from", file, "--no-wait")
	acts := s.recorded()
	if r, err := acts[0].Request(); err != nil || len(acts) != 1 || r.From != file || acts[0].Result.Replayed != 1 {
		t.Errorf("%v: %+v", err, acts)
	}
}

// Given an account that may do all that commands do but write the record of acts, when letters are replayed and
// discarded, then that is done, and one line each says that the record lacks it and what to do.
func TestAnAccountWithoutTheRightForTheRecordWorksAndSaysSoOnce(t *testing.T) {
	t.Parallel()
	s := deadShop(t, `{"order_sn":"a"}`, `{"order_sn":"b"}`)
	a := s.account(newAdmin(t)).may(rights.CLI)
	a.mayMySQL(slices.DeleteFunc(rights.MySQL(a.names, rights.CLI), func(r rights.TableRight) bool {
		return r.Table == "consumer_log_act" && r.Privilege != "SELECT"
	}))
	for _, args := range [][]string{
		{"dlq", "replay", "--key", "a", "--no-wait"}, {"dlq", "discard", "--key", "b", "--why", "a test"},
	} {
		_, stderr, code := runCLI(t, a.environ, "", args...)
		if code != exitDone || strings.Count(stderr, "\n") != 1 ||
			!strings.Contains(stderr, "the record of acts lacks this") || !strings.Contains(stderr, "docs/rights.md") {
			t.Errorf("%v: exit %d, %q; want one line about the record", args, code, stderr)
		}
	}
	s.eventually(2, "SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 2 AND msg_key = 'a' OR "+
		"consumer_status = 4 AND msg_key = 'b'")
	s.eventually(0, "SELECT COUNT(*) FROM consumer_log_act")
}

// Given a MySQL that freezes when an act is to be written down, or while it goes on, then the command waits for its
// record for four seconds, says that the record lacks this, and goes on.
func TestAMySQLThatFreezesAtTheRecordEndsNoCommand(t *testing.T) {
	t.Parallel()
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
