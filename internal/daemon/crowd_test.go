package daemon_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// mostForStrangers is how much more memory a daemon may take whatever comes to its HTTP address, in MiB.
const mostForStrangers = 64

// alive asks for /healthz, and says how long the answer took.
func (w *world) alive(p *program.Process) time.Duration {
	w.t.Helper()
	began := time.Now()
	if status, _, err := p.Get(w.t.Context(), "/healthz"); err != nil || status != http.StatusOK {
		w.t.Errorf("/healthz is HTTP %d, %v, after %v", status, err, time.Since(began))
	}
	return time.Since(began)
}

// dial opens a connection that the test closes.
func (w *world) dial(p *program.Process) net.Conn {
	w.t.Helper()
	addr := require.Get(p.Addr(w.t.Context()))(w.t)
	var d net.Dialer
	c := require.Get(d.DialContext(w.t.Context(), "tcp", addr))(w.t)
	w.t.Cleanup(func() { _ = c.Close() })
	return c
}

// Given strangers who open thousands of connections and say half of what they want, then the daemon takes little memory
// for them, answers /healthz within a second and goes on consuming.
func TestStrangersAtTheDoorDoNotStopADaemon(t *testing.T) {
	n := sized(4000, 15_000)
	w := newWorld(t)
	orders := w.open(400)
	p := w.start()
	w.publish(w.route.Rollbacks(orders[:200])...)
	w.ended(200) // so that it has what consuming takes
	before := peak(t, p)
	half := "GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("a", 15<<10)
	var siege sync.WaitGroup
	for range 2 {
		siege.Go(func() {
			for range n / 2 {
				_, _ = io.WriteString(w.dial(p), half) // it may be closed by now
			}
		})
	}
	w.publish(w.route.Rollbacks(orders[200:])...)
	took := make([]time.Duration, 20)
	for i := range took {
		took[i] = w.alive(p)
	}
	siege.Wait()
	slices.Sort(took) // the machine itself may hold up some of them
	assert.AtMost(t, took[len(took)/2], time.Second, "half of the times took /healthz amid a siege")
	w.alive(p)
	w.ended(len(orders))
	t.Logf("%d MiB before, %d at most", before, peak(t, p))
	if most := peak(t, p); most > before+mostForStrangers {
		t.Errorf("the daemon took %d MiB more", most-before)
	}
	w.rest(p)
}

// Given 200 letters of 1 MB and 40 readers of all of them who read bit by bit, then the daemon takes little memory for
// them; each person has so many downloads and no more, and another one has his own; pages are drawn meanwhile; and what
// is downloaded is whole.
func TestSlowReadersOfDownloadsTakeLittleMemory(t *testing.T) {
	const letters, readers, ofOne = 200, 40, 4
	w := newWorld(t, "ADMIN_TOKENS_FILE", twoTokens(t))
	records := w.store(dedup.OpenOptions{}).Records
	for i := range letters {
		require.OK(t, errors.Join(records.DeadRows(t.Context(), []dedup.Death{{Entry: dedup.Entry{
			Identity: dedup.Identity{Group: w.config().Group, Tag: "stock.rollback", Key: fmt.Sprint("k-", i)},
			BodyHash: [32]byte{1}, Body: []byte(strings.Repeat(string(rune('a'+i%26)), 1<<20)),
		}, Reason: dedup.ReasonExhausted, Cause: "x"}})...))
	}
	p := w.start()
	w.ready(p)
	before := peak(t, p)
	var reading []io.Reader
	for range readers {
		resp := w.download(p, anna)
		switch {
		case resp.StatusCode == http.StatusOK:
			reading = append(reading, resp.Body)
		case resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "":
			t.Fatalf("a download is HTTP %d", resp.StatusCode)
		}
	}
	assert.Is(t, len(reading), ofOne, "downloads of one person go on")
	other := w.download(p, rita)
	for range 5 {
		for _, r := range reading {
			if _, err := io.CopyN(io.Discard, r, 1<<20); err != nil {
				t.Error(err)
			}
		}
		calls(t, p, anna, http.MethodGet, "/api/v1/letters", "").into(t, http.StatusOK, new(any))
	}
	lines, n := bufio.NewScanner(other.Body), 0
	for lines.Buffer(nil, 2<<20); lines.Scan(); n++ {
		if !strings.HasPrefix(lines.Text(), `{"group"`) || !strings.HasSuffix(lines.Text(), `}`) {
			t.Fatalf("line %d is not a letter: %.100s", n, lines.Text())
		}
	}
	if n != letters || lines.Err() != nil {
		t.Errorf("another person's download has %d letters, %v", n, lines.Err())
	}
	t.Logf("%d MiB before, %d at most", before, peak(t, p))
	if most := peak(t, p); most > before+mostForStrangers {
		t.Errorf("the daemon took %d MiB more", most-before)
	}
	w.stop(p)
}

// download begins one, whose body is read by the connection's pace.
func (w *world) download(p *program.Process, token string) *http.Response {
	w.t.Helper()
	req := require.Get(http.NewRequestWithContext(w.t.Context(), http.MethodGet, "http://x/letters/download",
		http.NoBody))(w.t)
	req.Header.Set("Authorization", "Bearer "+token)
	resp := require.Get((&http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return w.dial(p), nil },
	}).RoundTrip(req))(w.t)
	w.t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}
