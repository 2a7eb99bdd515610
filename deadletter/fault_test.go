package deadletter_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func isCommit(b []byte) bool { return bytes.HasSuffix(b, []byte("COMMIT")) }

func TestAReopenWhoseAnswerIsLostIsRecognised(t *testing.T) {
	for name, arm := range map[string]func(*stack.TCPProxy, func([]byte) bool) <-chan struct{}{
		"committed": (*stack.TCPProxy).DropReply, "not committed": (*stack.TCPProxy).DropRequest,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).dead(dedup.ReasonExhausted, "k")
			proxy := w.proxied()
			sprung := arm(proxy, isCommit)
			w.replay(all, plain, "replayed 1")
			<-sprung
			w.WantQueues(1, 0)
			w.wantRow(identity("k"), dedup.Failed, 1)
		})
	}
}

// proxied leads what is tested to MySQL through a proxy.
func (w *world) proxied() *stack.TCPProxy {
	w.T.Helper()
	proxy := stack.Proxy(w.T, stack.Addr(w.T, w.dsn))
	w.dsn = proxy.Through(w.dsn)
	return proxy
}

func TestAReopenOfUnknownOutcomeIsNeverPublished(t *testing.T) {
	w := newWorld(t).deadMany(dedup.ReasonExhausted, 3)
	proxy := w.proxied()
	// given a database that is gone from the first COMMIT on
	letters := w.letters()
	require.First(letters.List(t.Context(), all, ""))(t) // opens the only connection there will be
	sprung := proxy.DropReply(isCommit)
	proxy.Refuse(true)
	res, err := letters.Replay(t.Context(), byKeys("k-00001"), deadletter.ReplayOptions{By: "tester"})
	if err == nil {
		t.Error("Replay did not say that the database is gone")
	}
	<-sprung
	// then the letter stays, nothing is published, although the row is reopened: the server had committed
	w.WantQueues(0, 3)
	require.Is(t, [2]int{res.Replayed, res.LeftBy[deadletter.WhyUnknown]}, [2]int{0, 1}, "%+v", res)
	w.wantRow(identity("k-00001"), dedup.Failed, 1)
	// and the next run replays it
	proxy.Refuse(false)
	w.replay(all, plain)
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
	w.replay(all, plain, "replayed 3")
}
