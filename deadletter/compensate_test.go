package deadletter_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestLettersThatMayPassComeBackByThemselvesAndTheOthersStay(t *testing.T) {
	w := newWorld(t)
	for _, reason := range dedup.Reasons() {
		w.dead(reason, names(string(reason), 3)...)
	}
	w.cured()
	w.compensate(deadletter.CompensateOptions{After: time.Second})
	w.wantEffects(9)
	w.wantStatus(dedup.Success, 1, 9)
	w.WantQueues(0, 15)
	w.wantStatus(dedup.Dead, 0, 15)
	for _, reason := range []dedup.Reason{dedup.ReasonExhausted, dedup.ReasonCrashed, dedup.ReasonDeliveryLimit} {
		by := w.events(identity(names(string(reason), 1)[0]))[1].By
		assert.Has(t, by, "compensation by ", "%s: it says that nobody asked", reason)
	}
}

func TestALetterInItsCoolDownStaysAndOneThatWasReplayedTooOftenIsParkedOnce(t *testing.T) {
	w := newWorld(t)
	w.most = 3
	w.dead(dedup.ReasonExhausted, "young", "old", "twice replayed", "too often")
	for key, is := range map[string]struct{ replays, minutes int }{
		"old": {0, 61}, "twice replayed": {2, 3*60 + 55}, "too often": {3, 24 * 60},
	} {
		w.Exec("UPDATE consumer_log SET replays = ?, consumer_timestamp = consumer_timestamp - INTERVAL ? MINUTE WHERE "+
			"msg_key = ?", is.replays, is.minutes, key)
	}
	w.wantTally(w.replayDue(time.Hour), "replayed 1, not selected 2, parked 1, left 1, parked")
	w.wantRow(identity("old"), dedup.Failed, 1)
	assert.Is(t, w.replayDue(time.Hour).Parked, 0, "the second time it is left alone: parked")
	w.WantQueues(1, 3)
}

func TestCompensationWaitsForServersThatAreAway(t *testing.T) {
	w := newWorld(t)
	w.bookmarked()
	w.dead(dedup.ReasonExhausted, "k")
	w.MoveBack(time.Hour)
	mysql, broker := w.proxied(), stack.Proxy(t, stack.Addr(t, w.amqpURL))
	mysql.Refuse(true)
	broker.Refuse(true)
	w.amqpURL = broker.Through(w.amqpURL)
	told := new(listener)
	w.compensate(deadletter.CompensateOptions{After: time.Second, Per: time.Second, Notifier: told})
	mysql.Refuse(false)
	w.wantTold(told, "k")
	broker.Refuse(false)
	w.WantQueues(1, 0)
}

func TestCompensationNeedsItsQueueOnlyWhenALetterIsDue(t *testing.T) {
	w := newWorld(t).dead(dedup.ReasonPermanent, "k")
	w.MoveBack(time.Hour)
	w.Broker.Delete(rabbit.DeadQueue(w.Queue))
	assert.Is(t, w.replayDue(time.Second).Found, 0, "w.replayDue(time.Second).Found")
	_, err := w.tries(all, plain)
	assert.Has(t, fmt.Sprint(err), fmt.Sprintf("look at queue %q", rabbit.DeadQueue(w.Queue)), "Replay")
}

// A daemon that drains waits for letters in hand, but not as long as a person would.
func TestLettersInHandHoldNobodyUpForLong(t *testing.T) {
	w := newWorld(t).dead(dedup.ReasonExhausted, "k")
	w.MoveBack(time.Hour)
	// given a reopen that waits for a lock, and an answer to it that never comes
	tx := require.Get(w.Pool.BeginTx(t.Context(), nil))(t)
	defer tx.Rollback() // it has changed nothing
	require.Get(tx.ExecContext(t.Context(), "SELECT 1 FROM consumer_log FOR UPDATE"))(w.T)
	proxy := w.proxied()
	w.dsn += "?readTimeout=50s"
	stop := w.compensate(deadletter.CompensateOptions{After: time.Second})
	w.Eventually("the reopen waits", func() (string, bool) {
		return "", w.Number("SELECT COUNT(*) FROM "+stack.Processes+" WHERE db = DATABASE() AND info LIKE "+
			"'UPDATE `consumer_log`%'") > 0
	})
	proxy.Hold(true)
	began := time.Now()
	stop()
	assert.AtMost(t, time.Since(began), 30*time.Second, "it took to stop")
}

func (w *world) replayDue(after time.Duration) deadletter.Result {
	w.T.Helper()
	return require.First(w.letters().ReplayDue(w.T.Context(), deadletter.CompensateOptions{After: after}))(w.T)
}

// What compensation reopened and could not publish is its own to take up again: nobody else would.
func TestCompensationFinishesWhatItBegan(t *testing.T) {
	w := newWorld(t).deadMany(dedup.ReasonExhausted, 5)
	w.MoveBack(time.Hour)
	w.killAt(deadletter.PointReopened)
	_, _, err := w.letters().ReplayDue(t.Context(), deadletter.CompensateOptions{After: time.Second})
	assert.Error(t, err, errKilled, "it ended")
	w.hook = nil
	w.WantQueues(0, 5)
	w.MoveBack(10 * time.Hour) // a long time later
	assert.Is(t, w.replayDue(time.Second).Replayed, 5, "w.replayDue(time.Second).Replayed")
	w.WantQueues(5, 0)
}

// listener is a Notifier that remembers what it was told.
type listener struct {
	mu    sync.Mutex
	calls [][]deadletter.Letter
	fail  error
	first bool // it panics when it is told first
}

func (l *listener) Notify(_ context.Context, letters []deadletter.Letter) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.calls = append(l.calls, slices.Clone(letters)); l.first && len(l.calls) == 1 {
		panic(l.fail)
	}
	return l.fail
}

func (l *listener) keys() (keys []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.calls {
		for _, letter := range c {
			keys = append(keys, letter.Key)
		}
	}
	return keys
}

// compensate runs Compensate until stop, or the end of the test.
func (w *world) compensate(o deadletter.CompensateOptions) (stop func()) {
	w.T.Helper()
	if o.VisibilityDelay == 0 {
		o.VisibilityDelay = time.Microsecond
	}
	letters := w.letters()
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.T.Context()))
	done := make(chan error, 1)
	go func() { done <- letters.Compensate(ctx, o) }()
	stop = sync.OnceFunc(func() {
		cancel()
		assert.OK(w.T, <-done, "Compensate:")
	})
	w.T.Cleanup(stop)
	return stop
}

// bookmarked makes everything so far old news.
func (w *world) bookmarked() {
	w.T.Helper()
	require.Get(w.Records.Bookmark(w.T.Context(), group))(w.T)
}

func (w *world) wantTold(l *listener, want ...string) {
	w.T.Helper()
	w.Eventually("all are told", func() (string, bool) { return "", len(l.keys()) >= len(want) })
	w.Eventually("the bookmark is behind the last step", func() (string, bool) {
		at, err := w.Records.Bookmark(w.T.Context(), group)
		return fmt.Sprint(at, err), int(at) == w.Number("SELECT MAX(id) FROM consumer_log_event")
	})
	assert.Equal(w.T, l.keys(), want, "told")
}

func TestEveryNewLetterIsToldInItsOrder(t *testing.T) {
	w := newWorld(t).dead(dedup.ReasonExhausted, names("old", 3)...)
	w.bookmarked()
	want := names("new", 250)
	w.dead(dedup.ReasonMalformed, want...)
	w.inState("applied after a failure", dedup.Failed)
	told := new(listener)
	w.compensate(deadletter.CompensateOptions{Notifier: told})
	w.wantTold(told, want...)
	for _, c := range told.calls {
		assert.AtMost(t, len(c), 100, "letters at once")
	}
	row := w.Row(want[7])
	letter := told.calls[0][7]
	assert.That(t, letter.Reason == "malformed" && letter.Remark == "no" && letter.DeadAt.Equal(row.DeadAt) &&
		letter.BodyHash != "", "told %+v of %+v", letter, row)
	// when one more dies, then it is told, too
	w.inState("one more", dedup.Dead)
	w.wantTold(told, append(want, "one more")...)
}

func TestALetterThatIsDeadNoMoreIsNotToldAndOneThatDiedAgainIs(t *testing.T) {
	w := newWorld(t)
	w.bookmarked()
	w.dead(dedup.ReasonExhausted, "replayed", "dies again", "stays")
	for _, key := range []string{"replayed", "dies again"} {
		row := w.Row(key)
		require.Get(w.Records.Reopen(t.Context(), row, dedup.Entry{Identity: row.Identity},
			dedup.ReplayNote{By: "me", Token: key}))(w.T)
	}
	again := w.Row("dies again")
	w.Must(w.Records.Dead(t.Context(), again, dedup.Entry{Identity: again.Identity}, "crashed", "again"))
	told := new(listener)
	w.compensate(deadletter.CompensateOptions{Notifier: told})
	w.wantTold(told, "stays", "dies again")
	letter := told.calls[0][1]
	assert.That(t, letter.Replays == 1 && letter.Reason == "crashed", "told %+v, want its second death", letter)
}

// A process that dies between telling and noting it tells again, and nothing newer overtakes that, also when who is
// told panics; one that noted it is not asked to tell again by the next.
func TestALetterIsToldUntilThatIsNoted(t *testing.T) {
	w := newWorld(t)
	w.bookmarked()
	w.dead(dedup.ReasonExhausted, "k")
	dies := &listener{fail: errKilled, first: true}
	stop := w.compensate(deadletter.CompensateOptions{Notifier: dies})
	w.Eventually("told", func() (string, bool) { return "", len(dies.keys()) > 0 })
	w.inState("newer", dedup.Dead)
	w.Eventually("told again", func() (string, bool) { return "", len(dies.keys()) > 2 })
	stop()
	next := new(listener)
	stop = w.compensate(deadletter.CompensateOptions{Notifier: next})
	w.wantTold(next, "k", "newer")
	stop()
	w.inState("another", dedup.Dead)
	last := new(listener)
	w.compensate(deadletter.CompensateOptions{Notifier: last})
	w.wantTold(last, "another")
}

// A worker may commit a letter's row after one that was written later: its step has a lower number and appears behind.
func TestALetterThatIsCommittedLateIsTold(t *testing.T) {
	w := newWorld(t)
	w.bookmarked()
	tx := require.Get(w.Pool.BeginTx(t.Context(), nil))(t)
	defer tx.Rollback() // after the commit there is nothing to roll back
	for _, insert := range []string{
		"consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times, reason, consumer_timestamp, " +
			"created_at, dead_at) VALUES (?, ?, ?, 3, 0, 'malformed', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))",
		"consumer_log_event (group_name, msg_tag, msg_key, `at`, `to`, attempt, replays) " +
			"VALUES (?, ?, ?, UTC_TIMESTAMP(6), 3, 0, 0)",
	} {
		require.Get(tx.ExecContext(t.Context(), "INSERT INTO "+insert, group, tag, "late"))(t)
	}
	w.inState("early", dedup.Dead)
	told := new(listener)
	proxy := w.proxied()
	var looks atomic.Int32
	proxy.DropReply(func(piece []byte) bool { // counts, never drops
		if bytes.Contains(piece, []byte("FROM `consumer_log_event` WHERE id >")) {
			looks.Add(1)
		}
		return false
	})
	w.compensate(deadletter.CompensateOptions{Notifier: told, VisibilityDelay: 10 * time.Second})
	w.Eventually("the story is read while one step of it is not visible", func() (string, bool) {
		return "", looks.Load() > 0
	})
	w.Must(tx.Commit())
	w.wantTold(told, "late", "early")
}

const secret = "a secret that both know"

// receiver is a real HTTP server that answers as a test wants.
func receiver(t *testing.T, answer http.HandlerFunc) (url string) {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	return server.URL
}

func webhook(t *testing.T, o deadletter.WebhookOptions) *deadletter.Webhook {
	t.Helper()
	hook := require.Get(deadletter.NewWebhook(o))(t)
	t.Cleanup(hook.Close)
	return hook
}

var aLetter = []deadletter.Letter{{
	Group: "g", Tag: "t", Key: "k <1>", Reason: "exhausted", Attempts: 5, Replays: 1, Remark: "no", BodyHash: "ab",
}}

func TestTheWebhookSignsExactlyWhatItSends(t *testing.T) {
	t.Parallel()
	var request *http.Request
	var body string
	url := receiver(t, func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		request, body = r, string(text)
		w.WriteHeader(http.StatusNoContent)
	})
	hook := webhook(t, deadletter.WebhookOptions{URL: url, Secrets: func() []string { return []string{secret} }})
	require.OK(t, hook.Notify(t.Context(), aLetter))
	want := `{"letters":[{"group":"g","tag":"t","key":"k \u003c1\u003e","reason":"exhausted","attempts":5,"replays":1,` +
		`"dead_at":"0001-01-01T00:00:00Z","created_at":"0001-01-01T00:00:00Z","remark":"no","body_sha256":"ab",` +
		`"parked":false}]}`
	assert.Is(t, request.Method+request.Header.Get("Content-Type")+body, "POSTapplication/json"+want, "posted")
	header := request.Header.Get(deadletter.SignatureHeader)
	now := time.Now()
	unsigned, _, _ := strings.Cut(header, ",")
	sum := hmac.New(sha256.New, nil)
	sum.Write([]byte(strings.TrimPrefix(unsigned, "t=") + "." + body))
	// by somebody who hopes for a receiver without a secret
	forged := unsigned + ",v1=" + hex.EncodeToString(sum.Sum(nil))
	// while the secret is changed, who knows the former and who knows the next one both find theirs
	both := deadletter.Signature([]string{"former", "", "next"}, []byte(body), now)
	assert.Is(t, deadletter.Signature([]string{""}, []byte(body), now), "", "signed without a secret")
	for name, c := range map[string]struct {
		secret, header, body string
		at                   time.Time
		good                 bool
	}{
		"as it is":                    {secret, header, body, now, true},
		"beside another one":          {secret, header + ",v1=00,v2=x", body, now, true},
		"the former of two":           {"former", both, body, now, true},
		"the next of two":             {"next", both, body, now, true},
		"none of two":                 {"", both, body, now, false},
		"another secret":              {secret + "x", header, body, now, false},
		"another body":                {secret, header, body + " ", now, false},
		"another time in it":          {secret, strings.Replace(header, "t=1", "t=2", 1), body, now, false},
		"sent again after an hour":    {secret, header, body, now.Add(time.Hour), false},
		"signed by a clock far ahead": {secret, header, body, now.Add(-time.Hour), false},
		"no header":                   {secret, "", body, now, false},
		"no signature":                {secret, unsigned, body, now, false},
		"no secret":                   {"", forged, body, now, false},
		"no hex":                      {secret, unsigned + ",v1=zz", body, now, false},
	} {
		err := deadletter.VerifySignature(c.secret, c.header, []byte(c.body), c.at, 5*time.Minute)
		assert.That(t, c.good == (err == nil) && (c.good || errors.Is(err, deadletter.ErrSignature)),
			"%s: %v, want good %v", name, err, c.good)
	}
}

func TestOnlyAnAnswerOf2xxCountsAsTold(t *testing.T) {
	t.Parallel()
	elsewhere := receiver(t, func(http.ResponseWriter, *http.Request) {
		t.Error("the webhook went where it was not sent")
	})
	answers := map[string]http.HandlerFunc{ // by what the error says; told after any that ends with "told"
		"EOF":     func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"Timeout": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"without an end, told": func(w http.ResponseWriter, r *http.Request) { // its status has said all
			w.WriteHeader(200)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		},
	}
	for code, want := range map[int]string{200: "200, told", 202: "202, told", 400: "400", 410: "410", 500: "500"} {
		answers[want] = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	for _, code := range []int{301, 303, 307, 308} {
		answers[fmt.Sprint(code)] = func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere, code) }
	}
	for want, answer := range answers {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			url := receiver(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body) // else the server does not notice that the client is gone
				answer(w, r)
			})
			hook := webhook(t, deadletter.WebhookOptions{URL: url, Secrets: func() []string { return []string{secret} },
				Timeout: 5 * time.Second})
			err := hook.Notify(t.Context(), aLetter)
			if strings.HasSuffix(want, "told") {
				assert.OK(t, err)
			} else {
				assert.Has(t, fmt.Sprint(err), want, "Notify")
			}
		})
	}
}

func TestNoErrorOfTheWebhookHoldsItsAddress(t *testing.T) {
	t.Parallel()
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	open := receiver(t, http.NotFound)
	for _, server := range []string{closed.URL, open} {
		url := strings.Replace(server, "http://", "http://user:password@", 1) + "/token-in-path?key=token-in-query"
		err := webhook(t, deadletter.WebhookOptions{URL: url}).Notify(t.Context(), aLetter)
		require.That(t, err != nil, "notified")
		s := err.Error()
		assert.That(t, !strings.Contains(s, "password") && !strings.Contains(s, "token"), "%v holds a secret", err)
	}
	for _, url := range []string{"", "ftp://token.example", "http://%zztoken", "token", "http:///token"} {
		_, err := deadletter.NewWebhook(deadletter.WebhookOptions{URL: url})
		assert.That(t, err != nil && !strings.Contains(err.Error(), "token"), "%q: %v, want a refusal without it", url, err)
	}
}
