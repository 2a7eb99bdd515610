package deadletter_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/letters"
)

// bigEnv asks for the size that the issue names; without it the test is as large as fits into an ordinary run.
const bigEnv = "ROLLBACKD_TEST_BIG"

// childEnv makes the test binary a process that replays, to be killed.
const childEnv = "ROLLBACKD_TEST_REPLAY"

func TestAFewLettersAmongManyAreReplayedThoughKilledHalfWay(t *testing.T) {
	n := 3000
	if os.Getenv(bigEnv) != "" {
		n = 200_000
	}
	w := newWorld(t).deadMany(dedup.ReasonExhausted, n)
	keys := names("k", n)
	var chosen []string
	for i := range 12 {
		chosen = append(chosen, keys[i*(n-1)/11])
	}
	// given a replay that is killed with SIGKILL when it has replayed some of them
	w.killedReplay(chosen)
	w.wantTogether(n)
	// when it is done again
	began := time.Now()
	res := w.replay(byKeys(chosen...), plain)
	t.Logf("%d letters by key among %d: %v", len(chosen), n, time.Since(began).Round(10*time.Millisecond))
	if res.Replayed == 0 || len(res.Left) != 0 || res.Unseen != 0 {
		t.Errorf("%+v; want the rest replayed", res)
	}
	// then those are in the main queue, every other letter is where it was
	w.Eventually("all other letters", func() (string, bool) {
		return "fewer", w.Broker.Depth(rabbit.DeadQueue(w.Queue)) == n-len(chosen)
	})
	assert.Is(t, w.Number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 2 AND replays > 0"), 12, "reopened")
	w.wantStatus(dedup.Dead, 0, n-len(chosen))
	for _, key := range chosen {
		assert.Is(t, w.Row(key).Status, dedup.Failed, "%s", key)
	}
}

// killedReplay starts a process that replays keys slowly and kills it after its first ones.
func (w *world) killedReplay(keys []string) {
	w.T.Helper()
	cmd := exec.CommandContext(w.T.Context(), os.Args[0], "-test.run=^TestChildThatReplays$")
	cmd.Env = append(os.Environ(), childEnv+"="+strings.Join([]string{w.dsn, w.amqpURL, w.Queue, strings.Join(keys, ",")},
		"\n"))
	w.Must(cmd.Start())
	w.Eventually("three are reopened", func() (string, bool) {
		return "", w.Number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 2") >= 3
	})
	assert.OK(w.T, cmd.Process.Kill(), "the replay had ended by itself:")
	if err := cmd.Wait(); err == nil {
		w.T.Error("the replay had ended by itself")
	}
}

// wantTogether waits until the broker has taken back what the dead process held: no letter is missing.
func (w *world) wantTogether(n int) {
	w.T.Helper()
	w.Eventually("all letters in either queue", func() (string, bool) {
		return "fewer", w.Broker.Depth(w.Queue)+w.Broker.Depth(rabbit.DeadQueue(w.Queue)) >= n
	})
}

// TestChildThatReplays is the process that is killed; as a test of its own it does nothing.
func TestChildThatReplays(t *testing.T) {
	settings := strings.Split(os.Getenv(childEnv), "\n")
	if len(settings) != 4 {
		return
	}
	w := &world{World: &letters.World{T: t, Queue: settings[2]}, dsn: settings[0], amqpURL: settings[1], keyFrom: keyFrom}
	// a letter a second, so that it cannot be done before it is killed
	w.replay(byKeys(strings.Split(settings[3], ",")...), deadletter.ReplayOptions{Rate: 1})
}
