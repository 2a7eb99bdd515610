package consumer_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// minutes are the sums of what the fleet wrote down since the last time that minutes were moved away.
func (w *world) minutes() (sum dedup.Minute, rows int) {
	w.t.Helper()
	sum.Dead = map[dedup.Reason]int64{}
	all := require.Get(w.records.Minutes(w.t.Context(), group, w.cfg.Queue, 10*time.Minute))(w.t)
	for _, m := range all {
		sum.Applied, sum.Retried = sum.Applied+m.Applied, sum.Retried+m.Retried
		for r, n := range m.Dead {
			sum.Dead[r] += n
		}
		for i, n := range m.Lag {
			sum.Lag[i] += n
		}
		if m.Waiting.V > sum.Waiting.V || !sum.Waiting.Valid {
			sum.Waiting = m.Waiting
		}
	}
	return sum, len(all)
}

// Given two daemons, of which one writes while it works and the other at its end, when messages flow for a minute and
// fail for another one, then both minutes say what the two did together: applied, retried, dead by reason, and lags.
func TestTheMinutesOfDaemonsAddUp(t *testing.T) {
	w := newWorld(t)
	w.minute = 100 * time.Millisecond
	writing := w.start()
	w.minute = 0
	ending := w.start()
	var late []rabbit.Message
	for i := range 300 {
		late = append(late, rabbit.Message{
			MessageID: fmt.Sprint("good-", i), Body: []byte("{}"), DeliveryMode: rabbit.Persistent,
			Headers: map[string]any{"x-published-at-ms": time.Now().Add(-20 * time.Second).UnixMilli()},
		})
	}
	w.publishMessages(late...)
	w.settled(300)
	w.drains(ending)
	w.eventually("300 are written down as applied", func() bool { m, _ := w.minutes(); return m.Applied == 300 })
	if m, _ := w.minutes(); m.Lag[13] != 300 || m.Retried != 0 || len(m.Dead) != 0 {
		t.Errorf("the first minute is %+v, want 300 with a lag of 10 to 30 seconds", m)
	}
	w.eventually("the queue was looked at", func() bool { m, _ := w.minutes(); return m.Waiting.Valid })

	w.exec("UPDATE consumer_log_minute SET minute = minute - 30")
	w.hopeless("bad-1", "bad-2")
	w.failing("worse")
	w.publish("{}", "bad-1", "bad-2", "worse", "fine")
	w.eventually("what failed is written down", func() bool {
		m, _ := w.minutes()
		return m.Dead[dedup.ReasonPermanent] == 2 && m.Dead[dedup.ReasonExhausted] == 1
	})
	if m, _ := w.minutes(); m.Applied != 1 || m.Retried != 2 || len(m.Dead) != 2 {
		t.Errorf("the minute of the faults is %+v, want 1 applied and 2 retried", m)
	}
	w.drains(writing)
	if m, _ := w.minutes(); m.Applied != 1 || m.Retried != 2 {
		t.Errorf("after both have ended it is %+v", m)
	}
}

// Given a daemon whose table of minutes is gone, or may not be written, then messages are consumed, and it says once
// what is missing.
func TestADaemonThatCannotWriteMinutesConsumesAndSaysItOnce(t *testing.T) {
	each(t, map[string]func(w *world){
		"no table": func(w *world) { w.exec("DROP TABLE consumer_log_minute") },
		"no right": func(w *world) {
			w.dsn = stack.Restricted(w.t, w.dsn, "SELECT, INSERT, UPDATE, DELETE ON consumer_log",
				"SELECT, INSERT, UPDATE, DELETE ON consumer_log_event", "SELECT, INSERT, UPDATE ON rollbackd_meta",
				"SELECT ON rollbackd_schema", "SELECT, INSERT, UPDATE, DELETE ON effect", "SELECT ON consumer_log_minute")
		},
	}, func(t *testing.T, w *world, spoil func(w *world)) {
		spoil(w)
		w.minute = 20 * time.Millisecond
		r := w.start()
		const says, lost = "the charts of the pages lack", "figures of a minute are lost"
		w.eventually("several minutes were lost", func() bool { return strings.Count(w.logs.String(), lost) > 2 })
		for i := range 10 {
			w.publish("{}", strconv.Itoa(i))
		}
		w.settled(10)
		w.drains(r)
		assert.Is(t, strings.Count(w.logs.String(), says), 1, "times it is said that minutes are not written")
		assert.Is(t, len(w.effects()), 10, "effects")
	})
}
