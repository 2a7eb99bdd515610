package consumer_test

import (
	"errors"
	"testing"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wire"
)

func TestALetterMovedByHandIsNotSwallowedByACopyInItsBatch(t *testing.T) {
	t.Parallel()
	for name, queue := range map[string]func(string) string{
		"main queue": func(q string) string { return q },
		"backstop":   rabbit.BackstopQueue,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			letter := w.diedOnce("key")
			// given a plain re-send, and behind it the letter that somebody moved back
			w.publishInto(queue(w.cfg.Queue), "key")
			w.broker.Publish("", queue(w.cfg.Queue), stack.Message{
				MessageId: letter.MessageId, Type: letter.Type, Headers: letter.Headers, Body: letter.Body, DeliveryMode: 2,
			})
			w.start()
			w.settled(3)
			w.quiet()
			// then the message is applied, or its letter is still there
			if row, letters := w.row("key"), w.dead(); row.Status == dedup.Dead && letters == 0 {
				t.Errorf("LOST: the row is %v and there is no letter; outcomes %v", row.Status, w.outcomes())
			}
		})
	}
}

// Given a dead message whose replay the database has lost in a failover, so that its row says dead, its letter is gone,
// and its copy is in a queue, when the copy comes, also behind a plain re-send, then the message is applied, or its
// letter is back.
func TestACopyOfALostReplayIsNotSwallowed(t *testing.T) {
	t.Parallel()
	for name, queue := range map[string]func(string) string{
		"main queue": func(q string) string { return q },
		"backstop":   rabbit.BackstopQueue,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			letter := w.diedOnce("key")
			w.publishInto(queue(w.cfg.Queue), "key")
			headers := map[string]any{wire.HeaderReplays: int64(1)}
			w.broker.Publish("", queue(w.cfg.Queue), stack.Message{
				MessageId: letter.MessageId, Type: letter.Type, Headers: headers, Body: letter.Body, DeliveryMode: 2,
			})
			w.start()
			w.settled(3)
			w.quiet()
			row, letters := w.row("key"), w.dead()
			if row.Status == dedup.Dead && letters == 0 {
				t.Errorf("LOST: the row is %v and there is no letter; outcomes %v", row.Status, w.outcomes())
			}
			if name == "main queue" && (row.Status != dedup.Success || row.Replays != 1) {
				t.Errorf("the row is %v after %d replays, want it applied after one", row.Status, row.Replays)
			}
		})
	}
}

// diedOnce makes a dead message of a key that is applied whenever it is tried again, takes its letter off the
// dead-letter queue and returns it.
func (w *world) diedOnce(key string) stack.Delivery {
	w.t.Helper()
	w.oneBatch(2)
	dead := true
	w.rejecting(key, func() error {
		if dead {
			return consumer.Permanent(errors.New("already shipped"))
		}
		return nil
	})
	w.publish("{}", key)
	r := w.launch()
	w.ended(dedup.Dead, key)
	w.quiet()
	if err := r.drained(); err != nil {
		w.t.Fatal(err)
	}
	letter := w.letter()
	dead = false
	return letter
}

func TestAnInsertThatMeetsNobodysRowIsTroubleAndNotALoop(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	// given a trigger that makes every insert into the log fail with a duplicate that is not the log's
	w.exec("CREATE TABLE other (id INT PRIMARY KEY) ENGINE=InnoDB")
	w.exec("INSERT INTO other VALUES (1)")
	if _, err := w.db.ExecContext(t.Context(), "CREATE TRIGGER other_first BEFORE INSERT ON consumer_log FOR EACH ROW "+
		"INSERT INTO other VALUES (1)"); err != nil {
		t.Skipf("this server lets nobody make triggers: %v", err)
	}
	w.publish("{}", "key")
	r := w.start()
	// then the engine says that it waits for MySQL
	w.paused(r, consumer.DependencyMySQL)
	if got := w.effects(); len(got) != 0 {
		t.Errorf("effects %v, want none", got)
	}
	// and goes on when that is mended
	w.exec("DROP TRIGGER other_first")
	w.recovered(r)
	w.settled(1)
	w.want("effects", w.effects(), once("key"))
}
