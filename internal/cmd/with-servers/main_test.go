package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// given sets variables that name servers, so that none of these is started.
func given(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range []string{stack.EnvAMQP, stack.EnvMySQL, stack.EnvRedis, stack.EnvPrivate} {
		t.Setenv(name, "")
	}
	for _, name := range names {
		t.Setenv(name, "given")
	}
}

func TestExitsAsTheCommandDid(t *testing.T) {
	given(t, stack.EnvAMQP, stack.EnvMySQL, stack.EnvRedis)
	for script, want := range map[string]int{
		"exit 0":                                0,
		"exit 3":                                3,
		"kill -KILL $$":                         128 + 9,
		`test "$` + stack.EnvAMQP + `" = given`: 0,        // given servers are passed on
		"kill -TERM $PPID; exec sleep 60":       128 + 15, // a signal to this process reaches the command
	} {
		if code, err := run([]string{"sh", "-c", script}); code != want || err != nil {
			t.Errorf("%s: exit code %d, %v, want %d", script, code, err, want)
		}
	}
	if code, err := run([]string{"/no/such/command"}); code == 0 || err == nil {
		t.Errorf("a command that does not exist: exit code %d, %v", code, err)
	}
}

func TestStartsWhatIsMissingAndStopsIt(t *testing.T) {
	given(t, stack.EnvAMQP, stack.EnvMySQL)
	out := filepath.Join(t.TempDir(), "out")

	code, err := run([]string{"sh", "-c", `echo $` + stack.EnvRedis + ` $` + stack.EnvPrivate + ` $` + stack.EnvAMQP +
		` >` + out + `; test -e $` + stack.EnvPrivate})
	require.That(t, code == 0 && err == nil, "exit code %d, %v", code, err)

	text := require.Get(os.ReadFile(out))(t)
	words := strings.Fields(string(text))
	require.That(t, len(words) == 3 && strings.HasPrefix(words[0], "redis://127.0.0.1:") && words[2] == "given",
		"the command saw %q", words)
	if _, err := os.Stat(filepath.Dir(words[1])); !os.IsNotExist(err) {
		t.Errorf("the servers' folder is still there: %v", err)
	}
}
