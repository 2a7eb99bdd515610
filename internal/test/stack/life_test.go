package stack

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

func TestStartThatFailsShowsTheLogAndLeavesNothing(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)

	_, err := Start(t.Context(), Options{Only: []Kind{KindRedis}, RedisArgs: []string{"--no-such-setting", "1"}})

	assert.That(t, err != nil && strings.Contains(err.Error(), "no-such-setting"),
		"Start = %v, want what redis wrote of the setting", err)
	left, _ := filepath.Glob(filepath.Join(tmp, "*"))
	assert.That(t, len(left) == 0, "left behind: %v", left)
}

// processesIn finds the processes which have a folder below dir as their home, as all our servers and their helpers
// have.
func processesIn(t *testing.T, dir string) (pids []string) {
	t.Helper()
	paths := require.Get(filepath.Glob("/proc/[0-9]*/environ"))(t)
	for _, path := range paths {
		text, err := os.ReadFile(path) // fails for processes of others and for those that just ended
		if err == nil && strings.Contains(string(text), "HOME="+dir) {
			pids = append(pids, strings.Split(path, "/")[2])
		}
	}
	return pids
}

// envHelper makes the test binary a helper of [TestKilledProcessLeavesNoServer] instead of running tests.
const envHelper = "ROLLBACKD_STACK_TEST_HELPER"

func TestMain(m *testing.M) {
	if os.Getenv(envHelper) != "" {
		helper()
	}
	Main(m)
}

// helper starts servers, says where, and waits to be killed.
func helper() {
	s, err := Start(context.Background(), Options{})
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	fmt.Println(s.dir)
	_, _ = io.Copy(io.Discard, os.Stdin) // until the parent is gone
	os.Exit(1)
}

func TestKilledProcessLeavesNoServer(t *testing.T) {
	// Given a process with servers.
	tmp := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envHelper+"=1", "TMPDIR="+tmp)
	stdin := require.Get(cmd.StdinPipe())(t)
	defer stdin.Close()
	stdout := require.Get(cmd.StdoutPipe())(t)
	require.OK(t, cmd.Start())
	dir, _ := bufio.NewReader(stdout).ReadString('\n') // an early end shows in what was read
	dir = strings.TrimSpace(dir)
	require.That(t, filepath.IsAbs(dir), "the helper said %q, want its folder", dir)
	assert.AtLeast(t, len(processesIn(t, dir)), 4, "processes run in the stack's folder")

	// When it is killed.
	require.OK(t, cmd.Process.Kill())
	_ = cmd.Wait() // says that it was killed

	// Then no server is left, and the next start removes the data.
	poll.Until(t, "no process being left", func() bool { return len(processesIn(t, dir)) == 0 })
	t.Setenv("TMPDIR", tmp)
	s := require.Get(Start(t.Context(), Options{}))(t)
	_, err := os.Stat(dir)
	assert.Error(t, err, os.ErrNotExist, "looking for the killed process's folder")
	assert.AtLeast(t, len(processesIn(t, s.dir)), 4, "processes run in the living process's folder")

	// And one that is stopped leaves nothing.
	assert.OK(t, s.Stop())
	poll.Until(t, "no process being left", func() bool { return len(processesIn(t, s.dir)) == 0 })
	_, err = os.Stat(s.dir)
	assert.Error(t, err, os.ErrNotExist, "looking for the stopped one's folder")
}

func TestServersGivenFromOutsideAreNotKilled(t *testing.T) {
	s := require.Get(Start(t.Context(), Options{Only: []Kind{KindRedis}}))(t)
	defer s.Stop()
	environ := require.Get(s.Environ(t.Context()))(t)
	for _, c := range []struct {
		name    string
		private bool
	}{{"given by somebody", false}, {"ours", true}} {
		t.Run(c.name, func(t *testing.T) {
			for _, v := range environ {
				name, value, _ := strings.Cut(v, "=")
				if name == EnvPrivate && !c.private {
					value = ""
				}
				t.Setenv(name, value)
			}
			assert.That(t, !slices.Contains(Missing(), KindRedis), "the redis that is given counts as missing")
			given := &sharedServer{}
			assert.Is(t, given.get(t, KindRedis).url, s.Redis.URL(), "shared redis")
			skipped := true
			t.Run("own", func(t *testing.T) {
				OwnRedis(t)
				skipped = false
			})
			assert.Is(t, skipped, !c.private, "a test that kills was skipped")
		})
	}
}
