package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// shelf is a body; one without places is refused.
type shelf struct {
	Name   string `json:"name"`
	Places int    `json:"places"`
}

// Validate is asked by typed handlers.
func (s *shelf) Validate() error {
	if s.Places < 1 {
		return fmt.Errorf("a shelf of %d places", s.Places)
	}
	return nil
}

// fill writes the effect of a message, as its body has it.
func fill(tx *gorm.DB, s shelf) error {
	return tx.Exec("INSERT INTO effect (k, body) VALUES (?, '')", fmt.Sprintf("%s of %d", s.Name, s.Places)).Error
}

func fillOne(_ context.Context, tx *gorm.DB, s shelf, _ consumer.Message) error { return fill(tx, s) }

func fillAll(_ context.Context, tx *gorm.DB, all []shelf, _ []consumer.Message) error {
	for _, s := range all {
		if err := fill(tx, s); err != nil {
			return err
		}
	}
	return nil
}

// Given bodies that nobody can read, or of which two readers make two things, and some that their type refuses, among
// twenty good ones, with fields that the type does not know, then each of the first is a letter by itself and at once,
// with the reason that it has, and the good ones are applied as decoded.
func TestATypedHandlerGetsWhatItsBodySaysAndNothingElse(t *testing.T) {
	bad := map[string]string{
		"cut-off": `{"name":"bad"`, "with more behind": `{"name":"bad","places":1} {}`, "empty": ``, "null": ` null `,
		"of another type": `{"name":"bad","places":"1"}`, "a list": `[]`, "a field twice": `{"places":2,"places":1}`,
		"no UTF-8": "{\"name\":\"\xff\",\"places\":1}", "half a pair": `{"name":"\ud800","places":1}`,
		"without places": `{"name":"bad"}`, "with less than none": `{"name":"bad","places":-1}`,
	}
	refused := []string{"with less than none", "without places"}
	each(t, map[string]consumer.Handler{
		"one": consumer.JSON(fillOne), "batch": consumer.JSONBatch(fillAll),
		"one, by its address": consumer.JSON(func(_ context.Context, tx *gorm.DB, s *shelf, _ consumer.Message) error {
			return fill(tx, *s)
		}),
		"behind a handler that hides it":         consumer.HandlerFunc(consumer.JSON(fillOne).Handle),
		"a batch behind a handler that hides it": consumer.HandlerFunc(consumer.JSONBatch(fillAll).Handle),
		"in a Mux":                               consumer.Mux{tag: consumer.JSON(fillOne)},
	}, func(t *testing.T, w *world, h consumer.Handler) {
		w.handler = h
		var msgs []rabbit.Message
		add := func(key, body string) {
			msgs = append(msgs, rabbit.Message{MessageID: key, Body: []byte(body), DeliveryMode: rabbit.Persistent})
		}
		good, want := keys("good", 20), map[string]int{}
		for i, key := range good {
			add(key, fmt.Sprintf(`{"name":%q,"places":%d,"colour":{"name":"red"}}`, key, i+1))
			want[fmt.Sprintf("%s of %d", key, i+1)] = 1
		}
		var letters []string
		for key, body := range bad {
			add(key, body)
			letters = append(letters, key)
		}
		w.oneBatch(len(msgs))
		w.publishMessages(msgs...)
		w.start()
		w.ended(dedup.Success, good...)
		w.ended(dedup.Dead, letters...)
		w.end(map[string]int{"applied": len(good), "dead_lettered": len(letters)})
		for _, key := range letters {
			want := dedup.ReasonMalformed
			if slices.Contains(refused, key) {
				want = dedup.ReasonPermanent
			}
			w.wantRow(key, wanted{Reason: want})
		}
		w.wantRow("without places", wanted{Says: "a shelf of 0 places"})
		w.want("effects", w.effects(), want)
	})
}

// ofTag are messages with a tag of their own, whose keys begin with it.
func ofTag(tag string, n int) (all []rabbit.Message) {
	for _, key := range keys(tag, n) {
		all = append(all, rabbit.Message{Type: tag, MessageID: key, Body: []byte("{}"), DeliveryMode: rabbit.Persistent})
	}
	return all
}

// endedAs waits until each of these messages has a row of its tag in this status.
func (w *world) endedAs(status dedup.Status, msgs ...rabbit.Message) {
	w.t.Helper()
	for _, m := range msgs {
		w.eventually(m.MessageID+" is "+status.String(), func() bool {
			return w.rowOf(dedup.Identity{Group: group, Tag: m.Type, Key: m.MessageID}).Status == status
		})
	}
}

// Given handlers of four tags and one for all others, of which one blames a message, one leaves one out, one drops the
// error of a statement for one and one fails without blame, when messages of all tags come in one batch, then each is
// applied by the handler of its tag, once, but for the four.
func TestAMuxHandsEachMessageToTheHandlerOfItsTag(t *testing.T) {
	w := newWorld(t)
	boom := errors.New("boom")
	as := func(name string) does {
		return func(tx *gorm.DB, m consumer.Message) error { return insert(tx, name+" "+m.Key) }
	}
	bad := func(m consumer.Message) error {
		if strings.HasSuffix(m.Key, "-0003") {
			return boom
		}
		return nil
	}
	w.handler = consumer.Mux{
		"blames": by(false, func(tx *gorm.DB, m consumer.Message) error {
			return errors.Join(as("blames")(tx, m), bad(m))
		}),
		"leaves": consumer.HandlerFunc(func(_ context.Context, tx *gorm.DB, msgs []consumer.Message) error {
			var out []consumer.BlamedMessage
			for i, m := range msgs {
				if bad(m) != nil {
					out = append(out, consumer.BlamedMessage{Index: i, Err: boom})
				} else if err := as("leaves")(tx, m); err != nil {
					return err
				}
			}
			return consumer.Except(out...)
		}),
		"drops": by(true, func(tx *gorm.DB, m consumer.Message) error {
			if bad(m) != nil {
				_ = insert(tx, strings.Repeat("x", 300)) // it does not fit
			}
			return as("drops")(tx, m)
		}),
		"fails": by(true, func(tx *gorm.DB, m consumer.Message) error {
			return errors.Join(as("fails")(tx, m), bad(m))
		}),
		consumer.OtherTags: by(true, as("other")),
	}
	var all, failed []rabbit.Message
	want := map[string]int{}
	for _, tag := range []string{"blames", "leaves", "drops", "fails", "new", "newer"} {
		of, name := ofTag(tag, 6), tag
		if strings.HasPrefix(tag, "new") {
			name = "other"
		} else {
			failed = append(failed, of[3])
		}
		all = append(all, of...)
		for _, m := range of {
			if name == "other" || m.MessageID != of[3].MessageID {
				want[name+" "+m.MessageID] = 1
			}
		}
	}
	for i := range all { // tags alternate
		j := (i * 7) % len(all)
		all[i], all[j] = all[j], all[i]
	}
	w.oneBatch(len(all))
	w.publishMessages(all...)
	w.start()
	w.endedAs(dedup.Dead, failed...)
	w.quiet()
	w.want("effects", w.effects(), want)
	is(w, "letters", w.dead(), len(failed))
	is(w, "rows of success with more than one attempt",
		w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 1 AND consumer_times <> 1"), 0)
}

// Given a Mux without a handler for a tag, then its messages have failed attempts that name the tags which are known,
// the others are applied, and the brake sees it; such a message is never unidentified.
func TestAnUnknownTagIsAFailedAttemptThatNamesThoseKnown(t *testing.T) {
	w := newWorld(t)
	w.handler = consumer.Mux{"shelf.filled": whole(effectOfKey), "shelf.emptied": whole(effectOfKey)}
	unknown := ofTag("shelf.moved", 3)
	good := slices.Concat(ofTag("shelf.filled", 5), ofTag("shelf.emptied", 5))
	w.oneBatch(13)
	w.publishMessages(slices.Concat(good[:5], unknown, good[5:])...)
	w.start()
	w.endedAs(dedup.Success, good...)
	w.endedAs(dedup.Dead, unknown...)
	w.end(map[string]int{"applied": 10, "retried": 6, "dead_lettered": 3})
	row := w.rowOf(dedup.Identity{Group: group, Tag: "shelf.moved", Key: unknown[0].MessageID})
	is(w, "the reason", row.Reason, dedup.ReasonExhausted)
	is(w, "the remark", row.Remark, `no handler for the tag "shelf.moved", only for ["shelf.emptied" "shelf.filled"]`)
}

func TestUnknownTagsMakeTheBrakeSpaceAttemptsOut(t *testing.T) {
	w := newWorld(t)
	w.cfg.MaxDead, w.cfg.BrakePause = 5, w.cfg.RetryDelays[0]
	w.handler = consumer.Mux{"shelf.filled": whole(effectOfKey)}
	w.oneBatch(20)
	w.publishMessages(ofTag("shelf.moved", 20)...)
	w.start()
	w.logged("over 5 messages that failed at once")
}

func effectOfKey(tx *gorm.DB, m consumer.Message) error { return insert(tx, m.Key) }

func TestAMuxThatCannotWorkIsRefused(t *testing.T) {
	calls := consumer.Calls(func(context.Context, consumer.Message) error { return nil }, consumer.CallOptions{})
	for name, tc := range map[string]struct {
		mux  consumer.Mux
		says string
	}{
		"empty":   {consumer.Mux{}, "a Mux without handlers"},
		"a hole":  {consumer.Mux{"a": nil}, `Mux, tag "a": no Handler`},
		"a call":  {consumer.Mux{"a": calls}, `Mux, tag "a": a handler made by Calls`},
		"in it":   {consumer.Mux{"a": consumer.Mux{"b": calls}}, `Mux, tag "a": Mux, tag "b": a handler made by Calls`},
		"no tags": {nil, "a Mux without handlers"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := consumer.Config{MySQLDSN: "root@tcp(127.0.0.1:1)/none", AMQPURLs: []string{"amqp://127.0.0.1:1/"}}
			if _, err := consumer.Open(t.Context(), cfg, tc.mux); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("Open: %v, want %q", err, tc.says)
			}
		})
	}
}
