package daemon_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rollbackd/rollbackd/dedup"
	sqlhandler "github.com/rollbackd/rollbackd/internal/handler/sql"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/golden"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/shop"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// badMessage is one that can never be applied.
type badMessage struct {
	body   string
	change func(m *rabbit.Message) // of the properties, if any
	reason dedup.Reason
}

const goodBody = `{"order_sn":"of nobody","items":[{"sku_id":1,"quantity":1}]}`

// badMessages are malformed, each in a way of its own, as testdata/bad.txt has them; or have a good body and no name.
func badMessages(t *testing.T) map[string]badMessage {
	text := require.Get(os.ReadFile("testdata/bad.txt"))(t)
	var items []string
	for i := range 1001 {
		items = append(items, fmt.Sprintf(`{"sku_id":%d,"quantity":1}`, i+1))
	}
	many := `{"order_sn":"a","items":[` + strings.Join(items, ",") + "]}"
	bad := map[string]badMessage{"too many items": {body: many, reason: dedup.ReasonMalformed}}
	for line := range strings.Lines(string(text)) {
		name, quoted, _ := strings.Cut(strings.TrimSpace(line), ": ")
		body, err := strconv.Unquote(quoted)
		require.That(t, err == nil, "%s: %v", line, err)
		m := badMessage{body: repeated(body), reason: dedup.ReasonMalformed}
		switch name {
		case "text/xml":
			m.change = func(m *rabbit.Message) { m.ContentType = "text/xml" }
		case "gzip":
			m.change = func(m *rabbit.Message) { m.ContentEncoding = "gzip" }
		}
		bad[name] = m
	}
	for name, change := range map[string]func(m *rabbit.Message){
		"empty key": header(""), "over-long key": header(strings.Repeat("k", 256)),
		"control character in the key": header("a\x00b"), "key of an odd type": header([]any{int32(1)}),
		"reserved tag": func(m *rabbit.Message) { m.Type = "rollbackd.conflict" },
	} {
		bad[name] = badMessage{goodBody, change, dedup.ReasonUnidentified}
	}
	return bad
}

func header(key any) func(m *rabbit.Message) {
	return func(m *rabbit.Message) { m.Headers = rabbit.Table{"x-message-key": key} }
}

var numbers = regexp.MustCompile(`[0-9]+`)

// Given bad messages of every kind among good ones, when a daemon consumes them all together, then each bad one is a
// dead letter whose row says what is wrong with it, and every good one is applied.
func TestBadMessagesDoNotHurtTheirNeighbours(t *testing.T) {
	w := newWorld(t, "RETRY_DELAYS", "100ms,200ms,300ms,400ms")
	orders := w.open(500)
	good, held := w.route.Rollbacks(orders[:400]), orders[400:]

	bad := badMessages(t)
	for i, o := range held[:2] { // what only the tables know to be wrong
		o.Items[0].Quantity += 7
		bad[fmt.Sprintf("wrong quantity %d", i)] = badMessage{body: string(o.Body()), reason: dedup.ReasonPermanent}
	}
	deducted := held[2]
	w.exec("UPDATE stock_reservation SET status = 3 WHERE order_sn = ?", deducted.SN)
	w.remember()
	bad["deducted for good"] = badMessage{body: string(deducted.Body()), reason: dedup.ReasonPermanent}
	bad["unknown order"] = badMessage{body: goodBody, reason: dedup.ReasonExhausted}

	sent := good
	for key, m := range bad {
		p := w.route.Message(key, []byte(m.body))
		if m.change != nil {
			m.change(&p.Message)
		}
		sent = append(sent, oracle.Sent{Publishing: p, Fate: oracle.ToDie(m.reason)})
	}
	daemon := w.start()
	w.mixed(sent)
	// A rollback of an unknown order with everything that a copy must not keep, because it would close the channel that
	// publishes the copy, send more copies, or let the copy vanish; and with forged headers of ours.
	const odd = "odd properties"
	login := require.Get(url.Parse(w.broker.URL))(t)
	forged := map[string]any{wire.HeaderAttempt: "4", wire.HeaderReason: []any{int32(1)}, wire.HeaderDeadAt: time.Now(),
		wire.HeaderReplays: int64(-1), wire.HeaderError: strings.Repeat("e", 5000), "CC": []any{"nowhere"},
		"BCC": []any{"nowhere either"}, "x-death": "not even a list", "x-delivery-count": "many"}
	w.broker.Publish(w.route.Exchange, w.route.Key, stack.Message{MessageId: odd, Body: []byte(goodBody),
		UserId: login.User.Username(), Expiration: "60000", Headers: forged, DeliveryMode: rabbit.Transient})
	forger := w.route.Message(odd, []byte(goodBody))
	forger.Headers = forged
	w.ledger.Record(oracle.Sent{Publishing: forger, Fate: oracle.ToDie(dedup.ReasonExhausted)}, nil)
	bad[odd] = badMessage{reason: dedup.ReasonExhausted}
	w.ended(len(sent) + 1)
	// The same key with another body, once its own is applied; and a key that differs in case only, which is another key.
	again := oracle.Sent{Publishing: w.route.Message(orders[0].Key(), []byte(goodBody)),
		Fate: oracle.ToDie(dedup.ReasonConflict)}
	twin := w.route.Rollback(orders[3+400])
	twin.MessageID = strings.ToUpper(orders[0].Key()) + " "
	w.publish(again, twin)
	w.ended(len(sent) + 3)
	w.stop(daemon)

	t.Logf("dead letters: %v", w.judged(401, len(bad)+1, oracle.Allowance{}).DeadByReason) // and the conflict
	remarks := w.pairs("SELECT msg_id AS k, CONCAT(reason, ': ', remark) AS v FROM consumer_log WHERE consumer_status = 3")
	var got strings.Builder
	for _, key := range slices.Sorted(maps.Keys(bad)) {
		assert.That(t, strings.HasPrefix(remarks[key], string(bad[key].reason)+": "), "the row of %q says %q, want %s",
			key, remarks[key], bad[key].reason)
		text := remarks[key]
		if bad[key].reason == dedup.ReasonPermanent { // of goods that are others each time
			text = numbers.ReplaceAllString(text, "N")
		}
		fmt.Fprintf(&got, "%s is %s\n", key, text)
	}
	golden.Is(t, "testdata/bad.golden", got.String())
}

// Given the same messages, a fifth of them twice and some of them bad, when a daemon consumes them one by one and
// another in batches of 500, then stock, reservations and the fate of every message are the same.
func TestBatchSizeChangesNothingButSpeed(t *testing.T) {
	t.Parallel()
	orders := sized(1_000, 20_000)
	type end struct {
		stock        oracle.Stock
		reservations map[string]string
		fates        map[string]string
	}
	run := func(t *testing.T, batch int) end {
		w := aloneWorld(t, "BATCH_SIZE", fmt.Sprint(batch), "PREFETCH", "1000")
		w.rng = rand.New(rand.NewPCG(20, 20)) // the same orders, messages and sequence in both runs
		reserved := w.open(orders + 10)
		sent := w.route.Rollbacks(reserved[:orders])
		for _, o := range reserved[orders:] { // no retry can help these: each is dead after its first attempt or before it
			o.Items[0].Quantity += 1000
			malformed := w.route.Message("malformed-"+o.SN, []byte(`{"order_sn":`))
			sent = append(sent, oracle.Sent{Publishing: w.route.Message(o.Key(), o.Body()),
				Fate: oracle.ToDie(dedup.ReasonPermanent)}, oracle.Sent{Publishing: malformed,
				Fate: oracle.ToDie(dedup.ReasonMalformed)})
		}
		messages := len(sent)
		sent = shop.Repeat(w.rng, sent, .2)
		daemon := w.start()
		began := time.Now()
		w.publish(sent...)
		w.ended(messages)
		took := time.Since(began)
		metrics := w.settled(daemon, len(sent))
		is(w, "deliveries", metrics.Settled(), len(sent))
		is(w, "applied, by its metrics", metrics.Deliveries("applied"), orders)
		copies := slices.DeleteFunc(slices.Clone(sent), func(s oracle.Sent) bool { return s.Order == "" }) // is dead
		is(w, "duplicates, by its metrics", metrics.Deliveries("duplicate"), len(copies)-orders)
		is(w, "RabbitMQ is up", metrics[`rollbackd_dependency_up{name="rabbitmq"}`], 1)
		if status, body, err := daemon.Get(t.Context(), "/healthz"); err != nil || status != http.StatusOK || body != "ok\n" {
			t.Errorf("/healthz answers %d %q (%v), want 200 and ok", status, body, err)
		}
		report := w.rest(daemon)
		t.Logf("BATCH_SIZE %d: %d deliveries in %v, %.0f/s", batch, len(sent), took.Round(time.Millisecond),
			float64(len(sent))/took.Seconds())
		assert.Is(t, report.DuplicatesAbsorbed, len(sent)-messages, "duplicates absorbed")
		return end{
			report.After,
			w.pairs("SELECT CONCAT(order_sn, '/', sku_id) AS k, CONCAT_WS(' ', quantity, status, rollback_tag, rollback_key) " +
				"AS v FROM stock_reservation"),
			w.pairs("SELECT CONCAT(group_name, '/', msg_tag, '/', msg_key) AS k, CONCAT_WS(' ', consumer_status, reason) AS v " +
				"FROM consumer_log"),
		}
	}
	var ends []end
	for _, batch := range []int{1, 500} {
		t.Run(fmt.Sprintf("batch of %d", batch), func(t *testing.T) { ends = append(ends, run(t, batch)) })
	}
	require.That(t, len(ends) >= 2, "a run did not end")
	for what, diff := range map[string]string{
		"stock": cmp.Diff(ends[0].stock, ends[1].stock), "reservations": cmp.Diff(ends[0].reservations, ends[1].reservations),
		"fates": cmp.Diff(ends[0].fates, ends[1].fates),
	} {
		assert.Is(t, diff, "", "%s differ between BATCH_SIZE 1 (-) and 500 (+)", what)
	}
}

// pairs reads the columns k and v as text.
func (w *world) pairs(query string) map[string]string {
	w.t.Helper()
	found := map[string]string{}
	for _, row := range stack.RowsOf(w.t, w.db, query) {
		found[row["k"]] = row["v"]
	}
	return found
}

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
