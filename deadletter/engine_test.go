package deadletter_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// engine runs the daemon's engine on the world until the test ends. Its handler refuses everything for good until
// cured.
func (w *world) engine() (cured *atomic.Bool) {
	w.t.Helper()
	cured = new(atomic.Bool)
	w.engineThat(cured)
	return cured
}

// cured runs an engine whose handler refuses nothing from the start.
func (w *world) cured() {
	w.t.Helper()
	cured := new(atomic.Bool)
	cured.Store(true)
	w.engineThat(cured)
}

func (w *world) engineThat(cured *atomic.Bool) {
	w.t.Helper()
	w.exec("CREATE TABLE effect (k VARBINARY(255) NOT NULL) ENGINE=InnoDB")
	handler := consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
		var blamed []consumer.BlamedMessage
		for i, m := range msgs {
			if !cured.Load() {
				blamed = append(blamed, consumer.BlamedMessage{Index: i, Err: consumer.Permanent(errors.New("shelf is locked"))})
			} else if err := tx.WithContext(ctx).Exec("INSERT INTO effect (k) VALUES (?)", m.Key).Error; err != nil {
				return err
			}
		}
		if len(blamed) > 0 {
			return consumer.Blame(blamed...)
		}
		return nil
	})
	db := w.open(w.dsn)
	c, err := consumer.New(consumer.Config{
		Group: group, Exchange: w.topology().Exchange, Queue: w.queue, RoutingKeys: []string{tag}, KeyFrom: keyFrom,
		MaxAttempts: 3, RetryDelays: delays, Lanes: 2, BatchSize: 50, BatchLinger: 2 * time.Millisecond, Prefetch: 100,
		Lease: lease, HandlerTimeout: 4 * time.Second, DrainTimeout: 10 * time.Second,
		AMQPURLs: []string{w.broker.URL}, Logger: slog.New(slog.DiscardHandler),
		MaxDead: consumer.Off, WithoutKeeper: true,
	}, handler, consumer.Options{DB: db})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(w.t.Context()))
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	w.eventually("the engine consumes", func() (string, bool) { // else a replay finds nobody
		s := c.State()
		return fmt.Sprintf("%+v", s), s.Consuming
	})
	w.t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			w.t.Errorf("Run = %v, want a clean drain", err)
		}
	})
}

// effects counts the rows of effect, and the different keys in it.
func (w *world) effects() (all, different int) {
	w.t.Helper()
	if err := w.db.QueryRowContext(w.t.Context(), "SELECT COUNT(*), COUNT(DISTINCT k) FROM effect").Scan(&all,
		&different); err != nil {
		w.t.Fatal(err)
	}
	return all, different
}

func (w *world) wantEffects(n int) {
	w.t.Helper()
	w.eventually("all effects", func() (string, bool) {
		all, different := w.effects()
		return "", all >= n && different >= n
	})
	if all, different := w.effects(); all != n || different != n {
		w.t.Errorf("%d effects on %d keys, want %d on %d", all, different, n, n)
	}
}

func TestALetterThatComesBackIsNotTakenAgain(t *testing.T) {
	w := newWorld(t)
	const n = 500
	w.dead(dedup.ReasonPermanent, names("k", n)...)
	// given a daemon whose handler still refuses everything
	cured := w.engine()
	res := w.replay(all, deadletter.ReplayOptions{})
	if res.Found != n || res.Replayed != n || len(res.Left) != 0 {
		t.Errorf("%+v; want all %d replayed once", res, n)
	}
	// then each came back as a letter, replayed once
	w.wantQueues(0, n)
	w.wantStatus(dedup.Dead, 1, n)
	// when the cause is mended
	cured.Store(true)
	w.replay(all, deadletter.ReplayOptions{})
	w.wantEffects(n)
	w.wantQueues(0, 0)
	w.wantStatus(dedup.Success, 2, n)
}

func (w *world) wantStatus(status dedup.Status, replays, n int) {
	w.t.Helper()
	w.eventually("rows "+status.String(), func() (string, bool) {
		var have int
		err := w.db.QueryRowContext(w.t.Context(), "SELECT COUNT(*) FROM consumer_log WHERE consumer_status = ? AND "+
			"replays = ?", int(status), replays).Scan(&have)
		return "", err == nil && have == n
	})
}

func TestALetterMovedByHandAfterAReplayIsProcessed(t *testing.T) {
	w := newWorld(t)
	w.dead(dedup.ReasonPermanent, "k")
	cured := w.engine()
	w.replay(all, deadletter.ReplayOptions{}) // in vain
	w.wantStatus(dedup.Dead, 1, 1)
	w.wantQueues(0, 1)
	cured.Store(true)
	// when somebody moves the new letter as it is, as a shovel does
	w.shovel()
	w.wantEffects(1)
	w.wantStatus(dedup.Success, 2, 1)
}

// Given hundreds of letters and stale ones among them, when three replays take them at once and two die half-way,
// then every letter has one effect.
func TestEveryLetterHasOneEffectWhateverIsReplayed(t *testing.T) {
	w := newWorld(t)
	const n = 400
	w.dead(dedup.ReasonExhausted, names("k", n)...)
	for _, key := range names("k", 60) { // as crashes between letter and row leave them
		w.letter(key)
	}
	w.cured()
	results := make(chan error, 3)
	for i := range 3 {
		letters := w.letters()
		w.hook = func(p deadletter.Point) error { // the next ones die half-way
			if p == deadletter.PointPublished && i > 0 {
				return errors.New("killed")
			}
			return nil
		}
		go func() {
			_, err := letters.Replay(t.Context(), all, deadletter.ReplayOptions{By: "tester"})
			results <- err
		}()
	}
	for range 3 {
		<-results // that some end early is the point
	}
	w.hook = nil
	w.eventually("an empty dead-letter queue", func() (string, bool) {
		w.replay(all, deadletter.ReplayOptions{})
		return "letters", w.broker.Depth(rabbit.DeadQueue(w.queue)) == 0
	})
	w.wantEffects(n)
}
