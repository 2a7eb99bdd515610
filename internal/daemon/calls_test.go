package daemon_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/oracle"
)

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
			service, settings := startStock(t)
			w := newWorld(t, settings...)
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
