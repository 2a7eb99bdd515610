package main

import (
	"testing"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/consumer/consumertest"
)

func TestACancelledBookingFreesItsSeatOnce(t *testing.T) {
	w := consumertest.New(t, consumer.JSON(release), consumertest.Options{})
	m := consumertest.Message("booking.cancelled", "b1", booking{ID: "b1"})
	for _, want := range []consumer.Outcome{consumer.Applied, consumer.Duplicate} {
		if ended := w.Deliver(m); ended.Outcome != want {
			t.Error(ended) // says attempt, reason, cause, and when it comes back
		}
	}
	if did := w.Statements(); len(did) != 1 || did[0].Args[0] != "b1" {
		t.Errorf("statements: %v", did)
	}
	if next := w.Puts(); len(next) != 1 || next[0].Tag != "seat.free" {
		t.Errorf("next messages: %v", next)
	}
}
