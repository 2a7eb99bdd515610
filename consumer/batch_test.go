package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

func TestTheGuiltyLeaveTheBatchAndInnocentsPayNothing(t *testing.T) {
	t.Parallel()
	guilty := []string{"order-0003", "order-0017"}
	for name, handler := range map[string]func(*world) consumer.HandlerFunc{
		"blamed": func(w *world) consumer.HandlerFunc { return w.handle },
		"not blamed, so the batch is halved": func(w *world) consumer.HandlerFunc {
			return func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
				err := w.handle(ctx, tx, msgs)
				if blame, ok := errors.AsType[*consumer.BlameError](err); ok {
					return blame.Messages[0].Err
				}
				return err
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.oneBatch(40)
			w.handler = handler(w)
			for _, k := range guilty {
				w.rejecting(k, func() error { return errors.New("shelf is locked") })
			}
			// given a batch of 40 with two that fail always
			all := keys("order", 40)
			w.publish("{}", all...)
			w.start()
			// then the innocent are applied by the fast path, which writes no story, and the guilty get their attempts
			w.ended(dedup.Dead, guilty...)
			innocent := slices.DeleteFunc(slices.Clone(all), func(k string) bool { return slices.Contains(guilty, k) })
			w.ended(dedup.Success, innocent...)
			w.want("effects", w.effects(), once(innocent...))
			w.end(map[string]int{"applied": 38, "retried": 4, "dead_lettered": 2})
			for _, k := range innocent {
				if events := w.events(k); len(events) != 0 {
					t.Errorf("%s has the story %v, want none: it was never claimed", k, events)
				}
			}
			for _, k := range guilty {
				if row := w.row(k); row.Attempts != 3 {
					t.Errorf("%s had %d attempts, want 3", k, row.Attempts)
				}
			}
		})
	}
}

// Given copies of one failing message in a batch, then all share one attempt and one retry copy.
func TestCopiesInABatchShareTheirLeadersFate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.oneBatch(8)
	w.rejecting("bad", func() error { return errors.New("shelf is locked") })
	w.publish("{}", "good", "bad", "good", "bad", "bad", "good", "bad", "bad")
	w.start()
	w.ended(dedup.Dead, "bad")
	w.quiet()
	// The first batch has all five copies of the bad one: one attempt, one retry copy. So it is one message from then on.
	w.end(map[string]int{"applied": 1, "duplicate": 2, "retried": 2, "in_progress": 4, "dead_lettered": 1})
	w.want("publishes", w.counts("rollbackd_publishes_total"), map[string]int{"retry": 2, "letter": 1})
	if n := w.dead(); n != 1 {
		t.Errorf("%d letters, want 1", n)
	}
}

func TestFiveCopiesAtOnceGetTheAttemptsOfOneMessage(t *testing.T) {
	t.Parallel()
	for name, redis := range map[string]bool{"with the lock": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.cfg.Lanes, w.cfg.BatchSize, w.cfg.BatchLinger = 5, 1, 0 // no two copies in one batch
			if !redis {
				w.redisURL = ""
			}
			w.rejecting("bad", func() error { return errors.New("shelf is locked") })
			w.publish("{}", "bad", "bad", "bad", "bad", "bad")
			w.start()
			w.ended(dedup.Dead, "bad")
			w.quiet()
			events := w.events("bad")
			var failures []dedup.Event
			for _, e := range events {
				// a claim that was given back, without an attempt, has no error
				if e.From != dedup.Failed && e.To == dedup.Failed && e.Error != "" {
					failures = append(failures, e)
				}
			}
			if len(failures) != 3 {
				t.Fatalf("%d attempts failed, want 3: %v", len(failures), events)
			}
			for i, least := range w.cfg.RetryDelays {
				// Less the tenth that a copy may be early, and what passes between a row's time and its event's, which on a
				// loaded machine was a third of the delay.
				if gap := failures[i+1].At.Sub(failures[i].At); gap < least/2 {
					t.Errorf("attempt %d came %v after the one before, want about %v", i+2, gap, least)
				}
			}
			if got := w.outcomes(); got["retried"] != 2 || got["applied"] != 0 {
				t.Errorf("outcomes %v, want 2 retried", got)
			}
		})
	}
}

func TestKeysThatDifferInOneByteAreDifferentMessages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.oneBatch(7)
	alike := []string{"key", "KEY", "kéy", "key ", "ke\u0301y", "key\U0001F600", "key\U0001F601"}
	w.publish("{}", alike...)
	w.start()
	w.ended(dedup.Success, alike...)
	w.want("effects", w.effects(), once(alike...))
	w.end(map[string]int{"applied": len(alike)})
}

func TestTwoOtherBodiesInOneBatchAreTwoConflicts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.oneBatch(5)
	for _, body := range []string{"a", "b", "c", "a", "b"} {
		w.publish(body, "key")
	}
	w.start()
	w.settled(5)
	w.quiet()
	w.want("effects", w.effects(), once("key"))
	w.end(map[string]int{"applied": 1, "duplicate": 1, "dead_lettered": 2, "duplicate_of_dead": 1})
	w.want("letters", w.counts("rollbackd_dead_lettered_total"), map[string]int{"conflict": 2})
}

// refuser is a Handler that is a Validator too.
type refuser struct {
	consumer.Handler
	validate func(*consumer.Message) error
}

func (r refuser) Validate(m *consumer.Message) error { return r.validate(m) }

func TestWhatNobodyCanReadIsDeadLetteredAtOnceAndHasARow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.handler = refuser{w.handler, func(m *consumer.Message) error {
		switch string(m.Body) {
		case "refused":
			return errors.New("no order in it")
		case "panics":
			panic("validator broke")
		}
		return nil
	}}
	w.publish("refused", "refused")
	w.publish("panics", "panics")
	w.publish(strings.Repeat("x", consumer.MaxBody+1), "large")
	w.publish(strings.Repeat("y", consumer.MaxBody), "largest")
	w.publishMessages(rabbit.Message{MessageID: "a\x01b", Body: []byte("{}")})
	w.start()
	w.settled(5)
	w.ended(dedup.Dead, "refused", "panics", "large")
	w.ended(dedup.Success, "largest")
	w.want("letters", w.counts("rollbackd_dead_lettered_total"), map[string]int{"malformed": 3, "unidentified": 1})
	for key, remark := range map[string]string{
		"refused": "no order in it", "panics": "validation panicked: validator broke", "large": "over the limit",
	} {
		row := w.row(key)
		if row.Reason != "malformed" || !strings.Contains(row.Remark, remark) || row.Attempts != 0 {
			t.Errorf("%s: reason %q, remark %q, %d attempts; want malformed, %q, none", key, row.Reason, row.Remark,
				row.Attempts, remark)
		}
		kept, err := w.records.Read(t.Context(), dedup.Identity{Group: group, Tag: tag, Key: key})
		if err != nil || len(kept.Body) == 0 || len(kept.Properties) == 0 {
			t.Errorf("%s: the row keeps %d bytes of body and %d of properties (%v), want both", key, len(kept.Body),
				len(kept.Properties), err)
		}
	}
	if n := w.number("SELECT COUNT(*) FROM consumer_log WHERE msg_tag = 'rollbackd.unidentified' AND " +
		"consumer_status = 3"); n != 1 {
		t.Errorf("%d rows of unidentified messages, want 1", n)
	}
}

func TestAThousandMalformedMessagesAreRecordedTogetherAndDoNotBrake(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.BatchSize, w.cfg.Prefetch = 500, 1000
	w.cfg.MaxDead, w.cfg.MaxDeadWindow, w.cfg.BrakePause = 10, 60_000_000_000, 60_000_000_000
	w.handler = refuser{w.handler, func(*consumer.Message) error { return errors.New("no order in it") }}
	all := keys("order", 1000)
	w.publish("{}", all...)
	l := w.proxied()
	commits := 0
	l.mysql.DropReply(func(piece []byte) bool { // counts, never drops
		commits += bytes.Count(piece, commit)
		return false
	})
	r := w.start()
	w.ended(dedup.Dead, all...)
	w.quiet()
	w.end(map[string]int{"dead_lettered": 1000})
	if n := w.dead(); n != 1000 {
		t.Errorf("%d letters, want 1000", n)
	}
	if err := r.drained(); err != nil {
		t.Error(err)
	}
	if commits > 100 {
		t.Errorf("%d commits for 1000 rows: not recorded together", commits)
	}
}

func TestALetterWhoseRowAppearsMeanwhileIsNotRecordedTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.oneBatch(3)
	w.handler = refuser{w.handler, func(*consumer.Message) error { return errors.New("no order in it") }}
	w.publish("{}", "one", "two", "three")
	reached, release := w.blockAt(consumer.PointLetter)
	w.start()
	// given three confirmed letters without a row, and one row that another worker makes just now
	await(t, reached, "the first letter is confirmed")
	key := dedup.Identity{Group: group, Tag: tag, Key: "two"}
	if _, err := w.records.Claim(t.Context(), w.row("two"), dedup.Entry{Identity: key}, "another"); err != nil {
		t.Fatal(err)
	}
	release()
	// then the other rows are written, and its own worker's row is left alone until its lease is over
	w.ended(dedup.Dead, "one", "three")
	w.eventually("a copy of it waits", func() bool { return w.outcomes()["lease_lost"] == 1 })
	w.ended(dedup.Dead, "two")
	w.quiet()
}
