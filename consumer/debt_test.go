package consumer_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
)

// Given claims whose letters the brake holds back, when it pauses for much longer than a lease, then they are given
// back before that.
func TestTheBrakesDebtsArePaidBeforeItsPause(t *testing.T) {
	w := newWorld(t)
	w.oneBatch(40)
	w.cfg.MaxDead, w.cfg.MaxDeadWindow, w.cfg.BrakePause = 1, time.Minute, time.Hour
	all := keys("order", 40)
	w.failedOnce(all...)
	w.handler = consumer.HandlerFunc(func(context.Context, *gorm.DB, []consumer.Message) error {
		return consumer.Permanent(errors.New("a broken deployment"))
	})
	r := w.startWith(all...)
	w.paused(r, "max_dead_rate")
	w.eventually("nothing is claimed", func() bool {
		return w.number("SELECT COUNT(*) FROM consumer_log WHERE "+
			"consumer_status = 0") == 0
	})
	if !waitsFor(r, "max_dead_rate") {
		t.Error("the pause is over")
	}
	if n := w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 2 AND owner IS NOT NULL AND " +
		"consumer_times = 1"); n == 0 {
		t.Error("no claim was given back: the brake held no letter of one")
	}
}
