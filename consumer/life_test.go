package consumer_test

import (
	"errors"
	"testing"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

func TestEveryMessageTakesEffectOnceAndIsAcked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	// given 200 messages, each published twice
	all := keys("order", 200)
	w.publish("{}", all...)
	w.publish("{}", all...)
	// when an engine runs
	w.start()
	w.settled(400)
	w.quiet()
	// then each took effect once, has a success row, and the copies were counted
	w.want("effects", w.effects(), once(all...))
	if got := w.row(all[7]); got.Status != dedup.Success || got.Attempts != 1 {
		t.Errorf("row = %v after %d attempts, want success after 1", got.Status, got.Attempts)
	}
	got := w.outcomes()
	delete(got, "in_progress") // copies that met the first at work in the other lane came back later
	w.want("outcomes", got, map[string]int{"applied": 200, "duplicate": 200})
}

func TestAFailingMessageGetsItsAttemptsAndThenALetter(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.rejecting("bad", func() error { return errors.New("shelf is locked") })
	w.publish("{}", "good", "bad")
	w.start()
	w.settled(4)
	w.eventually("the letter", func() bool { return w.broker.Depth(rabbit.DeadQueue(w.cfg.Queue)) == 1 })
	w.want("effects", w.effects(), once("good"))
	row := w.row("bad")
	if row.Status != dedup.Dead || row.Attempts != 3 || row.Reason != "exhausted" || row.Remark != "shelf is locked" {
		t.Errorf("row = %v, %d attempts, reason %q, remark %q; want dead, 3, exhausted, shelf is locked", row.Status,
			row.Attempts, row.Reason, row.Remark)
	}
	w.end(map[string]int{"applied": 1, "retried": 2, "dead_lettered": 1})
}

func TestAPermanentErrorMakesALetterAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.rejecting("bad", func() error { return consumer.Permanent(errors.New("already shipped")) })
	w.publish("{}", append(keys("order", 20), "bad")...)
	w.start()
	w.settled(21)
	w.want("effects", w.effects(), once(keys("order", 20)...))
	if row := w.row("bad"); row.Status != dedup.Dead || row.Reason != "permanent" {
		t.Errorf("row = %v, reason %q, want dead, permanent", row.Status, row.Reason)
	}
}

func TestAnotherBodyUnderATakenKeyIsAConflict(t *testing.T) {
	t.Parallel()
	for name, together := range map[string]bool{"in the same batch": true, "after the row is committed": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.cfg.Lanes = 1 // in two, the second copy may meet the first one's lock and come back later
			w.publish(`{"a":1}`, "key")
			if !together {
				w.start()
				w.eventually("the first is applied", func() bool { return w.row("key").Status == dedup.Success })
			}
			w.publish(`{"a":2}`, "key")
			w.publish(`{"a":2}`, "key")
			if together {
				w.start()
			}
			w.settled(3)
			w.want("effects", w.effects(), once("key"))
			w.end(map[string]int{"applied": 1, "dead_lettered": 1, "duplicate_of_dead": 1})
			letter, ok := w.broker.Get(rabbit.DeadQueue(w.cfg.Queue))
			if !ok || letter.Headers["x-rollbackd-reason"] != "conflict" || string(letter.Body) != `{"a":2}` {
				t.Errorf("letter = %v %s, want the second body with reason conflict", letter.Headers, letter.Body)
			}
		})
	}
}
