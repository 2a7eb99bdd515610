package consumer_test

import (
	"bytes"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
)

// cast publishes one message of every fate: good ones, a flaky one that fails its first attempt, a bad one that fails
// always, and a hopeless one that fails for good.
func (w *world) cast() {
	w.t.Helper()
	w.rejecting("bad", func() error { return errors.New("shelf is locked") })
	w.rejecting("hopeless", func() error { return consumer.Permanent(errors.New("already shipped")) })
	calls := 0 // the first is the first attempt, whether its transaction is shared or not
	w.rejecting("flaky", func() error {
		if calls++; calls <= 1 {
			return errors.New("try again")
		}
		return nil
	})
	w.publish("{}", append(keys("good", 20), "flaky", "bad", "hopeless")...)
}

// castEnded checks that every message of cast met its fate, once.
func (w *world) castEnded() {
	w.t.Helper()
	w.ended(dedup.Success, append(keys("good", 20), "flaky")...)
	w.ended(dedup.Dead, "bad", "hopeless")
	w.quiet()
	w.want("effects", w.effects(), once(append(keys("good", 20), "flaky")...))
	if row := w.row("hopeless"); row.Reason != "permanent" {
		w.t.Errorf("the hopeless one is dead because %q, want permanent", row.Reason)
	}
}

// Given an engine that died at one of its points, when another one comes, then every message ends as it must, and no
// attempt was made too often.
func TestAnEngineThatDiesAnywhereLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	for _, point := range []consumer.Point{
		consumer.PointClaimed, consumer.PointEffect, consumer.PointCommitted, consumer.PointFailed,
		consumer.PointRetryCopy, consumer.PointLetter, consumer.PointDead, consumer.PointAcked,
	} {
		t.Run(string(point), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.cfg.Lease, w.cfg.HandlerTimeout = 3*time.Second, 2*time.Second
			w.cast()
			// given an engine that died at this point
			w.crashAt(point)
			// when another one comes
			w.start()
			// then every message ends as it must, and no attempt was made too often
			w.castEnded()
			if row := w.row("bad"); row.Attempts != w.cfg.MaxAttempts {
				t.Errorf("the bad one had %d attempts, want %d", row.Attempts, w.cfg.MaxAttempts)
			}
			if n := w.dead(); n < 2 || n > 3 {
				t.Errorf("%d letters, want 2, or 3 when the engine died between a letter and its row", n)
			}
		})
	}
}

// Given the answer to the nth COMMIT lost, of the fast path, of claims, failures and successes, of rows that say
// dead, then every attempt and every effect is counted once.
func TestALostAnswerToCommitChangesNothing(t *testing.T) {
	t.Parallel()
	// The commits of cast: those of the fast path; of claims, failures, successes; of rows that say dead.
	for n := 1; n <= 10; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.cast()
			l := w.proxied()
			dropped := l.mysql.DropReply(nthCommit(n))
			r := w.start()
			w.castEnded()
			w.recovered(r)
			select {
			case <-dropped:
			default: // messages that come back at the same time share the commits of one group
				if n <= 8 {
					t.Errorf("there were fewer than %d commits", n)
				}
				t.Logf("fewer than %d commits in this run: no answer was lost", n)
			}
			if row := w.row("bad"); row.Attempts != w.cfg.MaxAttempts || row.Reason != "exhausted" {
				t.Errorf("the bad one is dead after %d attempts because %q, want %d, exhausted", row.Attempts, row.Reason,
					w.cfg.MaxAttempts)
			}
			if n := w.dead(); n != 2 {
				t.Errorf("%d letters, want 2", n)
			}
			// Who met a row of its own that it did not know of may have been counted as its duplicate.
			got := w.outcomes()
			got["applied"] += got["duplicate"]
			delete(got, "duplicate")
			// A slow machine may take the flaky one's first call for a wait for locks, which is no attempt.
			if got["retried"] == 2 {
				got["retried"]++
			}
			w.want("outcomes", got, map[string]int{"applied": 21, "retried": 3, "dead_lettered": 2})
		})
	}
}

// The rows of several letters are inserted in one transaction. When the answer to its COMMIT is lost they are found
// dead, by our own hand: these are letters, not copies of somebody else's.
func TestLettersWhoseCommitAnswerIsLostAreCountedAsLettersOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.oneBatch(5)
	letters := keys("hopeless", 5)
	for _, key := range letters {
		w.rejecting(key, func() error { return consumer.Permanent(errors.New("already shipped")) })
	}
	w.publish("{}", letters...)
	var confirmed atomic.Bool
	w.cfg.Hook = func(p consumer.Point) {
		if p == consumer.PointLetter {
			confirmed.Store(true)
		}
	}
	l := w.proxied()
	dropped := l.mysql.DropReply(func(piece []byte) bool { return confirmed.Load() && bytes.HasSuffix(piece, commit) })

	r := w.start()

	await(t, dropped, "the answer is lost")
	w.ended(dedup.Dead, letters...)
	w.recovered(r)
	w.end(map[string]int{"dead_lettered": 5})
	w.want("letters by reason", w.counts("rollbackd_dead_lettered_total"), map[string]int{"permanent": 5})
	if n := w.dead(); n != 5 {
		t.Errorf("%d letters, want 5", n)
	}
}
