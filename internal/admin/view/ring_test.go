package view

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.uber.org/goleak"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/admin/server"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// engine has metrics as the engine names them.
type engine struct {
	registry   *prometheus.Registry
	deliveries *prometheus.CounterVec
	lag        prometheus.Histogram
	ready, up  *prometheus.GaugeVec
	dead       *prometheus.GaugeVec
}

func newEngine() *engine {
	registry := prometheus.NewRegistry()
	made := promauto.With(registry)
	gauges := func(name string, labels ...string) *prometheus.GaugeVec {
		return made.NewGaugeVec(prometheus.GaugeOpts{Name: "rollbackd_" + name}, labels)
	}
	return &engine{
		registry: registry,
		deliveries: made.NewCounterVec(prometheus.CounterOpts{Name: "rollbackd_deliveries_total"},
			[]string{"queue", "outcome"}),
		lag:   made.NewHistogram(prometheus.HistogramOpts{Name: "rollbackd_lag_seconds", Buckets: []float64{1, 2, 4}}),
		ready: gauges("queue_messages_ready", "kind", "queue"), up: gauges("dependency_up", "queue", "name"),
		dead: gauges("dead_letters"),
	}
}

func (e *engine) sample(t *testing.T, r *ring, at time.Time) Sample {
	t.Helper()
	families := require.Get(e.registry.Gather())(t)
	r.add(read(families, "q", at))
	return r.samples[len(r.samples)-1]
}

// Given an engine's metrics, then a sample says what came since the one before: deliveries a second by outcome, and the
// lag of these alone; what nobody knows is not a zero.
func TestASampleSaysWhatCameSinceTheOneBefore(t *testing.T) {
	e, r, now := newEngine(), &ring{}, time.Now()
	e.deliveries.WithLabelValues("q", "applied").Add(1000)
	e.lag.Observe(3)
	e.ready.WithLabelValues("retry", "q.retry.1s").Set(2)
	e.ready.WithLabelValues("retry", "q.retry.5s").Set(3)
	e.ready.WithLabelValues("main", "q").Set(math.NaN())
	e.up.WithLabelValues("q", "mysql").Set(1)
	e.up.WithLabelValues("q", "redis").Set(0)
	first := e.sample(t, r, now)
	assert.That(t, len(first.Rates) == 0 && first.Lag == nil,
		"the first sample, of which nobody knows since when, has rates %v and lag %v", first.Rates, first.Lag)
	if _, known := first.Ready["main"]; known || first.Ready["retry"] != 5 || !first.Up["mysql"] || first.Up["redis"] {
		t.Errorf("ready %v, up %v", first.Ready, first.Up)
	}
	assert.That(t, first.Dead == nil, "nobody has counted the dead rows, and %v are said", first.Dead)
	e.dead.WithLabelValues().Set(7)
	e.deliveries.WithLabelValues("q", "applied").Add(500)
	e.deliveries.WithLabelValues("q", "duplicate").Add(20)
	for range 200 {
		e.lag.Observe(0.5)
	}
	second := e.sample(t, r, now.Add(10*time.Second))
	assert.That(t, second.Rates["applied"] == 50 && second.Rates["duplicate"] == 2 && *second.Lag == 1,
		"rates %v, lag %v; want 50, 2 and 1", second.Rates, second.Lag)
	assert.Is(t, *second.Dead, 7, "%v dead rows", second.Dead)
	third := e.sample(t, r, now.Add(20*time.Second))
	assert.That(t, third.Rates["applied"] == 0 && third.Lag == nil, "without anything new: rates %v, lag %v", third.Rates,
		third.Lag)
	fresh := newEngine() // counters that begin anew
	fresh.deliveries.WithLabelValues("q", "applied").Add(7)
	assert.Is(t, fresh.sample(t, r, now.Add(30*time.Second)).Rates["applied"], 0, "after counters that went back the rate")
}

// Given a daemon of three queues, two of whose names begin with the first one's, or with that of its letters, then a
// sample has the figures of that one alone, with the queues beside it.
func TestASampleHasTheFiguresOfItsQueueAlone(t *testing.T) {
	e := newEngine()
	for queue, n := range map[string]float64{"q": 3, "q.2": 500, "q.dead.2": 7000} {
		e.up.WithLabelValues(queue, "service "+queue)
		e.deliveries.WithLabelValues(queue, "applied").Add(n)
		for name, kind := range map[string]string{
			"": "main", ".backstop": "backstop", ".dead": "dead", ".retry.1s": "retry", ".retry.2s": "retry",
		} {
			e.ready.WithLabelValues(kind, queue+name).Set(n)
		}
	}
	s := e.sample(t, &ring{}, time.Now())
	ready := map[string]float64{"main": 3, "backstop": 3, "dead": 3, "retry": 6}
	assert.That(t, s.total["applied"] == 3 && maps.Equal(s.Ready, ready) && len(s.Up) == 1,
		"applied %v, ready %v, up %v; want those of q: 3 and %v", s.total, s.Ready, s.Up, ready)
}

// Given samples for longer than an hour, then the last hour of them is kept, the oldest first, and what only the next
// one needs is kept of the last alone.
func TestTheLastHourIsKept(t *testing.T) {
	e, r, began := newEngine(), &ring{}, time.Now()
	for i := range sampled + 40 {
		e.sample(t, r, began.Add(time.Duration(i)*sampleEvery))
	}
	assert.That(t, len(r.samples) == sampled && r.samples[0].At.Equal(began.Add(40*sampleEvery)),
		"%d samples, the first at %v", len(r.samples), r.samples[0].At.Sub(began))
	for i, s := range r.samples {
		require.Is(t, (s.total != nil), (i == sampled-1), "sample %d keeps what only the last one needs", i)
	}
	span := r.samples[sampled-1].At.Sub(r.samples[0].At)
	assert.That(t, span <= time.Hour && span >= time.Hour-sampleEvery, "they span %v", span)
}

// Given something that is amiss and well again, then the last trouble of each thing is remembered, with its reason, and
// from when until when.
func TestTheLastTroubleOfEachThingIsRemembered(t *testing.T) {
	r, now := &ring{}, time.Now()
	at := func(s int) time.Time { return now.Add(time.Duration(s) * time.Second) }
	r.watch(server.Readiness{Waiting: []string{"mysql: refused: by 10.0.0.1", "session: not yet connected"}}, at(0))
	r.watch(server.Readiness{Waiting: []string{"mysql: no route"}, Degraded: []string{"q.dead: it is full"}}, at(1))
	r.watch(server.Readiness{Degraded: []string{"q.dead: it is full"}}, at(2))
	assert.Equal(t, r.troubles, []Trouble{
		{What: "mysql", Why: "no route", Since: at(0), Until: at(2), Stops: true},
		{What: "q.dead", Why: "it is full", Since: at(1)},
	}, "after the first one is over")
	r.watch(server.Readiness{Waiting: []string{"mysql: gone again"}}, at(9))
	assert.Equal(t, r.troubles, []Trouble{
		{What: "q.dead", Why: "it is full", Since: at(1), Until: at(9)},
		{What: "mysql", Why: "gone again", Since: at(9), Stops: true},
	}, "after it came again")
	for i := range 2 * mostTroubles {
		r.watch(server.Readiness{Degraded: []string{"queue " + strconv.Itoa(i) + ": odd"}}, at(10+i))
	}
	assert.Is(t, len(r.troubles), mostTroubles, "are remembered")
}

// Given a look that takes long, then everybody who asks meanwhile gets what was known, one look goes on at a time, and
// the end of the view ends it and waits for it.
func TestALookInTheBackgroundIsSharedAndEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		b := background[int]{look: func(ctx context.Context, _ func(int)) (int, error) {
			looks++
			<-ctx.Done()
			return 0, ctx.Err()
		}}
		assert.That(t, !b.get(0).Looking, "it looks before the view runs")
		ctx, stop := context.WithCancel(t.Context())
		b.begin(ctx)
		var asking sync.WaitGroup
		for range 20 {
			asking.Go(func() { a := b.get(0); assert.That(t, a.At.IsZero() && a.Looking, "meanwhile: %+v", a) })
		}
		asking.Wait()
		synctest.Wait()
		stop()
		b.end()
		a := b.get(0)
		assert.That(t, !a.Looking && a.Err != nil && looks == 1, "after the end: %+v, %d looks", a, looks)
	})
}

func TestWhatTookLongIsNotLookedForAgainSoon(t *testing.T) {
	var b background[int]
	b.look = func(context.Context, func(int)) (int, error) { return 1, nil }
	b.begin(t.Context())
	defer b.end()
	b.tried, b.last = time.Now().Add(-time.Minute), Aged[int]{At: time.Now().Add(-time.Minute), Took: 2 * time.Second}
	assert.That(t, !b.get(time.Second).Looking, "a look of two seconds is repeated after a minute")
	b.paced, b.last.Took = true, 2*time.Minute
	assert.That(t, !b.get(time.Second).Looking, "a look of two minutes with rests is repeated after one")
	b.paced, b.last.Took = false, time.Hour
	assert.That(t, !b.get(time.Second).Looking, "a look of an hour is repeated after a minute")
	b.tried = time.Now().Add(-longestKept - time.Second)
	assert.That(t, b.get(time.Second).Looking, "what took long is kept for longer than for the longest time")
}

// Given a look that goes on, then what it has found so far is known at once to who waits for the first one, and hides
// nothing that an earlier look has found in whole.
func TestTheFirstLookTellsWhatItHasFoundSoFar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		part, whole := make(chan int), make(chan int)
		b := background[int]{paced: true, look: func(_ context.Context, soFar func(int)) (int, error) {
			soFar(<-part)
			return <-whole, nil
		}}
		b.begin(t.Context())
		defer b.end()
		var waits sync.WaitGroup
		waits.Go(func() {
			if a, err := b.await(t.Context(), 0); err != nil || a.Value != 1 || !a.Looking {
				t.Errorf("who waits gets %+v and %v, want the 1 that was found so far", a, err)
			}
		})
		part <- 1
		waits.Wait()
		whole <- 2
		synctest.Wait()
		knows := func(when string, want int, looking bool) {
			t.Helper()
			a := b.get(time.Minute)
			assert.That(t, a.Value == want && a.Looking == looking, "%s: %+v", when, a)
		}
		knows("after the first look", 2, false)
		time.Sleep(time.Hour) // of the bubble: it takes no time
		b.get(time.Minute)
		part <- 3
		synctest.Wait()
		knows("during the second look", 2, true)
		whole <- 4
		synctest.Wait()
		knows("after the second look", 4, false)
	})
}

// Given a view over an engine, then it takes the first figures at once, and is over when its context is.
func TestAViewSamplesAtOnceAndEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := New(Options{Metrics: newEngine().registry, Logger: slog.New(slog.DiscardHandler),
			Health: func() server.Readiness { return server.Readiness{Waiting: []string{"mysql: away"}} }})
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { v.Run(ctx) })
		synctest.Wait()
		h := v.Hour()
		assert.That(t, !h.Now().At.IsZero() && len(h.Troubles) == 1 && h.Troubles[0].What == "mysql" && h.Troubles[0].Stops,
			"%+v", h)
		stop()
		running.Wait()
	})
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// minuteAt is a minute in which so many were applied, each with a lag of 10 to 25 ms.
func minuteAt(hour, minute int, applied int64) dedup.Minute {
	m := dedup.Minute{At: time.Date(2026, 11, 27, hour, minute, 0, 0, time.UTC), Applied: applied}
	m.Lag[4] = applied
	return m
}

// Given a day in which one minute was bad, then its piece shows that: the least and the most, the worst lag, and who
// died. A minute in which nobody wrote counts as one of nothing, but a piece of such minutes is not there.
func TestAMinuteShowsInADay(t *testing.T) {
	var all []dedup.Minute
	for minute := range 60 {
		if minute == 20 || minute >= 30 && minute < 45 {
			continue // nobody writes
		}
		all = append(all, minuteAt(10, minute, 600))
	}
	bad := &all[5]
	bad.Applied, bad.Lag = 60, [19]int64{16: 60}
	bad.Dead, bad.Retried = map[dedup.Reason]int64{dedup.ReasonCrashed: 3}, 120
	bad.Waiting, all[6].Waiting = sql.Null[int64]{V: 5000, Valid: true}, sql.Null[int64]{V: 1000, Valid: true}
	got := pieces(all, 15*time.Minute)
	assert.Is(t, len(got), 3, "pieces, of which the third has no minute:")
	first, second := got[0], got[1]
	assert.That(t, first.Applied.Least == 1 && first.Applied.Most == 10 && first.Retried.Most == 2 &&
		first.Dead["crashed"] == 3, "the piece with the bad minute: %+v", first)
	assert.That(t, *first.WorstP99 >= 300 && *first.P50 <= .025 && *first.Waiting == (Range{1000, 3000, 5000}) &&
		first.Retrying == nil, "its lags are %v, %v, at worst %v; it has waiting %v and %v", *first.P50, *first.P99,
		*first.WorstP99, first.Waiting, first.Retrying)
	assert.That(t, second.Applied.Least == 0 && fmt.Sprintf("%.2f", second.Applied.Mean) == "9.33" &&
		second.Applied.Most == 10, "the piece with a silent minute: %+v", second.Applied)
	assert.Is(t, got[2].At.Minute(), 45, "the last piece begins at minute")

	late := pieces([]dedup.Minute{minuteAt(10, 14, 600), minuteAt(10, 15, 600)}, 15*time.Minute)
	assert.That(t, late[0].Applied == (Range{10, 10, 10}) && late[1].Applied == (Range{10, 10, 10}),
		"minutes before the first one and after the last one count: %+v", late)
	assert.Is(t, len(pieces(nil, time.Minute)), 0, "pieces of nothing")
}

// Given lags that were counted in buckets, then a percentile lies within its bucket, evenly, and never beyond the last
// bound.
func TestPercentilesLieWithinTheirBucket(t *testing.T) {
	for _, c := range []struct {
		counts [19]int64
		q      float64
		want   string
	}{
		{[19]int64{}, .5, "none"},
		{[19]int64{0: 10}, .5, "0.0005"},
		{[19]int64{3: 4, 9: 4}, .5, "0.01"},
		{[19]int64{3: 4, 9: 4}, .75, "0.75"},
		{[19]int64{4: 99, 18: 1}, .99, "0.025"},
		{[19]int64{18: 5}, .99, "7200"},
	} {
		got := "none"
		if x := quantileOf(c.q, c.counts[:]); x != nil {
			got = fmt.Sprintf("%.4g", *x)
		}
		assert.Is(t, got, c.want, "percentile %v of %v", c.q, c.counts)
	}
}
