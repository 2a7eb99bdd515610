package operator

import (
	"context"
	"errors"
	"fmt"
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
	for {
		if err := m.figures.look(ctx, m.d.o.Records, m.Clocks); err != nil && ctx.Err() == nil {
			m.Logger.DebugContext(ctx, "figures of the consumer log", "err", err) // the engine says so if MySQL is away
		}
		if wait.For(ctx, figuresEvery) != nil {
			return
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
			"success row of one of its copies is deleted, a copy that comes late takes effect again. Replay or discard the "+
			"letter, or keep rows longer", "retention", m.d.o.Retention, "oldest_dead_letter", ageOf(dead), "tag", dead.Tag,
			"key", dead.Key)
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

// The results of what a keeper does.
const (
	done   = "done"
	failed = "failed"
	vain   = "vain" // a letter was due, and none could be moved
)

func resultOf(err error) string {
	if err != nil {
		return failed
	}
	return done
}

// registry makes figures and collects what is wrong with them. They get the label group, because the processes of a
// group elect one; several keepers of one group in a process share them.
type registry struct {
	prometheus.Registerer

	err error
}

// Shared registers c, or gives what another consumer of this process has registered before in its place.
func Shared[C prometheus.Collector](reg prometheus.Registerer, c C) (C, error) {
	err := reg.Register(c)
	if before, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if same, ok := before.ExistingCollector.(C); ok {
			return same, nil
		}
	}
	return c, err
}

// gauge has no figure until it is set.
func (r *registry) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	g, err := Shared(r.Registerer, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels))
	r.err = errors.Join(r.err, err)
	return g
}

// counter begins with 0 for each result, so that a rate over what never happened is 0; without results it is one
// number. What the settings switch off has no figures: an alert on something that never runs would else be silent, or
// never be.
func (r *registry) counter(on bool, name, help string, results ...string) *prometheus.CounterVec {
	labels := []string{"result"}[:min(1, len(results))]
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	if on {
		var err error
		c, err = Shared(r.Registerer, c)
		r.err = errors.Join(r.err, err)
	}
	for _, result := range results {
		c.WithLabelValues(result)
	}
	if len(results) == 0 {
		c.WithLabelValues()
	}
	return c
}

// figures are what the elected process does for all, and what metrics say of the consumer log as a whole. Of the log,
// every process of a fleet shows the same: take the maximum, not the sum. Until the first look there is nothing of it,
// because nobody knows it: 0 would say that nothing is dead. While MySQL is away its figures keep their last values;
// rollbackd_dependency_up says that it is.
type figures struct {
	leader                                                        *prometheus.GaugeVec
	retention, rows, compensated, letters, notified, notifiedOnes *prometheus.CounterVec
	late, dead, oldestDead, oldestOpen                            *prometheus.GaugeVec
}

func newFigures(retention time.Duration, o deadletter.CompensateOptions, reg *registry) *figures {
	prunes, compensates, notifies := retention > 0, o.After > 0, o.Notifier != nil
	f := &figures{
		leader: reg.gauge("rollbackd_leader",
			"1 while this process is elected for retention, compensation and notifying."),
		retention: reg.counter(prunes, "rollbackd_retention_runs_total",
			"Passes over the log that delete what has outlived its retention.", done, failed),
		rows: reg.counter(prunes, "rollbackd_retention_deleted_rows_total", "Rows that had outlived their retention."),
		late: reg.gauge("rollbackd_retention_late_seconds",
			"How long ago the rows that are deleted now have outlived their retention; only of the elected process."),
		compensated: reg.counter(compensates, "rollbackd_compensation_runs_total",
			"Runs that replay dead letters by themselves, when one was due.", done, vain, failed),
		letters: reg.counter(compensates, "rollbackd_compensation_letters_total",
			"Dead letters that such runs replayed, or found parked.", "replayed", "parked"),
		notified: reg.counter(notifies, "rollbackd_notifications_total",
			"Calls of the webhook, or of another notifier of dead letters.", done, failed),
		notifiedOnes: reg.counter(notifies, "rollbackd_notified_letters_total",
			"Dead letters that somebody was notified of."),
		dead: reg.gauge("rollbackd_dead_letters", "Messages that are dead-lettered now, 100,000 at most."),
		oldestDead: reg.gauge("rollbackd_oldest_dead_letter_seconds",
			"Age of the oldest dead letter; 0 when there is none."),
		oldestOpen: reg.gauge("rollbackd_oldest_open_seconds",
			"Age of the oldest row that is neither applied nor dead, by status; 0 when there is none.", "status"),
	}
	f.leader.WithLabelValues() // 0, unless another keeper of this process is elected
	return f
}

// deleted counts the rows of one pass.
func (f *figures) deleted() func(rows int) {
	before := 0
	return func(rows int) {
		f.rows.WithLabelValues().Add(float64(rows - before))
		before = rows
	}
}

// compensation counts a replay of letters by themselves.
func (f *figures) compensation(ctx context.Context, res deadletter.Result, err error) {
	result := resultOf(err)
	switch {
	case err == nil && res.Replayed+res.Parked == 0:
		result = vain
	case err != nil && ctx.Err() != nil: // it was cut short by the end of its term
		return
	}
	f.compensated.WithLabelValues(result).Inc()
	f.letters.WithLabelValues("replayed").Add(float64(res.Replayed))
	f.letters.WithLabelValues("parked").Add(float64(res.Parked))
}

// countedNotifier counts what becomes of notifying.
type countedNotifier struct {
	deadletter.Notifier

	figures *figures
}

// Notify hands the letters over.
func (n *countedNotifier) Notify(ctx context.Context, letters []deadletter.Letter) (err error) {
	err = errors.New("it panics")
	defer func() { n.figures.notified.WithLabelValues(resultOf(err)).Inc() }()
	if err = n.Notifier.Notify(ctx, letters); err == nil {
		n.figures.notifiedOnes.WithLabelValues().Add(float64(len(letters)))
	}
	return err
}

// look shows what the log has.
func (f *figures) look(ctx context.Context, records *dedup.Log, clocks func(context.Context, error)) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	_, err := records.Clocks(ctx)
	if err != nil && !errors.Is(err, dedup.ErrClocks) {
		return err
	}
	clocks(ctx, err)
	ages, err := records.OldestOpen(ctx)
	if err != nil {
		return err
	}
	dead, err := records.CountDead(ctx)
	if err != nil {
		return err
	}
	for _, status := range []dedup.Status{dedup.Processing, dedup.Failed} {
		f.oldestOpen.WithLabelValues(status.String()).Set(ages[status].Seconds()) // without a row it has no age: 0
	}
	f.oldestDead.WithLabelValues().Set(ages[dedup.Dead].Seconds())
	f.dead.WithLabelValues().Set(float64(dead))
	return nil
}

// ActsKept is how long acts are kept from their beginning; those that go on are kept in any case.
const ActsKept = 90 * 24 * time.Hour

// cleanSome bounds the rows of one statement.
const cleanSome = 1000

// Clean deletes acts that began ActsKept ago and have ended, requests that were made, or whose tokens were issued,
// OnceKept ago, and the log's minutes that are older than [dedup.MinutesKept]. One process of a fleet is enough, see
// [dedup.Log.Campaign]; two at once do no harm.
func (d *Operator) Clean(ctx context.Context) (deleted int, err error) {
	for _, s := range []struct {
		text string
		args []any
	}{
		{"DELETE FROM " + d.once + " WHERE created_at < UTC_TIMESTAMP(6) - INTERVAL ? SECOND AND group_name = ? LIMIT ?",
			[]any{int(OnceKept.Seconds()), []byte(d.o.Group), cleanSome}},
		{"DELETE FROM " + d.acts + " WHERE group_name = ? AND queue = ? AND work IN (0, 2, 3) AND created_at < " +
			"UTC_TIMESTAMP(6) - INTERVAL ? SECOND LIMIT ?",
			[]any{[]byte(d.o.Group), []byte(d.o.Queue), int(ActsKept.Seconds()), cleanSome}},
		{"DELETE FROM " + d.o.Records.MinuteTable() + " WHERE minute < TIMESTAMPDIFF(MINUTE, '1970-01-01', " +
			"UTC_TIMESTAMP() - INTERVAL ? SECOND) LIMIT ?", []any{int(dedup.MinutesKept.Seconds()), cleanSome}},
	} {
		for {
			n, err := d.exec(ctx, s.text, s.args...)
			if err != nil {
				return deleted, fmt.Errorf("delete what persons did, and daemons counted, long ago: %w", err)
			}
			if deleted += int(n); n < cleanSome {
				break
			}
		}
	}
	return deleted, nil
}
