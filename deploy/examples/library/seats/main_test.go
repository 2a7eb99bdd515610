package main

import (
	"testing"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/consumer/consumertest"
	"github.com/rollbackd/rollbackd/internal/test/assert"
)

func TestACancelledBookingFreesItsSeatOnce(t *testing.T) {
	w := consumertest.New(t, consumer.JSON(release), consumertest.Options{})
	m := consumertest.Message("booking.cancelled", "b1", booking{ID: "b1"})
	for _, want := range []consumer.Outcome{consumer.Applied, consumer.Duplicate} {
		if ended := w.Deliver(m); ended.Outcome != want {
			t.Error(ended) // says attempt, reason, cause, and when it comes back
		}
	}
	did := w.Statements()
	assert.That(t, len(did) == 1 && did[0].Args[0] == "b1", "statements: %v", did)
	next := w.Puts()
	assert.That(t, len(next) == 1 && next[0].Tag == "seat.free", "next messages: %v", next)
}
