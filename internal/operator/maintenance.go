package operator

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// MaintenanceOptions say what is kept and for how long.
type MaintenanceOptions struct {
	Compensate deadletter.CompensateOptions // without Record and Beside
	// Beside are the operators of the other queues of the group that this process serves.
	Beside []*Operator
	// Clean, if set, deletes what else is over, beside what persons did long ago.
	Clean func(ctx context.Context) (deleted int, err error)
	// Overdue is the age at which a row that is neither applied nor dead is worth a warning.
	Overdue time.Duration
	// Clocks is told, every few seconds, whether the clocks agree: nil, or [dedup.ErrClocks].
	Clocks func(ctx context.Context, err error)
	Logger *slog.Logger
}

// Maintenance is one process's part in the keeping. The processes of a group elect the one that works, see
// [dedup.Log.Campaign]; for a few seconds two may, which is harmless: rows are deleted and reopened by statements that
// compare what was read, and a letter is told of at least once anyway.
type Maintenance struct {
	MaintenanceOptions

	d       *Operator
	figures *figures
}

const (
	pruneFirst  = 5 * time.Second  // after the election
	pruneEvery  = 10 * time.Minute // between two passes
	lateEvery   = time.Hour
	oldestEvery = time.Hour
	retryEvery  = 10 * time.Second // while MySQL is away, which the engine says
	askTimeout  = 5 * time.Second  // for a figure

	figuresEvery = 15 * time.Second // as often as a scrape
)

// Maintenance makes the part that this process has in the keeping, and registers its figures. The operator's pool is of
// its own then, with the shortest wait for locks, so that it never takes a connection from a lane and gives way to
// messages.
func (d *Operator) Maintenance(o MaintenanceOptions, reg prometheus.Registerer) (*Maintenance, error) {
	r := &registry{Registerer: prometheus.WrapRegistererWith(prometheus.Labels{"group": d.o.Group}, reg)}
	m := &Maintenance{MaintenanceOptions: o, d: d, figures: newFigures(d.o.Retention, o.Compensate, r)}
	for _, other := range o.Beside {
		m.Compensate.Beside = append(m.Compensate.Beside, other.o.Letters)
	}
	m.Compensate.Record = func(
		ctx context.Context, queue, by string, f deadletter.Filter, replay deadletter.Recorded,
	) (deadletter.Result, error) {
		desk := d
		for _, other := range o.Beside {
			if other.o.Letters.Queue() == queue {
				desk = other
			}
		}
		res, err := desk.compensate(ctx, by, f, replay)
		m.figures.compensation(ctx, res, err)
		return res, err
	}
	if o.Compensate.Notifier != nil {
		m.Compensate.Notifier = &countedNotifier{o.Compensate.Notifier, m.figures}
	}
	return m, r.err
}

// Keep stands for election until ctx ends: for each group of its own, on one connection.
func Keep(ctx context.Context, all ...*Maintenance) {
	var wg sync.WaitGroup
	defer wg.Wait()
	var posts []dedup.Post
	for _, m := range all {
		wg.Go(func() { m.look(ctx) })
		if m.d.o.Retention > 0 {
			wg.Go(func() { m.ofOldest(ctx, 0, m.warn) })
		}
		posts = append(posts, dedup.Post{Records: m.d.o.Records, Group: m.d.o.Group, Lead: m.lead})
	}
	if len(posts) > 0 {
		dedup.Campaign(ctx, all[0].Logger, posts...)
	}
}

// look keeps the figures of the log until ctx ends.
func (m *Maintenance) look(ctx context.Context) {
	tick := time.NewTicker(figuresEvery)
	defer tick.Stop()
	for {
		if err := m.figures.look(ctx, m.d.o.Records, m.Clocks); err != nil && ctx.Err() == nil {
			m.Logger.DebugContext(ctx, "figures of the consumer log", "err", err) // the engine says so if MySQL is away
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// lead is what the leader does until ctx ends.
func (m *Maintenance) lead(ctx context.Context) {
	m.figures.leader.WithLabelValues().Set(1)
	defer m.figures.leader.WithLabelValues().Set(0)
	defer m.figures.late.Reset()
	var wg sync.WaitGroup
	if m.d.o.Retention > 0 {
		wg.Go(func() { m.every(ctx, "old rows of the consumer log could not be deleted", m.prune) })
		wg.Go(func() { m.every(ctx, "old messages of the outbox could not be deleted", m.pruneOutbox) })
	}
	wg.Go(func() {
		m.every(ctx, "old acts of persons, old minutes, or locks that are over, could not be deleted", m.clean)
	})
	wg.Go(func() { m.ofOldest(ctx, oldestEvery, m.sayOldest) })
	wg.Go(func() {
		if err := m.d.o.Letters.Compensate(ctx, m.Compensate); err != nil {
			m.Logger.ErrorContext(ctx, "compensation", "err", err)
		}
	})
	wg.Wait()
}

// every deletes something in passes, until ctx ends.
func (m *Maintenance) every(ctx context.Context, failure string, pass func(context.Context) error) {
	for next := pruneFirst; wait.For(ctx, next/2+rand.N(next)) == nil; next = pruneEvery {
		if err := pass(ctx); err != nil && ctx.Err() == nil {
			m.Logger.WarnContext(ctx, failure, "err", err, "next_try_in", pruneEvery)
		}
	}
}

// clean deletes what is over beside the rows.
func (m *Maintenance) clean(ctx context.Context) error {
	if _, err := m.d.o.Records.Clocks(ctx); err != nil {
		return err
	}
	var err error
	for _, d := range append([]*Operator{m.d}, m.Beside...) {
		_, lost := d.Clean(ctx)
		err = errors.Join(err, lost)
	}
	if m.Clean != nil {
		_, lost := m.Clean(ctx)
		err = errors.Join(err, lost)
	}
	return err
}

// prune deletes the rows that are old.
func (m *Maintenance) prune(ctx context.Context) error {
	began := time.Now()
	pruned, err := m.d.o.Records.Prune(ctx, dedup.PruneOptions{
		Group: m.d.o.Group, OlderThan: m.d.o.Retention, Progress: m.figures.deleted(), Late: m.late(ctx),
	})
	rows := 0
	for _, p := range pruned {
		rows += p.Rows
	}
	if rows > 0 {
		m.Logger.InfoContext(ctx, "deleted rows that have outlived ROLLBACKD_LOG_RETENTION", "rows", rows, "took",
			time.Since(began).Round(time.Millisecond))
	}
	if err == nil {
		m.figures.late.WithLabelValues().Set(time.Since(began).Seconds()) // what was old then is gone
	}
	if ctx.Err() == nil { // else it was cut short by the end of its term
		m.figures.retention.WithLabelValues(resultOf(err)).Inc()
	}
	return err
}

// late shows how late the rows of one pass go, and says so once an hour while they go ever later.
func (m *Maintenance) late(ctx context.Context) func(by time.Duration) {
	var said time.Time
	var before time.Duration
	return func(by time.Duration) {
		m.figures.late.WithLabelValues().Set(by.Seconds())
		if now := time.Now(); now.Sub(said) >= lateEvery {
			if !said.IsZero() && by > before {
				m.Logger.WarnContext(ctx, "retention does not keep pace: rows outlive ROLLBACKD_LOG_RETENTION faster than "+
					"they are deleted, and consumer_log grows. MySQL needs more processors or a faster disk",
					"late", by.Round(time.Second), "an_hour_ago", before.Round(time.Second))
			}
			said, before = now, by
		}
	}
}

// ofOldest tells of the rows that wait longest, each time; 0: once, when MySQL answers.
func (m *Maintenance) ofOldest(
	ctx context.Context, again time.Duration, tell func(context.Context, map[dedup.Status]dedup.Row),
) {
	for {
		asking, cancel := context.WithTimeout(ctx, askTimeout)
		oldest, err := m.d.o.Records.Oldest(asking, m.d.o.Group)
		cancel()
		next := again
		if err != nil {
			next = retryEvery
		} else if tell(ctx, oldest); again == 0 {
			return
		}
		if wait.For(ctx, next) != nil {
			return
		}
	}
}

// warn says that a letter is older than its identity is remembered for.
func (m *Maintenance) warn(ctx context.Context, oldest map[dedup.Status]dedup.Row) {
	if dead, ok := oldest[dedup.Dead]; ok && dead.Age > m.d.o.Retention {
		m.Logger.WarnContext(ctx, "ROLLBACKD_LOG_RETENTION is shorter than the age of the oldest dead letter: once the "+
			"success row of one of"+
			" its copies is deleted, a copy that comes late takes effect again. Replay or discard the letter, or keep "+
			"rows longer",
			"retention", m.d.o.Retention, "oldest_dead_letter", ageOf(dead), "tag", dead.Tag, "key", dead.Key)
	}
}

// sayOldest tells a person what waits longest, and nothing when nothing waits.
func (m *Maintenance) sayOldest(ctx context.Context, oldest map[dedup.Status]dedup.Row) {
	if level, attrs := oldestLine(oldest, m.Overdue); len(attrs) > 0 {
		m.Logger.LogAttrs(ctx, level, "what waits longest in the consumer log", attrs...)
	}
}

// oldestLine is what is said of these rows; nothing of none. It is a warning when a person is needed: for a letter, or
// for a row whose message should have come back.
func oldestLine(oldest map[dedup.Status]dedup.Row, late time.Duration) (level slog.Level, attrs []slog.Attr) {
	for _, status := range []dedup.Status{dedup.Processing, dedup.Failed, dedup.Dead} {
		row, ok := oldest[status]
		if !ok {
			continue
		}
		about := []any{"age", ageOf(row), "tag", row.Tag, "key", row.Key, "attempts", row.Attempts, "replays", row.Replays}
		if row.PutOff() {
			about = append(about, "remark", row.Remark)
		}
		if status == dedup.Dead {
			about = append(about, "reason", row.Reason)
		}
		if status == dedup.Dead || row.Age > late {
			level = slog.LevelWarn
		}
		attrs = append(attrs, slog.Group(status.String(), about...))
	}
	return level, attrs
}

func ageOf(r dedup.Row) time.Duration { return r.Age.Round(time.Second) }
