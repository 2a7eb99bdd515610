package stack

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

func TestFrozenRedisDoesNotAnswerUntilThawed(t *testing.T) {
	t.Parallel()
	s := OwnRedis(t)

	s.Freeze()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	assert.Error(t, pingRedis(ctx, s.Addr()), os.ErrDeadlineExceeded, "ping of a frozen redis")
	s.Thaw()
	assert.OK(t, pingRedis(t.Context(), s.Addr()), "ping of a thawed redis:")

	// A frozen server is killed and stopped all the same.
	s.Freeze()
	s.Stop()
	s.Start()
	s.Freeze()
	s.Kill()
}

func TestFaultThatDoesNotHappenFailsTheTest(t *testing.T) {
	s := OwnRedis(t)
	r := &recorder{TB: t}
	s.t = r
	s.Kill()
	assert.That(t, s.Freeze() != nil, "a dead server was frozen")
	_, err := s.Ctl("x")
	assert.That(t, err != nil, "redis has no control command and took one")
	s.Start()
	assert.That(t, s.Start() != nil, "a running server was started")
	s.t = t
	assert.That(t, len(r.errors) == 3, "the test failed %d times, want 3: %q", len(r.errors), r.errors)
}

func TestADiskOfItsOwnRunsFullAndIsFreedAgain(t *testing.T) {
	t.Parallel()
	s := Own(t, Options{Only: []Kind{KindMySQL}, MySQLDisk: 400 << 20})
	mounts := require.Get(os.ReadFile("/proc/thread-self/mounts"))(t)
	assert.That(t, !strings.Contains(string(mounts), s.dir), "the machine sees the disk")
	dsn := s.Database(t)
	execMySQL(t, dsn, "CREATE TABLE x (id INT PRIMARY KEY AUTO_INCREMENT, b BLOB NOT NULL)")
	db := OpenMySQL(parseDSN(t, dsn))
	defer db.Close()
	insert := func() (err error) {
		_, err = db.Exec("INSERT INTO x (b) VALUES (?)", strings.Repeat("x", 4000))
		return err
	}

	s.FillDisk()

	var err error
	for range 10_000 { // what InnoDB has set aside is soon used up
		if err = insert(); err != nil {
			break
		}
	}
	full, ok := errors.AsType[*mysql.MySQLError](err)
	assert.That(t, ok && full.Number == 1114, "INSERT on a full disk = %v, want error 1114", err)

	s.FreeDisk()

	assert.OK(t, insert(), "INSERT on a disk that is free again:")

	// One that died of it is started again, with its disk.
	s.FillDisk()
	s.Kill()
	s.FreeDisk()
	assert.OK(t, insert(), "INSERT after a death on a full disk:")
}

// Given many tests that ask for an address and do not listen on it yet, then no two get the same one.
func TestNoTwoGetTheSameFreeAddress(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var asking sync.WaitGroup
	got := map[string]bool{}
	for range 8 {
		asking.Go(func() {
			for range 100 { // by chance some 27 of 800 among 12,000 would be alike
				addr := FreeAddr(t)
				mu.Lock()
				assert.That(t, !got[addr], "%s was given twice", addr)
				got[addr] = true
				mu.Unlock()
			}
		})
	}
	asking.Wait()
}

func TestStartThatFailsShowsTheLogAndLeavesNothing(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)

	_, err := Start(t.Context(), Options{Only: []Kind{KindRedis}, RedisArgs: []string{"--no-such-setting", "1"}})

	assert.Has(t, fmt.Sprint(err), "no-such-setting", "Start, with what redis wrote of the setting")
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

func TestAProgramOfATreeIsFoundThroughTheTreesOwnLinks(t *testing.T) {
	// given a tree with programs, and links as Debian makes them
	tree := t.TempDir()
	for name, mode := range map[string]os.FileMode{
		"usr/bin/real-server": 0o755, "usr/bin/no-program": 0o644, "usr/lib/alternatives/server-2": 0o755,
	} {
		file := filepath.Join(tree, name)
		require.OK(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, nil, mode)))
	}
	for link, target := range map[string]string{
		"usr/bin/absolute": "/usr/lib/alternatives/server-2", // which the machine does not have
		"usr/bin/relative": "../lib/alternatives/server-2",
		"usr/bin/nowhere":  "/usr/lib/alternatives/server-3",
		"usr/bin/loop":     "loop",
		"usr/bin/outside":  "/bin/sh", // which the tree does not have
	} {
		require.OK(t, os.Symlink(target, filepath.Join(tree, link)))
	}
	for name, want := range map[string]string{
		"real-server": "/usr/bin/real-server", "absolute": "/usr/bin/absolute", "relative": "/usr/bin/relative",
		"/usr/lib/alternatives/server-*": "/usr/lib/alternatives/server-2",
		"no-program":                     "", "nowhere": "", "loop": "", "outside": "", "sh": "",
	} {
		// when it is looked for
		found, err := findIn(tree, name)

		// then its path is the one inside the tree, and a program of the machine is none of the tree's
		switch {
		case want == "" && !errors.Is(err, errNotInstalled):
			t.Errorf("%s: found %+v, error %v, want %v", name, found, err, errNotInstalled)
		case want != "" && (err != nil || found != executable{path: want, tree: tree}):
			t.Errorf("%s: found %+v, error %v, want %s in the tree", name, found, err, want)
		}
	}
}
