// Package maintenance does what one process of a group is enough for: it deletes rows that have outlived their
// retention, replays letters by itself, notifies of new ones, and says once an hour what waits longest; and in every
// process it shows what metrics say of the consumer log. It touches no message: whatever the engine needs to keep its
// promise may not live here.
package maintenance

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// Options say what is kept and for how long.
type Options struct {
	// Records is the consumer log, on a pool of the keeper's own, so that it never takes a connection from a lane: of
	// [Connections], with the shortest wait for locks, so that it gives way to messages.
	Records *dedup.Log
	Letters *deadletter.Letters
	Group   string
	// Retention is how long success and discarded rows are kept; 0: for ever.
	Retention time.Duration
	// Compensate must have its Record.
	Compensate deadletter.CompensateOptions
	// Clean deletes what persons did long ago, and locks that are over, and says how much; nil: nobody does.
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
	Options

	figures *figures
}

const (
	// Connections is how many a keeper's pool should have: a replay writes with eight; and there are the election, the
	// cleaner, the notifier, the gauges.
	Connections = 12

	pruneFirst  = 5 * time.Second  // after the election
	pruneEvery  = 10 * time.Minute // between two passes
	oldestEvery = time.Hour
	retryEvery  = 10 * time.Second // while MySQL is away, which the engine says
	askTimeout  = 5 * time.Second  // for a figure

	figuresEvery = 15 * time.Second // as often as a scrape
)

// New makes a keeper and registers its gauges.
func New(o Options, reg prometheus.Registerer) (*Maintenance, error) {
	r := &registry{Registerer: reg}
	m := &Maintenance{Options: o, figures: newFigures(o, r)}
	m.Compensate = m.figures.compensation(o.Compensate)
	return m, r.err
}

// Run stands for election until ctx ends.
func (m *Maintenance) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { m.look(ctx) })
	if m.Retention > 0 {
		wg.Go(func() { m.ofOldest(ctx, 0, m.warn) })
	}
	m.Records.Campaign(ctx, m.Group, m.Logger, m.lead)
	wg.Wait()
}

// look keeps the figures of the log until ctx ends.
func (m *Maintenance) look(ctx context.Context) {
	tick := time.NewTicker(figuresEvery)
	defer tick.Stop()
	for {
		if err := m.figures.look(ctx, m.Options); err != nil && ctx.Err() == nil {
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
	var wg sync.WaitGroup
	if m.Retention > 0 {
		wg.Go(func() { m.every(ctx, "old rows of the consumer log could not be deleted", m.prune) })
	}
	if m.Clean != nil {
		wg.Go(func() {
			m.every(ctx, "old acts of persons, or locks that are over, could not be deleted", func(ctx context.Context) error {
				_, err := m.Records.Clocks(ctx)
				if err == nil {
					_, err = m.Clean(ctx)
				}
				return err
			})
		})
	}
	wg.Go(func() { m.ofOldest(ctx, oldestEvery, m.sayOldest) })
	wg.Go(func() {
		if err := m.Letters.Compensate(ctx, m.Compensate); err != nil {
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

// prune deletes the rows that are old.
func (m *Maintenance) prune(ctx context.Context) error {
	began := time.Now()
	pruned, err := m.Records.Prune(ctx, dedup.PruneOptions{
		Group: m.Group, OlderThan: m.Retention, Progress: m.figures.deleted(),
	})
	rows := 0
	for _, p := range pruned {
		rows += p.Rows
	}
	if rows > 0 {
		m.Logger.InfoContext(ctx, "deleted rows that have outlived ROLLBACKD_LOG_RETENTION", "rows", rows, "took",
			time.Since(began).Round(time.Millisecond))
	}
	if ctx.Err() == nil { // else it was cut short by the end of its term
		m.figures.retention.WithLabelValues(resultOf(err)).Inc()
	}
	return err
}

// ofOldest tells of the rows that wait longest, each time; 0: once, when MySQL answers.
func (m *Maintenance) ofOldest(
	ctx context.Context, again time.Duration, tell func(context.Context, map[dedup.Status]dedup.Row),
) {
	for {
		asking, cancel := context.WithTimeout(ctx, askTimeout)
		oldest, err := m.Records.Oldest(asking, m.Group)
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
	if dead, ok := oldest[dedup.Dead]; ok && dead.Age > m.Retention {
		m.Logger.WarnContext(ctx, "ROLLBACKD_LOG_RETENTION is shorter than the age of the oldest dead letter: once the "+
			"success row of one of"+
			" its copies is deleted, a copy that comes late takes effect again. Replay or discard the letter, or keep "+
			"rows longer",
			"retention", m.Retention, "oldest_dead_letter", ageOf(dead), "tag", dead.Tag, "key", dead.Key)
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
