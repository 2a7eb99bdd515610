package operator_test

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wire"
)

const (
	group   = "test-group"
	tag     = "stock.rollback"
	keyFrom = "header:x-message-key,property:message_id,body:sha256"
	lease   = time.Minute
	most    = 5 // replays
)

var (
	anna = operator.Actor{Name: "anna"}
	bert = operator.Actor{Name: "bert"}
	all  = deadletter.Filter{All: true}
)

var delays = []time.Duration{100 * time.Millisecond, time.Minute}

// place is where a desk stands: servers and names.
type place struct{ dsn, amqpURL, queue string }

// newDesk makes a desk, as one daemon of a fleet has it, and its pool.
func (p place) newDesk(
	ctx context.Context, log *slog.Logger, change ...func(*operator.Options),
) (*operator.Operator, *sql.DB, error) {
	db, _, err := dedup.Open(ctx, p.dsn, dedup.OpenOptions{
		LockWait: time.Second, DialTimeout: time.Second, ReadTimeout: 3 * time.Second, MaxOpen: operator.Connections,
	})
	if err != nil {
		return nil, nil, err
	}
	pool, err := db.DB()
	if err != nil {
		return nil, nil, err
	}
	records, err := dedup.NewLog(db, dedup.LogOptions{Table: "consumer_log", Lease: lease, Delays: delays, MaxAttempts: 2})
	if err != nil {
		return nil, nil, err
	}
	letters, err := deadletter.New(deadletter.Options{
		Records: records, AMQPURLs: []string{p.amqpURL}, Name: rabbit.ConnectionName("test"), Group: group, Queue: p.queue,
		KeyFrom: keyFrom, Retention: 720 * time.Hour, MaxReplays: most,
	})
	if err != nil {
		return nil, nil, err
	}
	o := operator.Options{
		DB: db, Records: records, Letters: letters, Group: group, Queue: p.queue, Logger: log,
		Order: func(_ context.Context, order string, _ []string) ([]string, error) {
			return []string{order + "-a", order + "-b"}, nil
		},
	}
	for _, f := range change {
		f(&o)
	}
	d, err := operator.New(o)
	return d, pool, err
}

// world is a fresh log and a fresh set of queues.
type world struct {
	place
	t         *testing.T
	patience  time.Duration
	broker    *stack.Broker
	db        *sql.DB
	records   *dedup.Log
	publisher *rabbit.Publisher
	sources   []wire.KeySource
	desk      *operator.Operator // that of the test itself, which works on nothing
}

func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	w := &world{t: t, broker: stack.AMQP(t), patience: 90 * time.Second}
	w.place = place{dsn: stack.MySQL(t), amqpURL: w.broker.URL, queue: w.broker.Name("stock.rollback")}
	db, _, err := dedup.Open(t.Context(), w.dsn, dedup.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if w.db, err = db.DB(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.db.Close() })
	if err := dedup.Migrate(t.Context(), db, dedup.MigrateOptions{Table: "consumer_log"}); err != nil {
		t.Fatal(err)
	}
	if w.records, err = dedup.NewLog(db, dedup.LogOptions{
		Table: "consumer_log", Lease: lease, Delays: delays, MaxAttempts: 2,
	}); err != nil {
		t.Fatal(err)
	}
	topology := rabbit.TopologyConfig{
		Exchange: w.broker.Name("stock"), Queue: w.queue, RoutingKeys: []string{tag}, Delays: delays,
	}
	w.broker.Track(topology.Queues()...)
	w.broker.TrackExchanges(topology.Exchange)
	conn, err := rabbit.Dial(t.Context(), rabbit.Config{URLs: []string{w.broker.URL}, Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := rabbit.Declare(t.Context(), conn, topology); err != nil {
		t.Fatal(err)
	}
	w.publisher = rabbit.NewPublisher(rabbit.Config{URLs: []string{w.broker.URL}, Name: "test"})
	t.Cleanup(func() { _ = w.publisher.Close(context.WithoutCancel(t.Context())) })
	if w.sources, err = wire.ParseKeySources(keyFrom); err != nil {
		t.Fatal(err)
	}
	w.desk = w.newDesk()
	return w
}

func (w *world) newDesk(change ...func(*operator.Options)) *operator.Operator {
	w.t.Helper()
	d, pool, err := w.place.newDesk(w.t.Context(), slog.New(slog.NewTextHandler(w.t.Output(), nil)), change...)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = pool.Close() })
	return d
}

// daemon works on runs until stop, or the end of the test.
func (w *world) daemon(change ...func(*operator.Options)) (stop func()) {
	w.t.Helper()
	return w.works(w.newDesk(change...))
}

// works makes a desk work until stop, or the end of the test.
func (w *world) works(d *operator.Operator) (stop func()) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	var wg sync.WaitGroup
	wg.Go(func() { d.Work(ctx) })
	stop = func() {
		cancel()
		wg.Wait()
	}
	w.t.Cleanup(stop)
	return stop
}

// consumes runs an engine whose handler refuses what refuse says.
func (w *world) consumes(refuse func(key string) bool) {
	w.t.Helper()
	db, _, err := dedup.Open(w.t.Context(), w.dsn, dedup.OpenOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	pool, err := db.DB()
	if err != nil {
		w.t.Fatal(err)
	}
	c, err := consumer.New(consumer.Config{
		AMQPURLs: []string{w.amqpURL}, Group: group, Exchange: w.broker.Name("stock"), Queue: w.queue,
		RoutingKeys: []string{tag}, KeyFrom: keyFrom, MaxAttempts: 2, RetryDelays: delays, Lanes: 1,
		MaxDead: consumer.Off, WithoutKeeper: true, Registerer: prometheus.NewRegistry(),
	}, consumer.Each(func(_ context.Context, _ *gorm.DB, m consumer.Message) error {
		if refuse != nil && refuse(m.Key) {
			return fmt.Errorf("shelf of %s is locked", m.Key)
		}
		return nil
	}), consumer.Options{DB: db})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("Run = %v", err)
		}
		_ = pool.Close()
	})
}

// dead makes letters with their rows, a second ago.
func (w *world) dead(cause string, keys ...string) {
	w.t.Helper()
	for some := range slices.Chunk(keys, 5000) {
		var batch []rabbit.Publishing
		var rows []dedup.Death
		for _, key := range some {
			d := rabbit.Delivery{Message: rabbit.Message{MessageID: key, Body: []byte("{}")}, Exchange: "stock",
				RoutingKey: tag}
			id, _ := wire.Identify(group, w.sources, w.queue, d)
			batch = append(batch, rabbit.Publishing{Key: rabbit.DeadQueue(w.queue), Message: wire.Copy(d, w.queue,
				wire.CopyOptions{Identity: id, Reason: dedup.ReasonExhausted, Error: cause})})
			rows = append(rows, dedup.Death{Entry: dedup.Entry{
				Identity: id.Identity, BodyHash: sha256.Sum256(d.Body), MessageID: key, Body: d.Body,
				Properties: wire.MarshalProperties(d),
			}, Reason: dedup.ReasonExhausted, Cause: cause})
		}
		for _, err := range w.publisher.Publish(w.t.Context(), batch) {
			if err != nil {
				w.t.Fatal(err)
			}
		}
		if err := errors.Join(w.records.DeadRows(w.t.Context(), rows)...); err != nil {
			w.t.Fatal(err)
		}
	}
	w.exec("UPDATE consumer_log SET consumer_timestamp = consumer_timestamp - INTERVAL 1 SECOND, dead_at = dead_at - " +
		"INTERVAL 1 SECOND WHERE consumer_status = 3")
}

func (w *world) exec(query string, args ...any) {
	w.t.Helper()
	if _, err := w.db.ExecContext(w.t.Context(), query, args...); err != nil {
		w.t.Fatalf("%s: %v", query, err)
	}
}

func (w *world) number(query string, args ...any) (n int) {
	w.t.Helper()
	if err := w.db.QueryRowContext(w.t.Context(), query, args...).Scan(&n); err != nil {
		w.t.Fatalf("%s: %v", query, err)
	}
	return n
}

// preview is what a person sees before the click.
func (w *world) preview(kind operator.Kind, f deadletter.Filter) operator.Preview {
	w.t.Helper()
	p, err := w.desk.Preview(w.t.Context(), operator.PreviewRequest{Kind: kind, Filter: f})
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// start previews and starts.
func (w *world) start(r operator.Request) operator.Act {
	w.t.Helper()
	if r.Kind == "" {
		r.Kind = operator.KindReplay
	}
	r.CutOff = w.preview(r.Kind, r.Filter).At
	a, err := w.desk.Start(w.t.Context(), anna, r)
	if err != nil {
		w.t.Fatal(err)
	}
	return a
}

func (w *world) act(id string) operator.Act {
	w.t.Helper()
	a, err := w.desk.Act(w.t.Context(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	return a
}

// ends waits for the end of a run.
func (w *world) ends(id string) (a operator.Act) {
	w.t.Helper()
	w.eventually("the run ends", func() (string, bool) {
		a = w.act(id)
		return fmt.Sprintf("%s %+v", a.State, a.Progress), a.State != operator.Running
	})
	return a
}

// swept waits until the queue was swept after it.
func (w *world) swept(id string) (a operator.Act) {
	w.t.Helper()
	w.eventually("the sweep ends", func() (string, bool) {
		a = w.act(id)
		return fmt.Sprintf("%+v", a), a.State != operator.Running && !a.Sweeping
	})
	return a
}

func (w *world) eventually(what string, look func() (have string, ok bool)) {
	w.t.Helper()
	var have string
	if !poll.Within(w.patience, func() (ok bool) { have, ok = look(); return ok }) {
		w.t.Fatalf("still not after %v: %s; have %s", w.patience, what, have)
	}
}

// wantLetters waits until the dead-letter queue holds so many.
func (w *world) wantLetters(n int) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%d letters", n), func() (string, bool) {
		have := w.broker.Depth(rabbit.DeadQueue(w.queue))
		return fmt.Sprint(have), have == n
	})
}

func (w *world) status(s dedup.Status) int {
	w.t.Helper()
	return w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = ?", int(s))
}

func names(prefix string, n int) []string {
	k := make([]string, n)
	for i := range k {
		k[i] = fmt.Sprintf("%s-%06d", prefix, i)
	}
	return k
}

// childEnv makes the test binary a daemon that works on runs, to be killed.
const childEnv = "ROLLBACKD_TEST_DESK"

func runChild(settings string) int {
	part := strings.Split(settings, "\n")
	d, _, err := place{part[0], part[1], part[2]}.newDesk(context.Background(), slog.New(slog.NewTextHandler(os.Stderr,
		nil)))
	if err != nil {
		return 1
	}
	if len(part) > 3 && doOwn(d) != nil {
		return 1
	}
	d.Work(context.Background())
	return 0
}

// child starts a daemon as a process, or with a word more what doOwn does; kill ends it as kill -9 does.
func (w *world) child(more ...string) (kill func()) {
	w.t.Helper()
	cmd := exec.CommandContext(w.t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+strings.Join(append([]string{w.dsn, w.amqpURL,
		w.queue}, more...), "\n"))
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	return func() {
		w.t.Helper()
		if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
			w.t.Errorf("it had ended by itself: %v", err)
		}
		_ = cmd.Wait()
	}
}
