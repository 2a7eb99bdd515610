package pages

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/admin/server"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/test/assert"
)

// Given 6,000 letters, then the overview says how many, how old that figure is, and in how many groups they are, or how
// many were looked at.
func TestTheOverviewCountsTheDeadLetters(t *testing.T) {
	w := newWorld(t, "", server.GuardOptions{}, view.Hide{})
	w.deadMany(6000)
	page := w.until("/", "dead letters</b>")
	assert.Has(t, page, "<b>6,000 dead letters</b><p>Counted ", "the overview")
	if page = w.until("/", "the largest: exhausted"); strings.Contains(page, "looked at so far") ==
		strings.Contains(page, "In 2 groups") {
		t.Errorf("the page says neither that all letters are in two groups nor how many were looked at:\n%s", page)
	}
}

// Given a log with rows of another group, while messages of this one may still come, then the overview names that one.
func TestTheOverviewNamesTheGroupsThatThereAre(t *testing.T) {
	w := newWorld(t, "", server.GuardOptions{}, view.Hide{})
	w.exec("INSERT INTO consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times, " +
		"consumer_timestamp, created_at) VALUES ('h', 't', 'k', 1, 1, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))")
	w.until("/", "no group named g is in consumer_log; there are: h")
}

// Given a daemon that has just begun, then no server is said to be away before it was in trouble.
func TestAServerThatWasNotAskedIsNotAway(t *testing.T) {
	h := view.Hour{
		Samples:  []view.Sample{{Up: map[string]bool{"mysql": false, "rabbitmq": true, "redis": false}}},
		Troubles: []view.Trouble{{What: "redis"}},
	}
	for i, want := range []string{"unknown", "answers", "away"} {
		assert.Is(t, parts(h)[i].State, want, "server %d", i)
	}
}

// Given 50 deliveries a second for twenty seconds and then none, then the hour had a thousand, which is no rate.
func TestInTheHourIsACount(t *testing.T) {
	began := time.Now()
	h := view.Hour{}
	for i, r := range []float64{0, 50, 50, 0, 0} {
		h.Samples = append(h.Samples, view.Sample{
			At: began.Add(time.Duration(i) * 10 * time.Second), Rates: map[string]float64{"applied": r, "retried": 0},
		})
	}
	assert.Is(t, fmt.Sprint(outcomes(h)), "[{applied 0 1000}]", "outcomes")
}
