package daemon_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// newCallsWorld is a world with handler http and its service.
func newCallsWorld(t *testing.T, pairs ...string) (*world, *stockService) {
	t.Helper()
	dsn := stack.MySQL(t)
	s, at := startStock(t, dsn)
	settings := []string{"MYSQL_DSN", dsn, "HANDLER", "http", "HTTP_TARGET", at.URL + "/rollbacks", "HTTP_TIMEOUT", "2s"}
	return newWorld(t, append(settings, pairs...)...), s
}

// Given a process that is killed when the service has applied a group and nothing is marked, when the next one takes it
// over, then each of these messages is called for once more, with the same key, and has one effect.
func TestKilledBetweenCallAndMarkCallsAgainWithTheSameKey(t *testing.T) {
	t.Parallel()
	w, service := newCallsWorld(t, "LOCK_TTL", "1s", "LEASE", "4s", "HANDLER_TIMEOUT", "2s", "LANES", "1",
		"BATCH_SIZE", "50")
	orders := w.open(200)
	w.publish(w.route.Rollbacks(orders)...)
	w.exits(w.child(crashEnv+"="+string(consumer.PointEffect)), killed, 30*time.Second)
	twice := service.callsInAll()
	if left := w.rows(dedup.Processing); left != twice || twice == 0 {
		t.Fatalf("%d calls were made and %d claims are left, want as many, and some", twice, left)
	}
	is(w, "attempts were spent", w.finish(len(orders), 0, oracle.Allowance{Attempts: 2}).AttemptsSpent, twice)
	if n, keys := service.callsInAll(), service.keys(); n != len(orders)+twice || keys != len(orders) {
		t.Errorf("%d calls with %d keys, want %d calls: %d again, with the %d keys", n, keys, len(orders)+twice, twice,
			len(orders))
	}
}

// Given a service that is away, or refuses whoever asks, then the daemon names it and spends no attempt; a stop finds
// it at rest; and when the service is back everything is applied at its first attempt.
func TestAServiceThatIsAwayIsNamedAndWaitedFor(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		status int
		says   string
	}{
		{"away", http.StatusServiceUnavailable, "it answered 503"},
		{"refuses", http.StatusUnauthorized, "it answered 401"},
		{"moved", http.StatusMovedPermanently, "redirects are not followed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w, service := newCallsWorld(t)
			service.answerWith(test.status)
			orders := w.open(100)
			w.publish(w.route.Rollbacks(orders)...)
			daemon := w.start()
			w.eventually("/readyz names the service", func() bool {
				_, r := w.readyz(daemon)
				return !r.Ready && slices.ContainsFunc(r.Waiting, func(s string) bool {
					return strings.HasPrefix(s, "service: ") && strings.Contains(s, test.says)
				})
			})
			w.stop(daemon)
			is(w, "attempts were spent", w.count("SELECT COALESCE(MAX(consumer_times), 0) FROM consumer_log"), 0)
			daemon = w.start()
			w.eventually("it is named again", func() bool {
				_, r := w.readyz(daemon)
				return slices.ContainsFunc(r.Waiting, func(s string) bool { return strings.HasPrefix(s, "service: ") })
			})
			service.answerWith(0)
			w.ready(daemon)
			w.ended(len(orders))
			w.stop(daemon)
			w.judged(len(orders), 0, oracle.Allowance{})
			is(w, "attempts", w.count("SELECT MAX(consumer_times) FROM consumer_log"), 1)
		})
	}
}
