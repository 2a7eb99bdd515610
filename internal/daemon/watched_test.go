package daemon_test

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// Given a daemon whose pages are watched, when it is told to stop, then the events end as an answer does that is whole,
// and it exits with 0 although nobody has closed a browser.
func TestADaemonThatStopsEndsTheEventsOfItsPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "LANES", "1")
	p := w.start()
	addr := require.Get(p.Addr(t.Context()))(t)
	var watched []*bufio.Reader
	for _, path := range []string{"/?live=1", "/letters?live=1", "/acts?live=1", "/reconcile?live=1"} {
		req := require.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+path, http.NoBody))(t)
		resp := require.Get(http.DefaultClient.Do(req))(t)
		defer resp.Body.Close()
		events := bufio.NewReader(resp.Body)
		if line, err := events.ReadString('\n'); err != nil || !strings.HasPrefix(line, ":") {
			t.Fatalf("%s begins with %q, HTTP %d, %v", path, line, resp.StatusCode, err)
		}
		watched = append(watched, events)
	}
	w.stop(p)
	for _, events := range watched {
		if _, err := io.Copy(io.Discard, events); err != nil {
			t.Errorf("the events were cut off: %v", err)
		}
	}
	w.judge(oracle.Allowance{})
}
