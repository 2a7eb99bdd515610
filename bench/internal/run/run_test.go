package run

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/bench/internal/rival"
)

// TestMain lets this binary be the rivals, as the bench itself is.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "rival" {
		workers, err := strconv.Atoi(os.Args[3])
		if err == nil {
			err = rival.Main(os.Args[2], workers)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func newTestRunner(t *testing.T) *Runner {
	t.Helper()
	g, err := ground.Start(t.Context(), ground.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Stop(); err != nil {
			t.Error(err)
		}
	})
	r := &Runner{Ground: g, Length: time.Second, Warm: 50 * time.Millisecond, LogRows: 20_000, Out: t.Output()}
	if err := r.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// One set of servers, and nothing in parallel: who shares the processors measures the others.
func TestOnRealServers(t *testing.T) {
	r := newTestRunner(t)
	for name, test := range map[string]func(*testing.T, *Runner){
		"every contestant is measured and checked": testContestants,
		"latency and memory are measured":          testLatencyAndMemory,
		"an empty queue makes no round":            testEmptyQueue,
		"a broken promise fails the round":         testBrokenPromise,
	} {
		t.Run(name, func(t *testing.T) { test(t, r) })
	}
}

func testContestants(t *testing.T, r *Runner) {
	plain := ground.Sowing{Unreserved: true}
	for _, c := range []Contestant{
		{Name: "rollbackd", Guess: 20_000},
		{Name: "plain_each", Rival: rival.PlainEach, Sowing: plain, Guess: 40_000},
		{Name: "plain_multiple", Rival: rival.PlainMultiple, Sowing: plain, Guess: 40_000},
		{Name: "classic", Rival: rival.Classic, Workers: 8, Guess: 2000},
		{Name: "watermill", Rival: rival.Watermill, Workers: 8, Guess: 2000},
		{Name: "duplicates", Sowing: ground.Sowing{Twice: true}, Guess: 20_000},
		{Name: "poison", Sowing: ground.Sowing{PoisonEvery: 100}, Guess: 20_000},
		{Name: "full", FullLog: true, Guess: 20_000},
		{Name: "two_daemons", Daemons: 2, Guess: 20_000},
	} {
		round, err := r.Round(t.Context(), c)
		if err != nil {
			t.Errorf("%s: %v", c.Name, err)
			continue
		}
		if round.Rate <= 0 || round.Total <= 0 || round.Busy <= 0 || round.CPU["client"] <= 0 || round.Seconds < r.Length.Seconds() {
			t.Errorf("%s was not measured: %+v", c.Name, round)
		}
		if c.Sowing == (ground.Sowing{}) && round.Total < round.Deliveries {
			t.Errorf("%s says it applied %d in the time, the tables hold %d in all", c.Name, round.Deliveries, round.Total)
		}
	}
}

func testLatencyAndMemory(t *testing.T, r *Runner) {
	l, err := r.Latency(t.Context(), 1000)
	if err != nil {
		t.Fatal(err)
	}
	if l.Sampled == 0 || l.P50 <= 0 || l.P99 < l.P50 || l.Max < l.P99 || l.WrittenP50 <= 0 || l.WrittenP50 > l.P50 || l.All < 10*l.Sampled {
		t.Errorf("got %+v", l)
	}
	m, err := r.Memory(t.Context(), 20_000, 500*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if m.SecondMinute <= 0 || m.LastMinute <= 0 || m.Max < m.LastMinute || m.Applied == 0 {
		t.Errorf("got %+v", m)
	}
}

func testEmptyQueue(t *testing.T, r *Runner) {
	if err := r.empty.Sow(t.Context(), ground.Sowing{Orders: 100, Goods: 10}, r.seed()); err != nil {
		t.Fatal(err)
	}
	_, err := r.measure(t.Context(), Contestant{Name: "rollbackd"}, r.empty)
	if err == nil || !strings.Contains(err.Error(), errTooShort.Error()) {
		t.Errorf("a round over 100 messages: %v, want %v", err, errTooShort)
	}
}

func testBrokenPromise(t *testing.T, r *Runner) {
	for breach, statement := range map[string]string{
		"given back twice":    "UPDATE stock SET amount = amount + 1 WHERE sku_id = 3",
		"released by half":    "UPDATE stock_reservation SET status = 2, rollback_key = 'x' ORDER BY order_sn LIMIT 1",
		"a row and no effect": "INSERT INTO consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times, consumer_timestamp, created_at) VALUES ('stock-rollback', 't', 'k', 1, 1, NOW(6), NOW(6))",
	} {
		if err := r.empty.Sow(t.Context(), ground.Sowing{Orders: 100, Goods: 10, NoBacklog: true}, r.seed()); err != nil {
			t.Fatal(err)
		}
		if _, err := r.empty.Check(t.Context()); err != nil {
			t.Fatalf("nothing has happened yet: %v", err)
		}
		if _, err := r.empty.DB.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
		if _, err := r.empty.Check(t.Context()); err == nil {
			t.Errorf("%s: nothing was found", breach)
		}
	}
}
