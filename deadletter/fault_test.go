package deadletter_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func isCommit(b []byte) bool { return bytes.HasSuffix(b, []byte("COMMIT")) }

func TestAReopenWhoseAnswerIsLostIsRecognised(t *testing.T) {
	for name, arm := range map[string]func(*stack.TCPProxy) <-chan struct{}{
		"committed":     func(p *stack.TCPProxy) <-chan struct{} { return p.DropReply(isCommit) },
		"not committed": func(p *stack.TCPProxy) <-chan struct{} { return p.DropRequest(isCommit) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.dead(dedup.ReasonExhausted, "k")
			proxy := stack.Proxy(t, stack.Addr(t, w.dsn))
			w.dsn = proxy.Through(w.dsn)
			sprung := arm(proxy)
			res := w.replay(all, deadletter.ReplayOptions{})
			<-sprung
			w.WantQueues(1, 0)
			if row := w.Row("k"); res.Replayed != 1 || row.Replays != 1 {
				t.Errorf("%+v, %d replays in the row; want one replay", res, row.Replays)
			}
		})
	}
}

func TestAReopenOfUnknownOutcomeIsNeverPublished(t *testing.T) {
	w := newWorld(t)
	w.dead(dedup.ReasonExhausted, names("k", 3)...)
	direct := w.dsn
	proxy := stack.Proxy(t, stack.Addr(t, w.dsn))
	w.dsn = proxy.Through(w.dsn)
	// given a database that is gone from the first COMMIT on
	letters := w.letters()
	if _, _, err := letters.List(t.Context(), all, ""); err != nil { // opens the only connection there will be
		t.Fatal(err)
	}
	sprung := proxy.DropReply(isCommit)
	proxy.Refuse(true)
	res, err := letters.Replay(t.Context(), deadletter.Filter{Keys: []string{"k-00001"}},
		deadletter.ReplayOptions{By: "tester"})
	if err == nil {
		t.Error("Replay did not say that the database is gone")
	}
	<-sprung
	// then the letter stays, nothing is published, although the row is reopened
	w.WantQueues(0, 3)
	if len(res.Left) != 1 || res.Left[0].Why != deadletter.WhyUnknown || res.Replayed != 0 {
		t.Fatalf("%+v; want one letter left", res)
	}
	if row := w.Row("k-00001"); row.Status != dedup.Failed || row.Replays != 1 {
		t.Errorf("row = %v after %d replays, want it reopened: the server had committed", row.Status, row.Replays)
	}
	// and the next run replays it
	proxy.Refuse(false)
	w.dsn = direct
	w.replay(all, deadletter.ReplayOptions{})
	w.WantQueues(3, 0)
}

// Given a broker that is slow, so that nothing comes for a while although all letters are on their way, then the run
// does not take its queue for empty.
func TestLettersThatAreLongOnTheirWayAreWaitedFor(t *testing.T) {
	w := newWorld(t)
	for _, key := range names("k", 3) {
		d := message(key, `"`+strings.Repeat("x", 100<<10)+`"`)
		w.filed(d, w.Identify(d), dedup.ReasonExhausted)
	}
	line := stack.Proxy(t, stack.Addr(t, w.amqpURL))
	w.amqpURL = line.Through(w.amqpURL)
	line.Rate(200 << 10)
	if res := w.replay(all, deadletter.ReplayOptions{}); res.Replayed != 3 {
		t.Errorf("%+v; want all three replayed", res)
	}
}

func TestALostConnectionToRabbitMQLosesNoLetter(t *testing.T) {
	w := newWorld(t)
	const n = 1400
	w.dead(dedup.ReasonExhausted, names("k", n)...)
	windows := 0
	w.hook = func(p deadletter.Point) error {
		if p == deadletter.PointReopened {
			if windows++; windows == 2 {
				w.Broker.CloseConnections()
			}
		}
		return nil
	}
	res, err := w.letters().Replay(t.Context(), all, deadletter.ReplayOptions{By: "tester"})
	if err == nil || res.Replayed >= n {
		t.Fatalf("Replay = %+v, %v; want it to end early", res, err)
	}
	w.hook = nil
	again := w.replay(all, deadletter.ReplayOptions{})
	w.Eventually("an empty dead-letter queue", func() (string, bool) {
		return "letters", w.Broker.Depth(rabbit.DeadQueue(w.Queue)) == 0
	})
	// then each message is in the main queue at least once
	seen := map[string]bool{}
	for {
		d, ok := w.Broker.Get(w.Queue)
		if !ok {
			break
		}
		seen[d.MessageId] = true
	}
	if len(seen) != n {
		t.Errorf("%d different messages are in the main queue, want %d; %d and then %d replayed", len(seen), n, res.Replayed,
			again.Replayed)
	}
}

func TestASessionThatIsKilledInMySQLCostsNoLetter(t *testing.T) {
	w := newWorld(t)
	w.dead(dedup.ReasonExhausted, names("k", 1100)...)
	proxy := stack.Proxy(t, stack.Addr(t, w.dsn))
	w.dsn = proxy.Through(w.dsn)
	cut := false
	w.hook = func(p deadletter.Point) error {
		if p == deadletter.PointAcked && !cut {
			cut = true
			proxy.Cut()
		}
		return nil
	}
	res, err := w.letters().Replay(t.Context(), all, deadletter.ReplayOptions{By: "tester"})
	w.hook = nil
	if err != nil {
		again := w.replay(all, deadletter.ReplayOptions{})
		res.Replayed += again.Replayed
	}
	w.WantQueues(1100, 0)
	assert.Is(t, res.Replayed, 1100, "replayed")
}
