package operator_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

func TestOfAHundredEqualRequestsOnTwoDaemonsOneIsDoneAndAllGetItsAnswer(t *testing.T) {
	w := newWorld(t)
	w.dead("no", names("a", 3)...)
	at := w.preview(operator.KindReplay, all).At
	desks := []*operator.Operator{w.newDesk(), w.newDesk()}
	for name, issued := range map[string]bool{"an Idempotency-Key": false, "the token of a form": true} {
		key, hash := "key-1", sha256.Sum256([]byte(name))
		if issued {
			key = require.Get(w.desk.Issue(t.Context(), anna))(t)
		}
		before := w.Number("SELECT COUNT(*) FROM consumer_log_act")
		var mu sync.Mutex
		answers := map[string]int{}
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				for {
					o, answer, err := desks[i%2].Begin(t.Context(), anna, operator.OnceRequest{Name: key, Hash: hash, Issued: issued})
					switch {
					case errors.Is(err, operator.ErrRunning):
						continue
					case err != nil:
						t.Error(err)
						return
					case o != nil:
						a, err := desks[i%2].Start(t.Context(), anna, operator.Request{
							ID: o.ActID, Kind: operator.KindDiscard, Why: name, CutOff: at, Filter: deadletter.Filter{
								Reasons: []dedup.Reason{"exhausted"}, Error: map[bool]string{true: "n", false: "o"}[issued],
							},
						})
						if err != nil {
							t.Error(err)
						}
						answer = &operator.Answer{Status: 202, ContentType: "text/plain", Location: "/acts/" + a.ID, Body: []byte(a.ID)}
						assert.OK(t, o.Finish(t.Context(), *answer))
					}
					mu.Lock()
					answers[fmt.Sprintf("%d %s %s %s", answer.Status, answer.ContentType, answer.Location, answer.Body)]++
					mu.Unlock()
					return
				}
			})
		}
		wg.Wait()
		assert.Is(t, len(answers), 1, "%s: answers %v", name, answers)
		assert.Is(t, w.Number("SELECT COUNT(*) FROM consumer_log_act")-before, 1, "%s: acts", name)
		// another body, or another person
		_, _, err := w.desk.Begin(t.Context(), anna, operator.OnceRequest{Name: key, Hash: sha256.Sum256([]byte("x")),
			Issued: issued})
		assert.Error(t, err, operator.ErrOtherRequest, "%s: another request", name)
		o, answer, err := w.desk.Begin(t.Context(), bert, operator.OnceRequest{Name: key, Hash: hash, Issued: issued})
		if issued != errors.Is(err, operator.ErrNotIssued) || answer != nil || (o != nil) == issued {
			t.Errorf("%s: another person: %v, %v, %v", name, o, answer, err)
		}
	}
}

func TestARequestWhoseDaemonDiedIsTakenUpUnderTheSameActAndDoneOnce(t *testing.T) {
	w := newWorld(t)
	w.dead("no", names("a", 3)...)
	at := w.preview(operator.KindReplay, all).At
	r := operator.OnceRequest{Name: "k", Hash: sha256.Sum256([]byte("body"))}
	// given one who has acted and died before the answer was kept
	first, _, err := w.desk.Begin(t.Context(), anna, r)
	w.Must(err)
	ask := operator.Request{ID: first.ActID, Kind: operator.KindReplay, Filter: all, CutOff: at}
	require.Get(w.desk.Start(t.Context(), anna, ask))(w.T)
	if _, _, err := w.desk.Begin(t.Context(), anna, r); !errors.Is(err, operator.ErrRunning) {
		t.Errorf("while its lease lives: %v", err)
	}
	// when the lease is over and the request comes again
	w.Exec("UPDATE consumer_log_once SET lease_until = UTC_TIMESTAMP(6)")
	second, answer, err := w.newDesk().Begin(t.Context(), anna, r)
	if err != nil || answer != nil || second.ActID != first.ActID {
		t.Fatalf("taken up: %+v, %+v, %v; want act %s", second, answer, err, first.ActID)
	}
	a, err := w.desk.Start(t.Context(), anna, ask)
	if err != nil || a.ID != first.ActID {
		t.Errorf("started again: %v, %v", a.ID, err)
	}
	assert.Is(t, w.Number("SELECT COUNT(*) FROM consumer_log_act"), 1, "acts")
	// the first one's answer comes too late to be kept
	if err := errors.Join(first.Finish(t.Context(), operator.Answer{Status: 500}), second.Finish(t.Context(),
		operator.Answer{Status: 202})); err != nil {
		t.Error(err)
	}
	if _, answer, err = w.desk.Begin(t.Context(), anna, r); err != nil || answer == nil || answer.Status != 202 {
		t.Errorf("the answer is %+v, %v", answer, err)
	}
}

func TestAPauseUnderOneIDIsOnePause(t *testing.T) {
	w := newWorld(t)
	o := require.First(w.desk.Begin(t.Context(), anna, operator.OnceRequest{Name: "k"}))(w.T)
	for range 3 {
		p, err := w.desk.Pause(t.Context(), anna, operator.PauseRequest{ID: o.ActID, Why: "a test", Seconds: 60})
		if err != nil || p.ID != o.ActID {
			t.Errorf("%+v, %v", p, err)
		}
	}
	if _, err := w.desk.Pause(t.Context(), bert, operator.PauseRequest{Why: "another"}); !errors.Is(err, dedup.ErrPaused) {
		t.Errorf("another pause: %v", err)
	}
	if _, err := w.desk.Resume(t.Context(), bert, operator.ResumeRequest{Pause: o.ActID}); err != nil {
		t.Error(err)
	}
	if _, err := w.desk.Resume(t.Context(), bert, operator.ResumeRequest{}); !errors.Is(err, dedup.ErrNotPaused) {
		t.Errorf("resumed again: %v", err)
	}
	acts, next, err := w.desk.Acts(t.Context(), operator.ActFilter{Limit: 1})
	if err != nil || len(acts) != 1 || next == "" || acts[0].Kind != operator.KindResume || acts[0].Actor != "bert" {
		t.Errorf("%+v, %q, %v", acts, next, err)
	}
	if acts, next, err = w.desk.Acts(t.Context(), operator.ActFilter{Limit: 1, Before: next}); err != nil || next != "" ||
		acts[0].Kind != operator.KindPause {
		t.Errorf("%+v, %q, %v", acts, next, err)
	}
}

func TestWhatIsOldIsDeletedAndRunsThatGoOnAreNot(t *testing.T) {
	w := newWorld(t)
	w.dead("no", "a")
	run := w.start(operator.Request{Filter: all})
	require.Get(w.desk.Note(t.Context(), anna, "sign_in", "", map[string]string{"from": "here"}, ""))(w.T)
	if _, _, err := w.desk.Begin(t.Context(), anna, operator.OnceRequest{Name: "k"}); err != nil {
		t.Fatal(err)
	}
	if n, err := w.desk.Clean(t.Context()); n != 0 || err != nil {
		t.Errorf("%d deleted, %v; want none yet", n, err)
	}
	w.Exec("UPDATE consumer_log_act SET created_at = created_at - INTERVAL 91 DAY")
	w.Exec("UPDATE consumer_log_once SET created_at = created_at - INTERVAL 25 HOUR")
	for _, ago := range []time.Duration{dedup.MinutesKept + time.Hour, dedup.MinutesKept - time.Hour} {
		w.Must(w.Records.AddMinute(t.Context(), "g", "q", ago, dedup.Minute{}))
	}
	if n, err := w.desk.Clean(t.Context()); n != 3 || err != nil {
		t.Errorf("%d deleted, %v; want the note, the request and the minute", n, err)
	}
	assert.Is(t, w.act(run.ID).State, operator.Running, "the run")
}

// Given a form that is looked at, then nothing is written; its token is good for whom it was given to, for a day, on
// every daemon, and nobody can make one.
func TestATokenOfAFormIsSignedAndHasNoRow(t *testing.T) {
	w := newWorld(t)
	issue := func() string {
		t.Helper()
		return require.Get(w.desk.Issue(t.Context(), anna))(w.T)
	}
	token, other := issue(), issue()
	if n := w.Number("SELECT COUNT(*) FROM consumer_log_once"); n != 0 || token == other {
		t.Errorf("%d rows were written for %q and %q", n, token, other)
	}
	at, rest, _ := strings.Cut(token, ".")
	_, sum, _ := strings.Cut(rest, ".")
	for name, bad := range map[string]string{
		"none": "x", "empty parts": "..", "no signature": at + "." + rest[:26], "another's time": "zzzzzzzzzz." + rest,
		"another's signature": other[:strings.LastIndexByte(other, '.')+1] + sum, "cut": token[:len(token)-1],
		"longer": token + "0", "a body that is none": sum,
	} {
		if o, _, err := w.desk.Begin(t.Context(), anna, operator.OnceRequest{Name: bad, Issued: true}); o != nil ||
			!errors.Is(err, operator.ErrNotIssued) {
			t.Errorf("%s: %v, %v", name, o, err)
		}
	}
	assert.Is(t, w.Number("SELECT COUNT(*) FROM consumer_log_once"), 0, "rows were written for what is no token")
	o, _, err := w.newDesk().Begin(t.Context(), anna, operator.OnceRequest{Name: token, Issued: true})
	if o == nil || err != nil {
		t.Errorf("on another daemon: %v, %v", o, err)
	}
	for name, age := range map[string]time.Duration{"old": operator.OnceKept, "to come": -2 * time.Minute} {
		stamped := require.Get(w.desk.IssuedBefore(t.Context(), anna, age))(w.T)
		if _, _, err := w.desk.Begin(t.Context(), anna, operator.OnceRequest{Name: stamped, Issued: true}); !errors.Is(err,
			operator.ErrNotIssued) {
			t.Errorf("a token that is %s: %v", name, err)
		}
	}
}
