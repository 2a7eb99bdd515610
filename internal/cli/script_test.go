package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/doctor"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// play does what testdata/servers/NAME.script says, line by line, and holds what the program said against NAME.golden,
// if there is one. Lines that begin with a tab belong to the one above. A $NAME stands for what vars say.
//
//	$ ARGS             runs the program; below it, what it reads
//	quietly ARGS       the same, outside the transcript; it must succeed
//	dead               publishes each line below as a message, and lets a daemon make letters of them
//	daemon, stop       runs a daemon from here to there
//	sql STATEMENT      is for the database
//	wait N QUERY       until the query gives this number
//	env NAME=VALUE …   for all that follows
//	doctor NAME=VALUE … asks doctor, with these settings besides; below it, what must be among its checks, each as
//	                   LEVEL NAME = FOUND → DO, of which the last two may lack and FOUND may have gaps, …;
//	                   "exit N"; and "no TEXT", which none may have
//
// Any other line is one of steps.
func (s *shell) play(name string, steps map[string]func()) {
	s.t.Helper()
	script := filepath.Join("testdata", "servers", name)
	text := require.Get(os.ReadFile(script + ".script"))(s.t)
	s.file = filepath.Join(s.t.TempDir(), "letters.ndjson")
	s.vars = append(s.vars, "$QUEUE", s.queue, "$FILE", s.file)
	s.replace = append(s.replace, s.file, "FILE")
	stop := func() {}
	for _, paragraph := range strings.Split(strings.ReplaceAll(string(text), "\n\t", "\x00"), "\n") {
		paragraph = strings.NewReplacer(s.vars...).Replace(paragraph)
		line, below, _ := strings.Cut(paragraph, "\x00")
		below = strings.ReplaceAll(below, "\x00", "\n")
		step, rest, _ := strings.Cut(line, " ")
		switch step {
		case "", "#":
		case "$":
			s.run(below, words(s.t, rest)...)
		case "quietly":
			s.quietly(below, words(s.t, rest)...)
		case "dead":
			s.dead(strings.Split(below, "\n")...)
		case "daemon":
			stop = s.daemon(words(s.t, rest)...)
		case "stop":
			stop()
		case "sql":
			s.exec(strings.ReplaceAll(rest+" "+below, "\n", " "))
		case "wait":
			number, query, _ := strings.Cut(rest, " ")
			n := require.Get(strconv.Atoi(number))(s.t)
			s.eventually(n, query)
		case "env":
			s.environ = append(s.environ, words(s.t, rest)...)
		case "doctor":
			s.says(below, words(s.t, rest)...)
		default:
			if steps[line] == nil {
				s.t.Fatalf("%s.script: what is %q?", script, line)
			}
			steps[line]()
		}
	}
	if _, err := os.Stat(script + ".golden"); err == nil || s.script.Len() > 0 {
		s.golden(name)
	}
}

// played is a test that is its script, on servers where everything is made.
func played(t *testing.T, name string, more ...string) {
	t.Helper()
	t.Parallel()
	migrated(t, more...).play(name, nil)
}

// quietly runs a command that must succeed, and leaves no trace in the transcript.
func (s *shell) quietly(stdin string, args ...string) {
	s.t.Helper()
	before := s.script.Len()
	require.Is(s.t, s.run(stdin, args...), exitDone, "exit %s", s.script.String()[before:])
	s.script.Truncate(before)
}

// dead makes dead letters of messages that cannot be applied.
func (s *shell) dead(bodies ...string) {
	s.t.Helper()
	s.quietly(strings.Join(bodies, "\n"), "publish", "--key-field", "order_sn")
	stop := s.daemon()
	s.eventually(len(bodies), "SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 3")
	stop()
}

// examine runs doctor with some settings besides, or instead of, those of the shell.
func (s *shell) examine(more ...string) (checks []doctor.Check, code int) {
	s.t.Helper()
	stdout, stderr, code := runCLI(s.t, append(slices.Clip(s.environ), more...), "", "doctor", "-o", "json")
	if err := json.Unmarshal([]byte(stdout), &checks); err != nil {
		s.t.Fatalf("exit %d, %q, %q: %v", code, stdout, stderr, err)
	}
	return checks, code
}

// says holds what doctor says, with these settings besides, against lines that it must fulfil; see play.
func (s *shell) says(wants string, more ...string) {
	s.t.Helper()
	checks, code := s.examine(more...)
	for want := range strings.Lines(wants) {
		if want = strings.TrimSpace(want); want != "" && !fulfilled(want, checks, code) {
			s.t.Errorf("with %q doctor does not fulfil %q (exit %d):\n%+v", more, want, code, checks)
		}
	}
}

// until asks doctor again and again until it says this.
func (s *shell) until(want string, more ...string) {
	s.t.Helper()
	var checks []doctor.Check
	if !poll.Within(time.Minute, func() (good bool) {
		var code int
		checks, code = s.examine(more...)
		return fulfilled(want, checks, code)
	}) {
		s.t.Fatalf("after a minute doctor does not fulfil %q: %+v", want, checks)
	}
}

func fulfilled(want string, checks []doctor.Check, code int) bool {
	level, rest, _ := strings.Cut(want, " ")
	name, found, _ := strings.Cut(rest, " = ")
	found, do, _ := strings.Cut(found, " → ")
	said := slices.ContainsFunc(checks, func(c doctor.Check) bool {
		if level == "no" {
			return strings.Contains(string(c.Level)+" "+c.Name+" = "+c.Found+" → "+c.Do, rest)
		}
		return string(c.Level) == level && strings.Contains(c.Name, name) && strings.Contains(c.Do, do) &&
			!slices.ContainsFunc(strings.Split(found, "…"), func(p string) bool { return !strings.Contains(c.Found, p) }) &&
			(c.Do != "" || c.Level == doctor.OK || c.Level == doctor.Note)
	})
	switch level {
	case "no":
		return !said
	case "exit":
		return strconv.Itoa(code) == rest
	}
	return said && (level != string(doctor.Fail) || code == exitFailed)
}
