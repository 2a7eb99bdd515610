package consumer_test

import (
	"errors"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Given headers that are as large, or as many, as the client library reads, so that RabbitMQ's count of deliveries
// makes them more, and an engine that dies over the message, when another engine gets it again, then it is the same
// message: applied once, under its key, and without a letter.
func TestHeadersThatFillAFrameKeepTheirIdentityAtARedelivery(t *testing.T) {
	t.Parallel()
	points := []consumer.Point{consumer.PointClaimed, consumer.PointCommitted, consumer.PointRetryCopy}
	for i, kind := range []string{"one entry", "many entries", "8,192 entries"} {
		for _, point := range points {
			t.Run(kind+" "+string(point), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.cfg.Lease, w.cfg.HandlerTimeout = 3*time.Second, 2*time.Second
				w.declare()
				calls := 0 // the first fails, so that it is claimed and attempted again
				w.rejecting("key", func() error {
					if calls++; calls <= 1 && point != consumer.PointCommitted {
						return errors.New("try again")
					}
					return nil
				})
				raw, err := stack.DialRaw(t.Context(), w.broker.URL)
				if err != nil {
					t.Fatal(err)
				}
				defer raw.Close()
				m := stack.RawMessage{
					Exchange: w.cfg.Exchange, Key: tag, MessageID: "key", Type: tag, Body: []byte("{}"),
					Headers: stack.FillingHeaders(raw.FrameMax(), "m", "key", tag)[i].Entries,
				}
				if err := raw.Publish(m); err != nil {
					t.Fatal(err)
				}
				w.crashAt(point)
				w.start()
				w.ended(dedup.Success, "key")
				w.quiet()
				w.want("effects", w.effects(), once("key"))
				if n := w.number("SELECT COUNT(*) FROM consumer_log"); n != 1 || w.dead() != 0 {
					t.Errorf("%d rows and %d letters for one message, want its row alone", n, w.dead())
				}
			})
		}
	}
}

// Given x-death as no broker writes it, an array of arrays, over which RabbitMQ 3.10 stops moving messages out of a
// queue, when the message fails and waits in a retry queue, then it comes back and is applied: no copy carries it.
func TestAForgedDeathStopsNoRetry(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.declare()
	calls := 0
	w.rejecting("key", func() error {
		if calls++; calls <= 1 {
			return errors.New("try again")
		}
		return nil
	})
	raw, err := stack.DialRaw(t.Context(), w.broker.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	const forged = "\x07x-deathA\x00\x00\x00\x05A\x00\x00\x00\x00"
	m := stack.RawMessage{
		Exchange: w.cfg.Exchange, Key: tag, MessageID: "key", Type: tag, Headers: []byte(forged), Body: []byte("{}"),
	}
	if err := raw.Publish(m); err != nil {
		t.Fatal(err)
	}
	w.start()
	w.ended(dedup.Success, "key")
	w.quiet()
	w.want("effects", w.effects(), once("key"))
	w.want("outcomes", w.outcomes(), map[string]int{"applied": 1, "retried": 1})
}
