package view

import (
	"context"
	"log/slog"
	"maps"
	"math"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

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
	e := &engine{
		registry: prometheus.NewRegistry(),
		deliveries: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "rollbackd_deliveries_total"},
			[]string{"outcome"}),
		lag: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "rollbackd_lag_seconds", Buckets: []float64{1, 2, 4}}),
		ready: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "rollbackd_queue_messages_ready"},
			[]string{"kind", "queue"}),
		up:   prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "rollbackd_dependency_up"}, []string{"name"}),
		dead: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "rollbackd_dead_letters"}, nil),
	}
	e.registry.MustRegister(e.deliveries, e.lag, e.ready, e.up, e.dead)
	return e
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
	e.deliveries.WithLabelValues("applied").Add(1000)
	e.lag.Observe(3)
	e.ready.WithLabelValues("retry", "q.retry.1s").Set(2)
	e.ready.WithLabelValues("retry", "q.retry.5s").Set(3)
	e.ready.WithLabelValues("main", "q").Set(math.NaN())
	e.up.WithLabelValues("mysql").Set(1)
	e.up.WithLabelValues("redis").Set(0)
	first := e.sample(t, r, now)
	if len(first.Rates) != 0 || first.Lag != nil {
		t.Errorf("the first sample, of which nobody knows since when, has rates %v and lag %v", first.Rates, first.Lag)
	}
	if _, known := first.Ready["main"]; known || first.Ready["retry"] != 5 || !first.Up["mysql"] || first.Up["redis"] {
		t.Errorf("ready %v, up %v", first.Ready, first.Up)
	}
	if first.Dead != nil {
		t.Errorf("nobody has counted the dead rows, and %v are said", first.Dead)
	}
	e.dead.WithLabelValues().Set(7)
	e.deliveries.WithLabelValues("applied").Add(500)
	e.deliveries.WithLabelValues("duplicate").Add(20)
	for range 200 {
		e.lag.Observe(0.5)
	}
	second := e.sample(t, r, now.Add(10*time.Second))
	if second.Rates["applied"] != 50 || second.Rates["duplicate"] != 2 || *second.Lag != 1 {
		t.Errorf("rates %v, lag %v; want 50, 2 and 1", second.Rates, second.Lag)
	}
	assert.Is(t, *second.Dead, 7, "%v dead rows", second.Dead)
	third := e.sample(t, r, now.Add(20*time.Second))
	if third.Rates["applied"] != 0 || third.Lag != nil {
		t.Errorf("without anything new: rates %v, lag %v", third.Rates, third.Lag)
	}
	fresh := newEngine() // counters that begin anew
	fresh.deliveries.WithLabelValues("applied").Add(7)
	assert.Is(t, fresh.sample(t, r, now.Add(30*time.Second)).Rates["applied"], 0, "after counters that went back the rate")
}

// Given a daemon of two queues, one of whose names begins with the other's, then a sample has the figures of one alone,
// with the queues beside it.
func TestASampleHasTheFiguresOfItsQueueAlone(t *testing.T) {
	reg := prometheus.NewRegistry()
	for queue, n := range map[string]float64{"q": 3, "q.2": 500} {
		up := prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "rollbackd_dependency_up", ConstLabels: prometheus.Labels{"queue": queue, "name": "service " + queue},
		})
		deliveries := prometheus.NewCounter(prometheus.CounterOpts{
			Name: "rollbackd_deliveries_total", ConstLabels: prometheus.Labels{"queue": queue, "outcome": "applied"},
		})
		deliveries.Add(n)
		reg.MustRegister(up, deliveries)
		for kind, names := range map[string][]string{
			"main": {queue}, "backstop": {queue + ".backstop"}, "dead": {queue + ".dead"},
			"retry": {queue + ".retry.1s", queue + ".retry.2s"},
		} {
			for _, name := range names {
				ready := prometheus.NewGauge(prometheus.GaugeOpts{
					Name: "rollbackd_queue_messages_ready", ConstLabels: prometheus.Labels{"queue": name, "kind": kind},
				})
				ready.Set(n)
				reg.MustRegister(ready)
			}
		}
	}
	families := require.Get(reg.Gather())(t)
	s := read(families, "q", time.Now())
	ready := map[string]float64{"main": 3, "backstop": 3, "dead": 3, "retry": 6}
	if s.total["applied"] != 3 || !maps.Equal(s.Ready, ready) || len(s.Up) != 1 {
		t.Errorf("applied %v, ready %v, up %v; want those of q: 3 and %v", s.total, s.Ready, s.Up, ready)
	}
}

// Given samples for longer than an hour, then the last hour of them is kept, the oldest first, and what only the next
// one needs is kept of the last alone.
func TestTheLastHourIsKept(t *testing.T) {
	e, r, began := newEngine(), &ring{}, time.Now()
	for i := range sampled + 40 {
		e.sample(t, r, began.Add(time.Duration(i)*sampleEvery))
	}
	if len(r.samples) != sampled || !r.samples[0].At.Equal(began.Add(40*sampleEvery)) {
		t.Errorf("%d samples, the first at %v", len(r.samples), r.samples[0].At.Sub(began))
	}
	for i, s := range r.samples {
		require.Is(t, (s.total != nil), (i == sampled-1), "sample %d keeps what only the last one needs", i)
	}
	if span := r.samples[sampled-1].At.Sub(r.samples[0].At); span > time.Hour || span < time.Hour-sampleEvery {
		t.Errorf("they span %v", span)
	}
}

// Given something that is amiss and well again, then the last trouble of each thing is remembered, with its reason, and
// from when until when.
func TestTheLastTroubleOfEachThingIsRemembered(t *testing.T) {
	r, now := &ring{}, time.Now()
	at := func(s int) time.Time { return now.Add(time.Duration(s) * time.Second) }
	r.watch(server.Readiness{Waiting: []string{"mysql: refused: by 10.0.0.1", "session: not yet connected"}}, at(0))
	r.watch(server.Readiness{Waiting: []string{"mysql: no route"}, Degraded: []string{"q.dead: it is full"}}, at(1))
	r.watch(server.Readiness{Degraded: []string{"q.dead: it is full"}}, at(2))
	want := []Trouble{
		{What: "mysql", Why: "no route", Since: at(0), Until: at(2), Stops: true},
		{What: "q.dead", Why: "it is full", Since: at(1)},
	}
	check := func(when string, want []Trouble) {
		t.Helper()
		assert.Equal(t, r.troubles, want, "%s", when)
	}
	check("after the first one is over", want)
	r.watch(server.Readiness{Waiting: []string{"mysql: gone again"}}, at(9))
	check("after it came again", []Trouble{
		{What: "q.dead", Why: "it is full", Since: at(1), Until: at(9)},
		{What: "mysql", Why: "gone again", Since: at(9), Stops: true},
	})
	for i := range 2 * mostTroubles {
		r.watch(server.Readiness{Degraded: []string{"queue " + strconv.Itoa(i) + ": odd"}}, at(10+i))
	}
	assert.Is(t, len(r.troubles), mostTroubles, "are remembered")
}

// Given a look that takes long, then everybody who asks meanwhile gets what was known, one look goes on at a time, and
// the end of the view ends it and waits for it.
func TestALookInTheBackgroundIsSharedAndEnds(t *testing.T) {
	begun, ended := make(chan struct{}), make(chan struct{})
	looks := 0
	b := background[int]{look: func(ctx context.Context, _ func(int)) (int, error) {
		looks++
		close(begun)
		<-ctx.Done()
		close(ended)
		return 0, ctx.Err()
	}}
	if a := b.get(0); a.Looking {
		t.Error("it looks before the view runs")
	}
	ctx, stop := context.WithCancel(t.Context())
	b.begin(ctx)
	var asking sync.WaitGroup
	for range 20 {
		asking.Go(func() {
			if a := b.get(0); !a.At.IsZero() || !a.Looking {
				t.Errorf("meanwhile: %+v", a)
			}
		})
	}
	asking.Wait()
	<-begun
	stop()
	b.end()
	select {
	case <-ended:
	default:
		t.Error("the view ended before its look")
	}
	if a := b.get(0); a.Looking || a.Err == nil || looks != 1 {
		t.Errorf("after the end: %+v, %d looks", a, looks)
	}
}

func TestWhatTookLongIsNotLookedForAgainSoon(t *testing.T) {
	var b background[int]
	b.look = func(context.Context, func(int)) (int, error) { return 1, nil }
	b.begin(t.Context())
	defer b.end()
	b.tried, b.last = time.Now().Add(-time.Minute), Aged[int]{At: time.Now().Add(-time.Minute), Took: 2 * time.Second}
	if a := b.get(time.Second); a.Looking {
		t.Error("a look of two seconds is repeated after a minute")
	}
	b.paced, b.last.Took = true, 2*time.Minute
	if a := b.get(time.Second); a.Looking {
		t.Error("a look of two minutes with rests is repeated after one")
	}
	b.paced, b.last.Took = false, 2*time.Second
	b.tried = time.Now().Add(-time.Hour)
	if a := b.get(time.Second); !a.Looking {
		t.Error("it is not repeated after an hour")
	}
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
		if a := b.get(time.Minute); a.Value != 2 || a.Looking {
			t.Errorf("after the first look: %+v", a)
		}
		time.Sleep(time.Hour) // of the bubble: it takes no time
		b.get(time.Minute)
		part <- 3
		synctest.Wait()
		if a := b.get(time.Minute); a.Value != 2 || !a.Looking {
			t.Errorf("during the second look: %+v", a)
		}
		whole <- 4
		synctest.Wait()
		if a := b.get(time.Minute); a.Value != 4 || a.Looking {
			t.Errorf("after the second look: %+v", a)
		}
	})
}

// Given a view over an engine, then it takes the first figures at once, and is over when its context is.
func TestAViewSamplesAtOnceAndEnds(t *testing.T) {
	e := newEngine()
	v := New(Options{
		Metrics: e.registry, Health: func() server.Readiness { return server.Readiness{Waiting: []string{"mysql: away"}} },
		Logger: slog.New(slog.DiscardHandler),
	})
	ctx, stop := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() { v.Run(ctx); close(over) }()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for v.Hour().Now().At.IsZero() {
		<-tick.C
	}
	if h := v.Hour(); len(h.Troubles) != 1 || h.Troubles[0].What != "mysql" || !h.Troubles[0].Stops {
		t.Errorf("%+v", h.Troubles)
	}
	stop()
	<-over
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
