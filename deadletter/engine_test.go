package deadletter_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// cured runs an engine whose handler refuses nothing.
func (w *world) cured() { w.T.Helper(); w.engineThat(true) }

// engine runs one whose handler refuses everything for good until cured.
func (w *world) engine() (cured *atomic.Bool) { w.T.Helper(); return w.engineThat(false) }

func (w *world) engineThat(accepts bool) (cured *atomic.Bool) {
	w.T.Helper()
	cured = new(atomic.Bool)
	cured.Store(accepts)
	w.Exec("CREATE TABLE effect (k VARBINARY(255) NOT NULL) ENGINE=InnoDB")
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
	w.Consume(handler)
	return cured
}

// effects counts the rows of effect, and the different keys in it.
func (w *world) effects() (all, different int) {
	w.T.Helper()
	return w.Number("SELECT COUNT(*) FROM effect"), w.Number("SELECT COUNT(DISTINCT k) FROM effect")
}

func (w *world) wantEffects(n int) {
	w.T.Helper()
	w.Eventually("all effects", func() (string, bool) {
		all, different := w.effects()
		return "", all >= n && different >= n
	})
	if all, different := w.effects(); all != n || different != n {
		w.T.Errorf("%d effects on %d keys, want %d on %d", all, different, n, n)
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
	w.WantQueues(0, n)
	w.wantStatus(dedup.Dead, 1, n)
	// when the cause is mended
	cured.Store(true)
	w.replay(all, deadletter.ReplayOptions{})
	w.wantEffects(n)
	w.WantQueues(0, 0)
	w.wantStatus(dedup.Success, 2, n)
}

func (w *world) wantStatus(status dedup.Status, replays, n int) {
	w.T.Helper()
	w.Eventually("rows "+status.String(), func() (string, bool) {
		have := w.Number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = ? AND replays = ?", int(status), replays)
		return fmt.Sprint(have), have == n
	})
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
	w.Eventually("an empty dead-letter queue", func() (string, bool) {
		w.replay(all, deadletter.ReplayOptions{})
		return "letters", w.Broker.Depth(rabbit.DeadQueue(w.Queue)) == 0
	})
	w.wantEffects(n)
}
