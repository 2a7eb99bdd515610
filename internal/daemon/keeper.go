package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// keeper does what one daemon of a fleet is enough for: it deletes rows that have outlived LOG_RETENTION, replays letters
// by itself, tells the webhook of new ones, and says once an hour what waits longest. Daemons elect the one that does, see
// [dedup.Log.Lead]; for a few seconds two may do, which is harmless: rows are deleted and reopened by statements that
// compare what was read, and a webhook is told at least once anyway.
//
// It has a pool of its own, so that it never takes a connection from a lane, with the shortest wait for locks, so that it
// gives way to messages.
type keeper struct {
	cfg     config.Config
	log     *slog.Logger
	records *dedup.Log
	letters *deadletter.Letters
	webhook *deadletter.Webhook // nil: none
	settle  time.Duration
}

const (
	keeperLockWait    = time.Second // the shortest that MySQL knows
	keeperTimeout     = 10 * time.Second
	keeperConnections = 12 // a replay writes with eight; and the election, the cleaner, the teller

	pruneFirst  = 5 * time.Second  // after the election
	pruneEvery  = 10 * time.Minute // between two passes
	oldestEvery = time.Hour
	retryEvery  = 10 * time.Second // while MySQL is away, which the engine says
)

// newKeeper makes a keeper; its pool joins the daemon's closers.
func (d *Daemon) newKeeper(ctx context.Context) (*keeper, error) {
	cfg := d.cfg
	name := rabbit.ConnectionName("keeper")
	db, _, err := dedup.Open(ctx, cfg.MySQLDSN, dedup.OpenOptions{ // New has shown its warnings
		Program: name, MaxOpen: keeperConnections, LockWait: keeperLockWait, ReadTimeout: keeperTimeout, WriteTimeout: keeperTimeout,
	})
	if err != nil {
		return nil, fmt.Errorf("ROLLBACKD_MYSQL_DSN: %w", err)
	}
	pool, err := db.DB()
	if err != nil {
		return nil, fmt.Errorf("database handle: %w", err)
	}
	d.closers = append(d.closers, pool)
	k := &keeper{cfg: cfg, log: d.log}
	if k.records, err = dedup.NewLog(db, logOptions(cfg)); err != nil {
		return nil, err
	}
	k.letters, err = deadletter.New(deadletter.Options{
		Records: k.records, AMQPURLs: cfg.AMQPURLs, Name: name,
		Group: cfg.Group, Queue: cfg.Queue, KeyFrom: cfg.KeyFrom, Retention: cfg.LogRetention, MaxReplays: cfg.MaxReplays,
	})
	if err != nil {
		return nil, err
	}
	// A letter's transaction is an update, an event and a COMMIT, each of which may take as long as the engine waits for an answer.
	k.settle = 3 * statementTimeout(cfg)
	if cfg.DeadLetterWebhook != "" {
		k.webhook, err = deadletter.NewWebhook(deadletter.WebhookOptions{URL: cfg.DeadLetterWebhook, Secret: cfg.DeadLetterWebhookSecret})
	}
	return k, err
}

// run stands for election until ctx ends.
func (k *keeper) run(ctx context.Context) {
	if k.webhook != nil {
		defer k.webhook.Close()
	}
	var wg sync.WaitGroup
	wg.Go(func() { k.warn(ctx) })
	k.records.Lead(ctx, k.cfg.Group, k.log, k.duty)
	wg.Wait()
}

// duty is what the elected daemon does until ctx ends.
func (k *keeper) duty(ctx context.Context) {
	var wg sync.WaitGroup
	if k.cfg.LogRetention > 0 {
		wg.Go(func() { k.prune(ctx) })
	}
	wg.Go(func() { k.sayOldest(ctx) })
	wg.Go(func() { k.compensate(ctx) })
	wg.Wait()
}

// warn says once, when MySQL answers, that a letter is older than its identity is remembered for.
func (k *keeper) warn(ctx context.Context) {
	if k.cfg.LogRetention == 0 {
		return
	}
	for {
		oldest, err := k.oldest(ctx)
		if err == nil {
			if dead, ok := oldest[dedup.Dead]; ok && dead.Age > k.cfg.LogRetention {
				k.log.WarnContext(ctx, "ROLLBACKD_LOG_RETENTION is shorter than the age of the oldest dead letter: once the success row of one of"+
					" its copies is deleted, a copy that comes late takes effect again. Replay or discard the letter, or keep rows longer",
					"retention", k.cfg.LogRetention, "oldest_dead_letter", ageOf(dead), "tag", dead.Tag, "key", dead.Name)
			}
			return
		}
		if !rest(ctx, retryEvery) {
			return
		}
	}
}

// prune deletes what is old, pass by pass.
func (k *keeper) prune(ctx context.Context) {
	for wait := pruneFirst; rest(ctx, wait/2+rand.N(wait)); wait = pruneEvery {
		began := time.Now()
		pruned, err := k.records.Prune(ctx, dedup.PruneOptions{Group: k.cfg.Group, OlderThan: k.cfg.LogRetention})
		rows := 0
		for _, p := range pruned {
			rows += p.Rows
		}
		if rows > 0 {
			k.log.InfoContext(ctx, "deleted rows that have outlived ROLLBACKD_LOG_RETENTION", "rows", rows, "took", time.Since(began).Round(time.Millisecond))
		}
		if err != nil && ctx.Err() == nil {
			k.log.WarnContext(ctx, "old rows of the consumer log could not be deleted", "err", err, "next_try_in", pruneEvery)
		}
	}
}

// compensate replays letters and tells of new ones.
func (k *keeper) compensate(ctx context.Context) {
	o := deadletter.CompensateOptions{After: k.cfg.CompensateAfter, Settle: k.settle, Logger: k.log}
	if k.webhook != nil {
		o.Tell = k.webhook
	}
	// Half of what trips the brake, so that compensation alone never does.
	if brake := k.cfg.MaxDeadRate; brake.Count > 0 {
		o.Limit, o.Per = max(1, brake.Count/2), brake.Per
	}
	if err := k.letters.Compensate(ctx, o); err != nil {
		k.log.ErrorContext(ctx, "compensation", "err", err)
	}
}

// sayOldest tells a person once an hour what waits longest, and nothing when nothing waits.
func (k *keeper) sayOldest(ctx context.Context) {
	for {
		wait := oldestEvery
		if oldest, err := k.oldest(ctx); err != nil {
			wait = retryEvery
		} else if level, attrs := oldestLine(oldest, k.late()); len(attrs) > 0 {
			k.log.LogAttrs(ctx, level, "what waits longest in the consumer log", attrs...)
		}
		if !rest(ctx, wait) {
			return
		}
	}
}

func (k *keeper) oldest(ctx context.Context) (map[dedup.Status]dedup.Row, error) {
	ctx, cancel := context.WithTimeout(ctx, gaugesTimeout)
	defer cancel()
	return k.records.Oldest(ctx, k.cfg.Group)
}

// overdueAfter is how long past the end of its lease, or past its due time, a row may stand before it is worth a warning.
const overdueAfter = time.Minute

// late is the age at which an open row of this configuration is overdue.
func (k *keeper) late() time.Duration {
	return max(k.cfg.Lease, slices.Max(k.cfg.RetryDelays)) + overdueAfter
}

// oldestLine is what is said of these rows; nothing of none. It is a warning when a person is needed: for a letter, or for
// a row whose message should have come back.
func oldestLine(oldest map[dedup.Status]dedup.Row, late time.Duration) (level slog.Level, attrs []slog.Attr) {
	for _, status := range []dedup.Status{dedup.Processing, dedup.Failed, dedup.Dead} {
		row, ok := oldest[status]
		if !ok {
			continue
		}
		about := []any{"age", ageOf(row), "tag", row.Tag, "key", row.Name, "attempts", row.Attempts, "replays", row.Replays}
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

// rest waits; false when ctx ended first.
func rest(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
