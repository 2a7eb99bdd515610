package pages

import (
	"fmt"
	"html"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/admin/server"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// bigEnv asks for a million letters.
const bigEnv = "ROLLBACKD_TEST_BIG"

var throughAll = regexp.MustCompile(`href="([^"]*whole=1[^"]*)">Look through all`)

// Given twelve letters of all ages among many, then what a replay of them would do is said at once where their kind is
// looked for by key, and else by the page that looks through all letters.
func TestTwelveLettersAmongManyAreFound(t *testing.T) {
	n := 6000
	w := newWorld(t, "", server.GuardOptions{}, view.Hide{})
	if os.Getenv(bigEnv) != "" {
		n = 1_000_000
		w.exec("SET GLOBAL innodb_buffer_pool_size = 2147483648") // with the tests' 256 MB the rows would be on the disk
	}
	w.deadMany(n)
	kind := deadletter.Fingerprint("the door of store Ypsilon does not open for order A-7")
	oldest := 11*(n/12) + 7
	for name, c := range map[string]struct {
		query url.Values
		want  int
	}{
		"by key":   {url.Values{"key": {fmt.Sprint("k-", oldest)}}, 1},
		"by error": {url.Values{"error": {"store Ypsilon"}}, 12},
		"by group": {url.Values{"fingerprint": {kind}, "reason": {string(dedup.ReasonExhausted)}}, 12},
	} {
		c.query.Set("act", "replay")
		took, page := w.found("/letters/act?" + c.query.Encode())
		t.Logf("%s among %d letters: %v", name, n, took)
		if strings.Count(page, ">will run<") != c.want || strings.Contains(page, "At least") {
			t.Errorf("%s: want %d that will run:\n%s", name, c.want, page)
		}
	}
}

// found opens a preview, and if that did not look through all letters the one that does. It says how long each took.
func (w *world) found(address string) (took []time.Duration, page string) {
	w.t.Helper()
	for {
		began := time.Now()
		status, page := w.get(address)
		took = append(took, time.Since(began).Round(time.Millisecond))
		require.Is(w.t, status, http.StatusOK, "%s: HTTP: %s", address, page)
		whole := throughAll.FindStringSubmatch(page)
		if whole == nil {
			return took, page
		}
		address = html.UnescapeString(whole[1])
	}
}
