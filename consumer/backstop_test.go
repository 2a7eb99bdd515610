package consumer_test

import (
	"errors"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestWhatTheBrokerGaveUpGetsARowAndALetterAndNoHandler(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	validated := false
	w.handler = refuser{w.handler, func(*consumer.Message) error { validated = true; return errors.New("refused") }}
	w.declare()
	claimed := dedup.Identity{Group: group, Tag: tag, Key: "crashing"}
	if _, err := w.records.Claim(t.Context(), w.row("crashing"), dedup.Entry{Identity: claimed},
		"a process that died"); err != nil {
		t.Fatal(err)
	}
	w.publishInto(rabbit.BackstopQueue(w.cfg.Queue), "unknown", "unknown", "crashing", "")
	w.start()
	w.ended(dedup.Dead, "unknown", "crashing")
	w.end(map[string]int{"dead_lettered": 3, "duplicate_of_dead": 1})
	w.quiet()
	w.want("letters", w.counts("rollbackd_dead_lettered_total"), map[string]int{"delivery_limit": 3})
	for range 3 {
		if letter := w.letter(); letter.Headers["x-rollbackd-reason"] != "delivery_limit" {
			t.Errorf("a letter has the reason %v, want delivery_limit", letter.Headers["x-rollbackd-reason"])
		}
	}
	if row := w.row("unknown"); row.Reason != "delivery_limit" ||
		row.Remark != "moved to "+rabbit.BackstopQueue(w.cfg.Queue)+", not by RabbitMQ's account of it" {
		t.Errorf("reason %q, remark %q", row.Reason, row.Remark)
	}
	if validated || w.times("unknown") > 0 {
		t.Error("the handler has seen it")
	}
}

func TestWhatTheBrokerGaveUpIsJudgedByItsRow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.rejecting("dead", func() error { return consumer.Permanent(errors.New("already shipped")) })
	w.publish("{}", "done", "dead")
	w.start()
	w.ended(dedup.Success, "done")
	w.ended(dedup.Dead, "dead")
	w.quiet()
	backstop := rabbit.BackstopQueue(w.cfg.Queue)
	// given the letter of a dead row, moved by hand and given up by the broker; an ordinary copy; one that is done;
	// another body
	letter := w.letter()
	w.broker.Publish("", backstop, stack.Message{
		MessageId: letter.MessageId, Type: letter.Type, Headers: letter.Headers, Body: letter.Body,
	})
	w.publishInto(backstop, "dead", "done")
	w.broker.Publish("", backstop, stack.Message{MessageId: "done", Type: tag, Body: []byte("other")})
	w.end(map[string]int{"applied": 1, "duplicate": 1, "dead_lettered": 2, "duplicate_of_dead": 2})
	// then the row still has its letter, as it was
	found := map[string]string{}
	for range 2 {
		l := w.letter()
		found[l.Headers["x-rollbackd-reason"].(string)] = string(l.Body)
		if l.Headers["x-rollbackd-reason"] == "permanent" &&
			l.Headers["x-rollbackd-dead-at"] != letter.Headers["x-rollbackd-dead-at"] {
			t.Errorf("the letter says it is dead since %v, was %v", l.Headers["x-rollbackd-dead-at"],
				letter.Headers["x-rollbackd-dead-at"])
		}
	}
	if found["permanent"] != "{}" || found["delivery_limit"] != "other" {
		t.Errorf("letters %v", found)
	}
	w.want("effects", w.effects(), once("done"))
}

func TestALeaseThatLivesIsWaitedForInTheBackstopButNotInADrain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.Lease = 30 * time.Second
	w.declare()
	key := dedup.Identity{Group: group, Tag: tag, Key: "busy"}
	claim, err := w.log(w.open(w.dsn)).Claim(t.Context(), w.row("busy"), dedup.Entry{Identity: key}, "another")
	if err != nil {
		t.Fatal(err)
	}
	w.publishInto(rabbit.BackstopQueue(w.cfg.Queue), "busy", "free")
	r := w.launch()
	w.ended(dedup.Dead, "free") // it does not wait for the other
	began := time.Now()
	if err := r.drained(); err != nil || time.Since(began) > 5*time.Second {
		t.Errorf("Run = %v after %v, want nil at once", err, time.Since(began))
	}
	w.end(map[string]int{"dead_lettered": 1, "abandoned": 1})
	if err := w.records.Unclaim(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	w.start()
	w.ended(dedup.Dead, "busy")
}

func TestTheDeliveryLimitOfTheMainQueueEndsInALetter(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.declare()
	// given a message that the broker has delivered too often: 201 deliveries failed
	w.publish("{}", "loops")
	w.broker.Fail(w.cfg.Queue, 201)
	backstop := rabbit.BackstopQueue(w.cfg.Queue)
	w.eventually("it is in the backstop", func() bool { return w.broker.Depth(backstop) == 1 })
	// and that came back from the backstop too
	w.broker.Fail(backstop, 3)
	w.start()
	w.ended(dedup.Dead, "loops") // under its own identity, although it came by another way
	remark := "given up by RabbitMQ: it came back unsettled to " + w.cfg.Queue +
		" more often than its delivery limit allows (200, unless a policy sets less)"
	if row := w.row("loops"); row.Reason != "delivery_limit" || row.Remark != remark {
		t.Errorf("reason %q, remark %q; want delivery_limit, %q", row.Reason, row.Remark, remark)
	}
	w.quiet()
	if n := w.dead(); n != 1 {
		t.Errorf("%d letters, want 1", n)
	}
}

// An operator's policy may take messages off the main queue or refuse them: none of it loses one, and letters say what
// happened.
func TestPoliciesOnTheMainQueueLoseNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.declare()
	// given a policy that lets messages expire while nobody consumes
	w.broker.Policy("ttl-"+w.cfg.Queue, w.cfg.Queue, map[string]any{"message-ttl": 500})
	gone := keys("gone", 5)
	w.publishInto(w.cfg.Queue, gone...)
	w.eventually("they are in the backstop", func() bool {
		return w.broker.Depth(rabbit.BackstopQueue(w.cfg.Queue)) == len(gone)
	})
	// then, when policies limit deliveries and length, each is a letter that says so, and the others are applied
	w.broker.Policy("ttl-"+w.cfg.Queue, w.cfg.Queue, map[string]any{
		"delivery-limit": 5, "max-length": 1000, "overflow": "drop-head",
	})
	w.start()
	w.publish("{}", keys("good", 50)...)
	w.ended(dedup.Dead, gone...)
	w.ended(dedup.Success, keys("good", 50)...)
	told := w.number(`SELECT COUNT(*) FROM consumer_log WHERE reason = 'delivery_limit' AND remark LIKE
		'taken off %by RabbitMQ: expired%'`)
	if told != len(gone) || w.dead() != len(gone) {
		t.Errorf("%d rows say that their messages expired, and there are %d letters, want %d", told, w.dead(), len(gone))
	}
	w.want("effects", w.effects(), once(keys("good", 50)...))
	w.broker.Policy("ttl-"+w.cfg.Queue, w.cfg.Queue, nil)
}

// A letter that was moved by hand into the backstop behind a message whose lease lives is acked with its copy, not
// after that lease: each restart would make another letter of it.
func TestALetterInTheBackstopDoesNotMultiply(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.Lease = 30 * time.Second
	w.rejecting("dead", func() error { return consumer.Permanent(errors.New("already shipped")) })
	w.publish("{}", "dead")
	r := w.launch()
	w.ended(dedup.Dead, "dead")
	w.quiet()
	if err := r.drained(); err != nil {
		t.Fatal(err)
	}
	letter := w.letter()
	busy := dedup.Entry{Identity: dedup.Identity{Group: group, Tag: tag, Key: "busy"}}
	if _, err := w.log(w.open(w.dsn)).Claim(t.Context(), w.row("busy"), busy, "another"); err != nil {
		t.Fatal(err)
	}
	backstop := rabbit.BackstopQueue(w.cfg.Queue)
	w.publishInto(backstop, "busy")
	w.broker.Publish("", backstop, stack.Message{
		MessageId: letter.MessageId, Type: letter.Type, Headers: letter.Headers, Body: letter.Body, DeliveryMode: 2,
	})
	for range 2 {
		r := w.launch()
		w.eventually("the letter is back and acked", func() bool {
			return w.dead() == 1 && w.broker.Unacked(backstop) == 1 && w.broker.Depth(backstop) <= 1
		})
		if err := r.drained(); err != nil {
			t.Error(err)
		}
		if n := w.dead(); n != 1 {
			t.Fatalf("%d letters of one row, want 1", n)
		}
	}
}
