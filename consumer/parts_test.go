package consumer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/sync/semaphore"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer/internal/runner"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/lock"
)

// gorm's PrepareStmt takes the pool from the configuration, not from the statement: a handler that asks for it must not
// find the real pool there and write outside its transaction.
func TestAHandlersGormKnowsNothingButTheTransaction(t *testing.T) {
	db := require.First(dedup.Open(t.Context(), "nobody@tcp(127.0.0.1:1)/nothing", dedup.OpenOptions{}))(t)
	pool := db.ConnPool
	defer require.Get(db.DB())(t).Close()
	guard := &guardedTx{}
	tx := gormOver(t.Context(), db, guard)
	for name, got := range map[string]gorm.ConnPool{
		"of its statement": tx.Statement.ConnPool, "of its configuration": tx.ConnPool,
		"of its session's configuration": tx.Session(&gorm.Session{NewDB: true}).ConnPool,
	} {
		assert.Is[gorm.ConnPool](t, got, guard, "the pool %s", name)
	}
	assert.That(t, db.ConnPool == pool && db.Statement.ConnPool == pool, "the engine's own handle has lost its pool")
}

// Given a CALL during which the server itself rolls back, when it says so, then the call has not ended its transaction.
func TestWhatTheServerRolledBackNoCallHasEnded(t *testing.T) {
	t.Parallel()
	for _, number := range []string{"1206", "1213"} {
		state := map[string]string{"1206": "HY000", "1213": "40001"}[number]
		db := require.First(mysqldb.Open(t.Context(), stack.MySQL(t), mysqldb.Options{}))(t)
		pool := require.Get(db.DB())(t)
		t.Cleanup(func() { pool.Close() })
		stack.Exec(t, pool, "CREATE PROCEDURE meets() BEGIN ROLLBACK; SIGNAL SQLSTATE '"+state+"' SET MYSQL_ERRNO = "+
			number+"; END")
		tx := require.Get(pool.BeginTx(t.Context(), nil))(t) // as a handler gets it
		t.Cleanup(func() { _ = tx.Rollback() })
		g := &guardedTx{tx: tx, ours: true, alone: true}
		require.OK(t, g.save(t.Context()))
		g.ours = false
		_, err := g.ExecContext(t.Context(), "CALL meets()")
		require.That(t, err != nil, "the procedure has no error")
		err = g.returned(t.Context(), "ROLLBACK TO")
		assert.That(t, err == nil && !g.over, "after %s: %v, over %v", number, err, g.over)
	}
}

// end is what endedByDelivery knows of a session.
type end struct {
	lived       time.Duration
	waited      int
	came, acked uint64
}

// Each end in a row of early ones is a reason for the precaution; a delivery is blamed once there was one to blame.
func TestADeliveryIsBlamedWhenThereWasOne(t *testing.T) {
	idle, held, waiting := end{}, end{came: 3, acked: 2}, end{waited: 1}
	done, late, full := end{came: 2, acked: 2}, end{lived: early, came: 3}, end{came: 11, acked: 10}
	for name, c := range map[string]struct {
		ends             []end
		blamed, cautious bool
	}{
		"one end":                         {[]end{held}, false, false},
		"idle":                            {[]end{idle, idle, idle}, false, true},
		"everything was acked":            {[]end{done, done}, false, true},
		"what came was not acked":         {[]end{held, held}, true, true},
		"messages waited":                 {[]end{idle, waiting}, true, true},
		"blamed once, it stays so":        {[]end{held, idle, idle}, true, true},
		"a long session between":          {[]end{held, late, held}, false, false},
		"a session that did much between": {[]end{held, full, held}, false, false},
		"blamed, then a long session":     {[]end{held, held, late, idle, idle}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := healthOf(slog.New(slog.DiscardHandler))
			s := (&engine{health: h}).mainQueue()
			s.queue, s.lanes, s.prefetch = "q", 1, 10
			h.missing(t.Context(), DependencyRabbitMQ, rabbit.ErrClosed) // by the first end
			blamed := false
			for _, e := range c.ends {
				s.stood, s.waited, s.came, s.acked = true, e.waited, e.came, e.acked
				blamed = s.endedByDelivery(t.Context(), rabbit.ErrClosed, e.lived)
			}
			assert.That(t, blamed == c.blamed && s.quarantine.active() == c.cautious, "blamed %v, cautious %v; want %v, %v",
				blamed, s.quarantine.active(), c.blamed, c.cautious)
			assert.That(t, !blamed || !h.names(DependencyRabbitMQ), "RabbitMQ, which is there, is said to be missing")
		})
	}
}

func TestAProbeAfterDeliveriesWereGivenBackHasOneInHand(t *testing.T) {
	s := &source{c: &engine{
		cfg: Config{Lanes: 4, BatchSize: 100, GiveBackAfter: time.Minute, HoldLimit: 3 * time.Minute},
		log: slog.New(slog.DiscardHandler),
	}}
	for i, want := range []halfOpen{
		{lanes: 1, size: 100, patience: time.Minute, probe: true},
		{lanes: 1, size: 1, patience: 2 * time.Minute, probe: true},
		{lanes: 1, size: 1, patience: 3 * time.Minute, probe: true},
	} {
		s.begin = probing(s.c, s.begin)
		assert.Is(t, s.begin, want, "probe %d", i+1)
		s.after(t.Context(), errGiveBack, time.Second)
	}
}

// healthOf is the health of an engine that is not there.
func healthOf(log *slog.Logger) *health {
	reg := newRegistry(Config{Registerer: prometheus.NewRegistry()})
	return newHealth(log, newMetrics(reg, &locks{Locker: lock.None{}}, "q", false), time.Second, time.Second)
}

// Given each dependency away for five minutes and asked for all the time, then the log has a line at the beginning with
// what to do, one a minute, and one at the end; a person's pause, which is none, has the first and the last.
func TestADependencyThatIsAwayIsALineAMinute(t *testing.T) {
	for what, want := range map[string]int{
		DependencyRabbitMQ: 4, DependencyMySQL: 4, DependencyRedis: 4, DependencyLock: 4, DependencyService: 4,
		PausedByPerson: 0,
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				h := healthOf(slog.New(slog.NewTextHandler(&out, nil)))
				for range 500 {
					h.missing(t.Context(), what, errors.New("refused"))
					time.Sleep(600 * time.Millisecond) // of the bubble: it takes no time
				}
				h.back(t.Context(), what)
				said := out.String()
				first, _, _ := strings.Cut(said, "\n")
				assert.That(t, strings.Count(said, "still waiting for "+what) == want && strings.Count(said, "\n") == want+2 &&
					strings.Contains(said, what+" is back") && strings.Contains(first, "do=") == (want > 0),
					"the log has, want a line with what to do, %d that it still is so, and the end:\n%s", want, said)
			})
		})
	}
}

// Given a letter that a full queue refuses, when its row was moved and a connection ends with the copy that comes back
// in its place, then no queue is said to refuse that copy, because none has; and when its queue does, that is said.
func TestACopyThatNobodyRefusedIsSaidToBeRefusedByNoQueue(t *testing.T) {
	t.Parallel()
	health := healthOf(slog.New(slog.DiscardHandler))
	l := &worker{name: "0", c: &engine{holding: newHolding(health), cfg: Config{Queue: "q"}}}
	says := func(want ...string) {
		t.Helper()
		l.say(t.Context())
		assert.Equal(t, health.state(false).Degraded, want, "degraded")
	}
	full := fmt.Errorf("full: %w", rabbit.ErrNacked)
	letter := &item{copy: publication{refused: full}}
	letter.settlement = settlement{by: byDeadLetter}
	letter.id.Identity = dedup.Identity{Group: "g", Tag: "t", Key: "k"}
	said := func(queue string) string { _, advice := l.amiss(letter); return queue + ": " + advice.Error() }

	l.held.items = []*item{letter}
	says(said("q.dead"))
	assert.That(t, l.c.holding.has(letter.id.Identity) && l.c.holding.size() == 1, "the letter is not held")

	letter.copy.refused, letter.settlement = nil, settlement{by: byRetry, delay: time.Second} // whose connection has ended
	says()

	letter.copy.refused = errors.Join(full)
	says(said("q.retry.1s"))

	l.held.items = nil
	says()
	left := l.c.holding
	assert.That(t, left.size() == 0 && len(left.lanes) == 0 && !left.has(letter.id.Identity), "held by %v", left.lanes)
}

// Given a lane in the middle of an attempt, when another waits with a message that must be attempted alone, then that
// one is not stuck, however long the attempt takes: whether it moves is for the clock of the other to say.
func TestALaneThatWaitsForTheAttemptsOfOthersIsNotStill(t *testing.T) {
	c := &engine{cfg: Config{Lanes: 1}, slots: semaphore.NewWeighted(2)}
	other := slot{worker: &worker{c: c, clock: &laneClock{}}}
	require.OK(t, other.take(t.Context(), false))
	defer other.end()
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	l := slot{worker: &worker{c: c, clock: &laneClock{}}}
	l.clock.tick()
	done := make(chan error)
	go func() { done <- l.take(ctx, true) }()
	rests := poll.Within(10*time.Second, func() bool { return l.clock.at.Load() == 0 })
	assert.That(t, rests, "it counts as still after 10s")
	cancel(stop)
	assert.Error(t, <-done, stop, "take")
}

// Given no TracerProvider, then spans cost no allocation, whatever the messages say of their traces.
func TestWithoutTracingNothingIsAllocated(t *testing.T) {
	var off *tracing
	b, ctx := &batch{}, context.Background()
	for i := range 100 {
		it := &item{fate: fate{outcome: Applied}}
		it.delivery.Headers = rabbit.Table{"traceparent": fmt.Sprintf("00-%032x-%016x-01", i+1, i+1)}
		b.all = append(b.all, it)
	}
	m := Message{Headers: b.all[0].delivery.Headers}
	assert.Is(t, testing.AllocsPerRun(100, func() { spansOf(ctx, off, b, m) }), 0, "allocations")
	on := newTracing(noop.NewTracerProvider(), "q")
	assert.AtLeast(t, testing.AllocsPerRun(100, func() { spansOf(ctx, on, b, m) }), 100,
		"allocations with tracing: what is measured is not what happens")
}

// spansOf is what a lane does for a batch of which one message is attempted alone.
func spansOf(ctx context.Context, t *tracing, b *batch, m Message) {
	ctx, span := t.batch(ctx, b)
	_, alone := t.message(ctx, m)
	endSpan(alone, nil)
	t.ended(span, b, nil)
}

// Given a batch with messages of a replay, then the next one waits longer for more, unless it waits for long, or not at
// all, anyway; and the one behind that waits as ever.
func TestABatchBehindAReplayWaitsLongerForMore(t *testing.T) {
	for usual, want := range map[time.Duration]time.Duration{
		0: 0, 2 * time.Millisecond: 20 * time.Millisecond, time.Second: time.Second,
	} {
		w := &worker{c: &engine{cfg: Config{BatchLinger: usual}}, reopened: true}
		assert.Is(t, w.linger(), want, "behind a replay")
		assert.Is(t, w.linger(), usual, "after that")
	}
}

// Given a handler that calls one of Each with messages of its own, when it does not return from one of these, then the
// engine takes no place among them for one among its own: it knows of its own messages alone.
func TestAnEachOfOtherMessagesIsNoPlaceAmongTheEngines(t *testing.T) {
	t.Parallel()
	r := &runner.Runner{Log: slog.New(slog.DiscardHandler), Tell: func(context.Context, error) {}}
	over := make(chan struct{})
	each := Each(func(_ context.Context, _ *gorm.DB, m Message) error {
		if m.Key == "third" {
			<-over
		}
		return nil
	})
	message := func(key string) Message { return Message{Identity: dedup.Identity{Key: key}} }
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	ended := make(chan struct{})
	at, err := r.Run(ctx, calling{message("whole")}, func(ctx context.Context) error {
		defer close(ended)
		return each.Handle(ctx, &gorm.DB{Statement: &gorm.Statement{}}, []Message{message("first"), message("second"),
			message("third")})
	})
	assert.That(t, at == -1 && err != nil, "it was at %d (%v), want -1 and an error", at, err)
	close(over)
	<-ended
}

// Given queues with messages, one of them gone, then each that is there has its depth, its consumers and its kind; and
// when RabbitMQ cannot be reached nothing is said, rather than what was true once.
func TestTheDepthOfEachQueueIsShownWhileItIsKnown(t *testing.T) {
	t.Parallel()
	b := stack.AMQP(t)
	q, reg := b.Name("depth"), prometheus.NewRegistry()
	cfg := Config{Queue: q, RetryDelays: []time.Duration{time.Second, time.Minute}, AMQPURLs: []string{b.URL},
		Logger: slog.New(slog.DiscardHandler), Registerer: reg}.withDefaults()
	connections := 0
	d := require.Get(newDepths([]Config{cfg}, func(context.Context, string) {}))(t)
	d.amqp.Opened = func() { connections++ }
	defer d.close()
	for _, name := range []string{q, rabbit.BackstopQueue(q), rabbit.DeadQueue(q), rabbit.RetryQueue(q, time.Second)} {
		b.DeclareQueue(name, nil)
	}
	for range 3 {
		b.Publish("", q, stack.Message{Body: []byte("{}")})
	}
	b.Publish("", rabbit.DeadQueue(q), stack.Message{Body: []byte("{}")})
	b.HoldExclusively(rabbit.BackstopQueue(q))
	shown := func() map[string]float64 {
		t.Helper()
		families := require.Get(reg.Gather())(t)
		got := map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				name := strings.TrimPrefix(f.GetName(), "rollbackd_queue_")
				for _, label := range m.GetLabel() { // kind, queue
					name += " " + strings.TrimPrefix(label.GetValue(), q)
				}
				got[name] = m.GetGauge().GetValue()
			}
		}
		return got
	}

	assert.That(t, d.look(t.Context()) != nil, "nothing is said of the queue that is missing")
	want := map[string]float64{
		"messages_ready main ": 3, "messages_ready dead .dead": 1, "messages_ready backstop .backstop": 0,
		"messages_ready retry .retry.1s": 0, "consumers main ": 0, "consumers dead .dead": 0,
		"consumers backstop .backstop": 1, "consumers retry .retry.1s": 0,
	}
	diff := cmp.Diff(want, shown())
	assert.That(t, diff == "", "with one queue missing (-want +got):\n%s", diff)

	// when the connection is cut, and then RabbitMQ is not there
	d.conn.Close()
	_ = d.look(t.Context())
	diff = cmp.Diff(want, shown())
	assert.That(t, diff == "" && connections == 2, "%d connections, want 2; (-want +got):\n%s", connections, diff)
	d.conn.Close()
	d.amqp.URLs = []string{"amqp://127.0.0.1:1/"}
	assert.That(t, d.look(t.Context()) != nil, "RabbitMQ is not there, and nothing is said")
	assert.Is(t, len(shown()), 0, "RabbitMQ is not there, and figures of it are shown")
}
