package operator_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/letters"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

func TestARequestWhoseDaemonDiedIsTakenUpUnderTheSameActAndDoneOnce(t *testing.T) {
	w := newWorld(t).dead("no", names("a", 3)...)
	at := w.preview(operator.KindReplay, all).At
	r := operator.OnceRequest{Name: "k", Hash: sha256.Sum256([]byte("body"))}
	// given one who has acted and died before the answer was kept
	first := require.First(w.desk.Begin(t.Context(), anna, r))(t)
	ask := operator.Request{ID: first.ActID, Kind: operator.KindReplay, Filter: all, CutOff: at}
	require.Get(w.desk.Start(t.Context(), anna, ask))(w.T)
	_, _, err := w.desk.Begin(t.Context(), anna, r)
	assert.Error(t, err, operator.ErrRunning, "while its lease lives")
	other := require.First(w.desk.Begin(t.Context(), bert, r))(t)
	assert.Is(t, other != nil && other.ActID != first.ActID, true, "another person's request of that name is another")
	_, _, err = w.newDesk(func(o *operator.Options) { o.Queue = "other" }).Begin(t.Context(), anna, r)
	assert.Error(t, err, operator.ErrOtherRequest, "to a daemon of another queue of the group")
	// when the lease is over and the request comes again
	w.Exec("UPDATE consumer_log_once SET lease_until = UTC_TIMESTAMP(6)")
	second, answer, err := w.newDesk().Begin(t.Context(), anna, r)
	require.That(t, err == nil && answer == nil && second.ActID == first.ActID,
		"taken up: %+v, %+v, %v; want act %s", second, answer, err, first.ActID)
	assert.Is(t, require.Get(w.desk.Start(t.Context(), anna, ask))(t).ID, first.ActID, "started again")
	assert.Is(t, w.Number("SELECT COUNT(*) FROM consumer_log_act"), 1, "acts")
	// the first one's answer comes too late to be kept
	w.Must(first.Finish(t.Context(), operator.Answer{Status: 500}), second.Finish(t.Context(),
		operator.Answer{Status: 202}))
	_, answer, err = w.desk.Begin(t.Context(), anna, r)
	assert.That(t, err == nil && answer != nil && answer.Status == 202, "the answer is %+v, %v", answer, err)
}

func TestAPauseUnderOneIDIsOnePause(t *testing.T) {
	w := newWorld(t)
	o := require.First(w.desk.Begin(t.Context(), anna, operator.OnceRequest{Name: "k"}))(w.T)
	for range 3 {
		p, err := w.desk.Pause(t.Context(), anna, operator.PauseRequest{ID: o.ActID, Why: "a test", Seconds: 60})
		assert.That(t, err == nil && p.ID == o.ActID, "%+v, %v", p, err)
	}
	_, err := w.desk.Pause(t.Context(), bert, operator.PauseRequest{Why: "another"})
	assert.Error(t, err, dedup.ErrPaused, "another pause")
	require.Get(w.desk.Resume(t.Context(), bert, operator.ResumeRequest{Pause: o.ActID}))(t)
	_, err = w.desk.Resume(t.Context(), bert, operator.ResumeRequest{})
	assert.Error(t, err, dedup.ErrNotPaused, "resumed again")
	acts, next, err := w.desk.Acts(t.Context(), operator.ActFilter{Limit: 1})
	assert.That(t, err == nil && len(acts) == 1 && next != "" && acts[0].Kind == operator.KindResume &&
		acts[0].Actor == "bert", "%+v, %q, %v", acts, next, err)
	acts, next, err = w.desk.Acts(t.Context(), operator.ActFilter{Limit: 1, Before: next})
	assert.That(t, err == nil && next == "" && acts[0].Kind == operator.KindPause, "%+v, %q, %v", acts, next, err)
}

func TestWhatIsOldIsDeletedAndRunsThatGoOnAreNot(t *testing.T) {
	w := newWorld(t).dead("no", "a")
	run := w.start(operator.Request{Filter: all})
	require.Get(w.desk.Note(t.Context(), anna, "sign_in", "", map[string]string{"from": "here"}, ""))(w.T)
	require.First(w.desk.Begin(t.Context(), anna, operator.OnceRequest{Name: "k"}))(t)
	assert.Is(t, require.Get(w.desk.Clean(t.Context()))(t), 0, "not yet deleted")
	w.Exec("UPDATE consumer_log_act SET created_at = created_at - INTERVAL 91 DAY")
	w.Exec("UPDATE consumer_log_once SET created_at = created_at - INTERVAL 25 HOUR")
	for _, ago := range []time.Duration{dedup.MinutesKept + time.Hour, dedup.MinutesKept - time.Hour} {
		w.Must(w.Records.AddMinute(t.Context(), "g", "q", ago, dedup.Minute{}))
	}
	assert.Is(t, require.Get(w.desk.Clean(t.Context()))(t), 3, "the note, the request and the minute: deleted")
	assert.Is(t, w.act(run.ID).State, operator.Running, "the run")
}

// Before anybody has looked nothing is said, and not that nothing is dead.
func TestGaugesTellOfTheLog(t *testing.T) {
	w := newWorld(t)
	reg := prometheus.NewRegistry()
	m := require.Get(w.desk.Maintenance(operator.MaintenanceOptions{Clocks: func(context.Context, error) {}}, reg))(t)
	says := func(want ...string) {
		t.Helper()
		var got []string
		for _, f := range require.Get(reg.Gather())(t) {
			for _, m := range f.GetMetric() {
				text, value := f.GetName(), m.GetGauge().GetValue()
				if strings.HasSuffix(text, "_seconds") {
					value = math.Floor(value / 60) // a busy machine is seconds late
				}
				for _, label := range m.GetLabel()[1:] { // the first is the group
					text += " " + label.GetValue()
				}
				got = append(got, fmt.Sprint(text, ": ", value))
			}
		}
		assert.Equal(t, got, want, "figures, ages in minutes")
	}
	says("rollbackd_leader: 0")
	w.Must(m.LookOnce(t.Context()))
	says("rollbackd_dead_letters: 0", "rollbackd_leader: 0", "rollbackd_oldest_dead_letter_seconds: 0",
		"rollbackd_oldest_open_seconds failed: 0", "rollbackd_oldest_open_seconds processing: 0")
	for i, row := range []struct {
		status  dedup.Status
		minutes time.Duration
	}{{0, 10}, {0, 20}, {1, 999}, {2, 30}, {3, 100}, {3, 200}, {4, 999}} {
		w.Insert(letters.Identity(fmt.Sprint(i)), row.status, row.minutes*time.Minute)
	}
	w.Must(m.LookOnce(t.Context()))
	says("rollbackd_dead_letters: 2", "rollbackd_leader: 0", "rollbackd_oldest_dead_letter_seconds: 200",
		"rollbackd_oldest_open_seconds failed: 30", "rollbackd_oldest_open_seconds processing: 20")
}

// Given a form that is looked at, then nothing is written; its token is good for whom it was given to, for a day, on
// every daemon, and nobody can make one.
func TestATokenOfAFormIsSignedAndHasNoRow(t *testing.T) {
	w := newWorld(t)
	token, other := require.Get(w.desk.Issue(t.Context(), anna))(t), require.Get(w.desk.Issue(t.Context(), anna))(t)
	assert.Is(t, token != other, true, "two tokens %q and %q differ", token, other)
	at, rest, _ := strings.Cut(token, ".")
	_, sum, _ := strings.Cut(rest, ".")
	bad := map[string]string{"none": "x", "empty parts": "..", "no signature": at + "." + rest[:26],
		"another's time": "zzzzzzzzzz." + rest, "another's signature": other[:strings.LastIndexByte(other, '.')+1] + sum,
		"cut": token[:len(token)-1], "longer": token + "0", "a body that is none": sum}
	for name, age := range map[string]time.Duration{"old": operator.OnceKept, "to come": -2 * time.Minute} {
		bad[name] = require.Get(w.desk.IssuedBefore(t.Context(), anna, age))(w.T)
	}
	for name, bad := range bad {
		o, _, err := w.desk.Begin(t.Context(), anna, operator.OnceRequest{Name: bad, Issued: true})
		assert.That(t, o == nil && errors.Is(err, operator.ErrNotIssued), "%s: %v, %v", name, o, err)
	}
	_, _, err := w.desk.Begin(t.Context(), bert, operator.OnceRequest{Name: token, Issued: true})
	assert.Error(t, err, operator.ErrNotIssued, "given to another person")
	assert.Is(t, w.Number("SELECT COUNT(*) FROM consumer_log_once"), 0, "rows were written before one was used")
	o := require.First(w.newDesk().Begin(t.Context(), anna, operator.OnceRequest{Name: token, Issued: true}))(t)
	assert.Is(t, o != nil, true, "on another daemon it is taken")
}
