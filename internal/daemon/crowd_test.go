package daemon_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	sqlhandler "github.com/rollbackd/rollbackd/internal/handler/sql"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/shop"
)

// mostForReaders is how much more memory a daemon may take for all who read from its HTTP address, in MiB.
const mostForReaders = 64

// Given 200 letters of 1 MB and 40 readers of all of them who read bit by bit, then the daemon takes little memory for
// them; each person has so many downloads and no more, and another one has his own; pages are drawn meanwhile; and what
// is downloaded is whole.
func TestSlowReadersOfDownloadsTakeLittleMemory(t *testing.T) {
	const letters, readers, ofOne = 200, 40, 4
	w := aloneWorld(t, "ADMIN_TOKENS_FILE", twoTokens(t))
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
			require.Get(io.CopyN(io.Discard, r, 1<<20))(t)
		}
		calls(t, p, anna, http.MethodGet, "/api/v1/letters", "").into(t, http.StatusOK, new(any))
	}
	lines, n := bufio.NewScanner(other.Body), 0
	for lines.Buffer(nil, 2<<20); lines.Scan(); n++ {
		require.That(t, strings.HasPrefix(lines.Text(), `{"group"`) && strings.HasSuffix(lines.Text(), `}`),
			"line %d is not a letter: %.100s", n, lines.Text())
	}
	assert.That(t, n == letters && lines.Err() == nil, "another person's download has %d letters, %v", n, lines.Err())
	most := peak(t, p)
	t.Logf("%d MiB before, %d at most", before, most)
	assert.AtMost(t, most, before+mostForReaders, "the daemon took MiB")
	w.stop(p)
}

// download begins one, whose body is read by the connection's pace.
func (w *world) download(p *program.Process, token string) *http.Response {
	w.t.Helper()
	req := require.Get(http.NewRequestWithContext(w.t.Context(), http.MethodGet, "http://"+
		require.Get(p.Addr(w.t.Context()))(w.t)+"/letters/download", http.NoBody))(w.t)
	req.Header.Set("Authorization", "Bearer "+token)
	resp := require.Get((&http.Transport{DisableKeepAlives: true}).RoundTrip(req))(w.t)
	w.t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// peak is the most memory that a process had so far, in MiB.
func peak(t *testing.T, p *program.Process) (mib int) {
	t.Helper()
	text := require.Get(os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid())))(t)
	_, after, found := bytes.Cut(text, []byte("VmHWM:"))
	_, err := fmt.Sscan(string(after), &mib)
	require.That(t, found && err == nil, "no VmHWM in the process's status: %v", err)
	return mib >> 10
}

// Given orders of 60 goods, and somebody else who holds the row of one of them, when daemons consume them, then those
// that do not need that row flow again soon, at half the rate or more; and when the row is free all are applied, and
// nobody has lost an attempt. With ROLLBACKD_TEST_BIG (make test-big) also by SQL files, with many more messages.
func TestAForeignRowLockSlowsOnlyThoseWhoMeetIt(t *testing.T) {
	t.Parallel()
	const (
		goods, held = 60, 30
		least       = .25              // half of what is promised: the machine may have other work
		soon        = 30 * time.Second // twice what it takes to find out what those have in common who meet the lock
	)
	kinds := []struct {
		name, file, table, id string
		daemons, messages     int
	}{
		{"stock", "", "stock", "sku_id", 1, 50_000},
		{"statements that are not joined", "testdata/stock.sql", "stock", "sku_id", 1, 15_000},
		{"joined statements, two daemons", "../../deploy/examples/sql/classic/handler.sql", "tb_stock", "goods_id",
			2, 80_000},
	}
	for _, kind := range kinds[:sized(1, len(kinds))] {
		t.Run(kind.name, func(t *testing.T) {
			w := aloneWorld(t)
			own := kind.table != "stock"
			if own { // the audit's triggers would keep the statements from being joined
				w.exec("CREATE TABLE tb_stock (goods_id BIGINT PRIMARY KEY, amount BIGINT NOT NULL) ENGINE=InnoDB")
				for id := range goods {
					w.exec("INSERT INTO tb_stock VALUES (?, 0)", id+1)
				}
			}
			if kind.file != "" {
				w.sqlFile(kind.file, own)
			}
			messages := sized(kind.messages/25, 4*kind.messages)
			orders := shop.Orders(w.rng, "order", 2*messages, goods)
			if !own {
				require.OK(t, shop.Stock(t.Context(), w.db, goods, 10_000_000))
				require.OK(t, shop.SeedReserved(t.Context(), w.db, orders))
				w.remember()
			}

			// run says how long it takes until nine tenths of n are applied.
			run := func(some []shop.Order, n int) time.Duration {
				w.publish(w.route.Rollbacks(some)...)
				before := w.rows(dedup.Success)
				for range kind.daemons {
					daemon := w.start()
					defer w.stop(daemon)
				}
				began := time.Now()
				after := func(tenths int) time.Duration {
					w.eventually(fmt.Sprintf("%d tenths of %d orders are applied", tenths, n),
						func() bool { return w.rows(dedup.Success) >= before+n*tenths/10 })
					return time.Since(began).Round(time.Millisecond)
				}
				first := after(1)
				most := after(9)
				t.Logf("a tenth of %d is applied after %v, nine tenths after %v: %.0f/s", n, first, most,
					float64(n)*.8/(most-first).Seconds())
				return most
			}
			undisturbed := run(orders[:messages], messages)
			free, want := 0, map[int64]int64{}
			for i, o := range orders {
				needs := false
				for _, it := range o.Items {
					needs = needs || it.SKU == held
					want[it.SKU] += it.Quantity
				}
				if i >= messages && !needs {
					free++
				}
			}
			letGo := w.hold([]string{"ROLLBACK"}, "BEGIN", fmt.Sprintf("UPDATE %s SET amount = amount + 1 WHERE %s = %d",
				kind.table, kind.id, held))
			disturbed := run(orders[messages:], free)
			assert.AtMost(t, disturbed, soon+time.Duration(float64(undisturbed)/least),
				"beside a foreign lock it takes, without %v", undisturbed)
			daemon := w.start()
			letGo()
			began := time.Now()
			w.ended(2 * messages)
			t.Logf("all are applied %v after the lock is gone", time.Since(began).Round(time.Millisecond))
			w.stop(daemon)
			assert.AtMost(t, w.count("SELECT COUNT(*) FROM consumer_log WHERE consumer_status <> 1 OR consumer_times <> 1"), 0,
				"messages are not applied, or were charged for the wait")
			if !own {
				w.judge(oracle.Allowance{})
				return
			}
			for id, n := range want {
				assert.Is(t, int64(w.count("SELECT amount FROM tb_stock WHERE goods_id = ?", id)), n, "goods %d back", id)
			}
		})
	}
}

// sqlFile sets a file of statements, after a look whether they are joined.
func (w *world) sqlFile(name string, joined bool) {
	path := require.Get(filepath.Abs(filepath.FromSlash(name)))(w.t)
	w.set("HANDLER", "sql", "SQL_FILE", path)
	f := require.Get(sqlhandler.Load(path, nil))(w.t)
	if err := f.Check(w.t.Context(), w.db); err != nil || f.Joined() != joined {
		w.t.Fatalf("the statements of %s are joined: %v, want %v (%v)", name, f.Joined(), joined, err)
	}
}
