package run

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/bench/internal/rival"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/must"
)

// TestMain lets this binary be the rivals, as the bench itself is.
func TestMain(m *testing.M) {
	if len(os.Args) < 4 || os.Args[1] != "rival" {
		os.Exit(m.Run())
	}
	if err := must.Catch(func() { rival.Main(os.Args[2], must.Get(strconv.Atoi(os.Args[3]))) }); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// One set of servers, and nothing in parallel: who shares the processors measures the others.
func TestOnRealServers(t *testing.T) {
	g := ground.Start(t.Context(), ground.Options{})
	r := New(g, g.Builds[0], "bench", Sizes{
		Length: time.Second, LogRows: 20_000, Waiting: 5000, Failing: 200, Letters: 1000, Backlog: 20_000,
		Minute: 500 * time.Millisecond,
	}, t.Output())
	r.Warm = 50 * time.Millisecond
	defer func() { must.OK(errors.Join(r.Close(), g.Stop())) }()
	for name, test := range map[string]func(*testing.T, *Runner){
		"every contestant is measured and checked": testContestants,
		"a round goes to its end":                  testRoundsToTheEnd,
		"an end that is none fails the round":      testNoEnd,
		"what is no round is measured":             testSpecial,
		"an empty queue makes no round":            testEmptyQueue,
		"a round is repeated on a new connection":  testLostConnection,
		"what fails each time ends the run":        testNotMeasured,
		"a broken promise fails the round":         testBrokenPromise,
		"a year passes":                            testYear,
	} {
		t.Run(name, func(t *testing.T) { assert.OK(t, must.Catch(func() { test(t, r) })) })
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
		{Name: "duplicates", Sowing: ground.Sowing{Twins: 10_000}, Guess: 20_000},
		{Name: "poison", Sowing: ground.Sowing{PoisonEvery: 100}, Guess: 20_000},
		{Name: "full", Sowing: ground.Sowing{FullLog: true}, Guess: 20_000},
		{Name: "two_daemons", Daemons: 2, MySQLDelay: time.Millisecond, Guess: 20_000},
		{Name: "evenly", Extent: Evenly, Guess: 1000},
	} {
		round := r.Round(c)
		if round.Rate <= 0 || round.Total <= 0 || round.Busy <= 0 || round.CPU["client"] <= 0 ||
			round.Seconds < r.Length.Seconds() {
			t.Errorf("%s was not measured: %+v", c.Name, round)
		}
		assert.That(t, c.Sowing != (ground.Sowing{}) || round.Total >= round.Deliveries,
			"%s says it applied %d in the time, the tables hold %d in all", c.Name, round.Deliveries, round.Total)
	}
}

// Given a year of a thousand rows a day, then its last day has the rows of at most thirty-one days, beside those of its
// round, and both days were measured. Such a day is 33 ms long: on a slow machine the cleaner may be some days ahead.
func testYear(t *testing.T, r *Runner) {
	const daily = 1000
	year := New(r.Ground, r.Build, "year", r.Sizes, r.Out)
	defer func() { must.OK(year.Close()) }()
	first, last := year.Year(365*daily, 1)
	for _, day := range []map[string][]float64{first, last} {
		for what, values := range day {
			assert.That(t, len(day) == 3 && len(values) == 1 && values[0] > 0, "%s of a day is %v", what, values)
		}
	}
	kept := must.Value[int](t.Context(), year.full().DB, `SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 1 AND
		msg_key NOT IN (SELECT rollback_key FROM stock_reservation WHERE rollback_key IS NOT NULL)`)
	assert.That(t, kept >= 10*daily && kept <= 31*daily, "%d rows of the year are kept, want about thirty days'", kept)
}

// Everybody has the delays and the attempts of the product, in whose places the test puts short ones.
const testDelays = "100ms,110ms,120ms,130ms"

func testRoundsToTheEnd(t *testing.T, r *Runner) {
	none, some := ground.Sowing{Delays: testDelays}, ground.Sowing{PoisonEvery: 100, Delays: testDelays}
	all := ground.Sowing{PoisonEvery: 1, Delays: testDelays}
	noBrake := []string{"MAX_DEAD_RATE=off"}
	defer func() { r.Length = time.Second }()
	r.Length = 10 * time.Second // a loaded machine needs time until the end
	for _, c := range []struct {
		Contestant
		published, applied, most int64 // messages; and attempts that fail
	}{
		{Contestant{Name: "none fails", Extent: ToTheEnd, Sowing: none}, 5000, 5000, 0},
		{Contestant{Name: "some fail", Extent: ToTheEnd, Sowing: some}, 5000, 4950, 5 * 50},
		{Contestant{Name: "all fail", Extent: ToTheEnd, Sowing: all, Settings: noBrake}, 200, 0, 5 * 200},
		{Contestant{Name: "all fail, classic", Extent: ToTheEnd, Sowing: all, Rival: rival.Classic, Workers: 8}, 200, 0,
			5 * 200},
		{Contestant{Name: "all fail, watermill", Extent: ToTheEnd, Sowing: all, Rival: rival.Watermill, Workers: 8}, 200, 0,
			5 * 200},
		{Contestant{Name: "replay", Extent: Replayed, Sowing: ground.Sowing{Mistaken: true}, Settings: noBrake}, 1000, 1000,
			0},
		{Contestant{Name: "whole", Extent: Whole, Guess: 2000}, 20_000, 20_000, 0},
		{Contestant{Name: "twins", Extent: Whole, Guess: 2000, Sowing: ground.Sowing{Twins: 10_000}}, 20_000, 10_000, 0},
		{Contestant{Name: "some fail, whole", Extent: Whole, Guess: 300, Sowing: some}, 3000, 2970, 5 * 30},
		{Contestant{Name: "all fail, whole", Extent: Whole, Sowing: all, Settings: noBrake}, 200, 0, 5 * 200},
	} {
		round := r.Round(c.Contestant)
		idle := round.Busy <= 0 && round.Seconds > 0.5 // a shorter one may take less CPU than the clock shows
		if round.Total != c.applied || r.empty().Published() != c.published || round.Messages > c.published ||
			round.Rate <= 0 || idle {
			t.Errorf("%s: %d published, %+v; want %d of them applied", c.Name, r.empty().Published(), round, c.applied)
		}
		// The clock starts with the first deliveries that ended, and they count for nothing.
		if failed := int64(round.Failed*round.Seconds + 0.5); failed > c.most || c.applied == 0 && failed == 0 {
			t.Errorf("%s: %d attempts failed while the clock ran, want at most %d", c.Name, failed, c.most)
		}
		assert.That(t, c.Extent != Whole || round.Deliveries >= round.Messages,
			"%s: %d deliveries ended, fewer than %d messages", c.Name, round.Deliveries, round.Messages)
	}
}

func testNoEnd(t *testing.T, _ *Runner) {
	all, some := ground.Sowing{Orders: 10, PoisonEvery: 1}, ground.Sowing{Orders: 10, PoisonEvery: 5}
	for name, c := range map[string]struct {
		sown    ground.Sowing
		to      reading
		harvest ground.Harvest
		replay  bool
		fails   bool
	}{
		"all that could are applied": {some, reading{}, ground.Harvest{Applied: 8}, false, false},
		"one that could is not":      {some, reading{}, ground.Harvest{Applied: 7}, false, true},
		"one that could not is":      {some, reading{}, ground.Harvest{Applied: 9}, false, true},
		"all are dead":               {all, reading{again: 40}, ground.Harvest{Dead: 10}, false, false},
		"one letter is missing":      {all, reading{again: 40}, ground.Harvest{Dead: 9}, false, true},
		"one had four attempts":      {all, reading{again: 39}, ground.Harvest{Dead: 10}, false, true},
		"one had six":                {all, reading{again: 41}, ground.Harvest{Dead: 10}, false, true},
		"a letter was replayed twice and one not": {ground.Sowing{Orders: 10}, reading{},
			ground.Harvest{Applied: 10, Dead: 1}, true, true},
	} {
		contestant := Contestant{Name: name, Extent: ToTheEnd}
		if c.replay {
			contestant.Extent = Replayed
		}
		err := contestant.checkEnd(c.sown, c.to, c.harvest)
		assert.That(t, (err != nil) == c.fails, "%s: %v, want an error: %v", name, err, c.fails)
	}
}

// Each is measured, and the stock is right in the end, which the runner checks. Of a fleet of two each daemon is
// replaced by another under load.
func testSpecial(t *testing.T, r *Runner) {
	fleet := Contestant{Name: "rolling", Daemons: 2, Guess: 5000}
	pages := Contestant{Name: "pages", Extent: Looked, Sowing: ground.Sowing{FullLog: true}}
	for name, c := range map[string]struct {
		do    func(*Runner) Sample
		right func(Sample) bool
	}{
		"start":                  {(*Runner).Starts, func(m Sample) bool { return m["ms"] > 0 }},
		"latency":                {func(r *Runner) Sample { return r.Latency(1000, 0, "") }, latencyIsRight},
		"latency among failures": {func(r *Runner) Sample { return r.Latency(1000, 20, testDelays) }, latencyIsRight},
		"memory": {(*Runner).Memory, func(m Sample) bool {
			return m["second_minute_mib"] > 0 && m["last_minute_mib"] > 0 && m["max_mib"] >= m["last_minute_mib"] &&
				m["applied"] > 0
		}},
		"relay": {(*Runner).Relay, func(m Sample) bool { return m["ratio"] > 0 }},
		"looks": {func(r *Runner) Sample { return r.once(pages).Spent() }, func(m Sample) bool { return m["client"] > 0 }},
		"rolling": {func(r *Runner) Sample { return r.Rolling(fleet) }, func(m Sample) bool {
			return m["per_second"] > 0 && m["meanwhile_per_second"] > 0 && m["below_half_s"] >= 0
		}},
	} {
		round := r.Round(Contestant{Name: name, Special: c.do})
		assert.That(t, c.right(round.Sample), "got %v", round)
	}
}

func latencyIsRight(m Sample) bool {
	return m["sampled"] > 0 && m["p50_ms"] > 0 && m["p99_ms"] >= m["p50_ms"] && m["max_ms"] >= m["p99_ms"]
}

func testEmptyQueue(t *testing.T, r *Runner) {
	r.empty().Sow(r.seeded(ground.Sowing{Orders: 100, Goods: 10}))
	err := must.Catch(func() { r.measure(Contestant{Name: "rollbackd"}, r.empty()) })
	assert.That(t, errors.Is(err, errTooShort), "a round over 100 messages: %v, want %v", err, errTooShort)
	// Each time twice as many are thought to be needed, whatever the rate of the round that was too short.
	c := Contestant{Name: "fast", Guess: 1}
	defer func(usual time.Duration) { r.Length = usual }(r.Length)
	r.Length = 10 * time.Second
	assert.Error(t, must.Catch(func() { r.once(c) }), errTooShort, "a round of 10 s over 20,000 messages")
	got, _ := r.expected(c)
	assert.That(t, got == 2, "%v/s are expected then, want 2", got)
}

func testLostConnection(t *testing.T, r *Runner) {
	// All connections end, as an error such as 541 ends the one on which it happened; and a declaration on which RabbitMQ
	// gives up leaves a member of a queue that nobody knows.
	calls := 0
	lost := func(r *Runner) Sample {
		if calls++; calls == 1 {
			leftBehind := fmt.Sprintf(`rabbit_networking:close_all_connections("closed by the test"), [rabbit_amqqueue:`+
				`internal_delete({resource, V, queue, <<%q>>}, <<"bench">>) || V <- rabbit_vhost:list_names()]`, ground.Queue)
			must.Get(r.Ground.Stack.RabbitMQ.Eval(t.Context(), leftBehind))
			must.OK(errors.New("the connection is closed"))
		}
		return Sample{"applied": float64(r.once(Contestant{Name: "again", Guess: 3000, Extent: Whole}).Total)}
	}
	round := r.Round(Contestant{Name: "again", Special: lost})
	assert.That(t, calls == 2 && round.Sample["applied"] == 3000, "after %d calls: %+v", calls, round)
}

func testNotMeasured(t *testing.T, r *Runner) {
	var said strings.Builder
	defer func(out io.Writer) { r.Out = out }(r.Out)
	r.Out = &said
	wrong := Contestant{Name: "wrong", Settings: []string{"LANES=none"}, Extent: Whole, Guess: 100}
	err := must.Catch(func() { r.Round(wrong) })
	assert.That(t, errors.Is(err, ErrNotMeasured) && strings.Contains(err.Error(), "LANES"),
		"got %v, want that it could not be measured, and why", err)
	n := strings.Count(said.String(), "; again")
	assert.That(t, n == tries-1, "it was repeated %d times, want %d", n, tries-1)
	calls := 0
	thief := Contestant{Special: func(*Runner) Sample { calls++; must.OK(ground.ErrBroken); return nil }}
	err = must.Catch(func() { r.Round(thief) })
	assert.That(t, errors.Is(err, ground.ErrBroken) && calls == 1,
		"a broken promise: %v after %d tries, want one and the run's end", err, calls)
}

func TestBacklogsFollowTheLastRates(t *testing.T) {
	r := &Runner{Sizes: Sizes{Length: 10 * time.Second}, rates: map[string][]float64{}}
	c := Contestant{Name: "x", Guess: 1000}
	const reserved = reserve
	assert.Is(t, r.sowing(c).Orders, 14_350+reserved, "orders that are sown by the guess")
	for _, rates := range []struct {
		learned float64
		want    int64
	}{
		{100, 1178}, {2000, 23_575}, {200, 23_575}, {300, 23_575}, {150, 3536}, // one slow round changes nothing
	} {
		r.learn(c, rates.learned)
		assert.Is(t, r.sowing(c).Orders, rates.want+reserved, "orders that are sown after a round of %v/s", rates.learned)
	}
}

func testBrokenPromise(t *testing.T, r *Runner) {
	for breach, statement := range map[string]string{
		"given back twice": "UPDATE stock SET amount = amount + 1 WHERE sku_id = 3",
		"released by half": "UPDATE stock_reservation SET status = 2, rollback_key = 'x' ORDER BY order_sn LIMIT 1",
		"a row and no effect": "INSERT INTO consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times, " +
			"consumer_timestamp, created_at) VALUES ('stock-rollback', 't', 'k', 1, 1, NOW(6), NOW(6))",
	} {
		f := r.empty()
		f.Sow(r.seeded(ground.Sowing{Orders: 100, Goods: 10, NoBacklog: true}))
		f.Check() // nothing has happened yet
		must.Get(f.DB.ExecContext(t.Context(), statement))
		err := must.Catch(func() { f.Check() })
		assert.That(t, errors.Is(err, ground.ErrBroken), "%s: nothing was found: %v", breach, err)
	}
}
