package server

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// guarded is a guard with a token, in a bubble whose time moves only where a test sleeps.
func guarded(t *testing.T, metrics prometheus.Registerer, logs io.Writer) *Guard {
	t.Helper()
	return newGuard(t, GuardOptions{Token: func() string { return "the-one" }, Metrics: metrics}, logs)
}

// tries sends so many wrong tokens from an address, each another one, and says how many were looked at.
func tries(g *Guard, peer string, n int) (looked int) {
	for range n {
		if with(g, peer, "guess-"+rand.Text()).Code == http.StatusUnauthorized {
			looked++
		}
	}
	return looked
}

// with asks with a token.
func with(g *Guard, peer, text string) *httptest.ResponseRecorder {
	return asked{peer: peer, header: token(text)}.ask(g, Look)
}

// Given an address from which no right token came, when it tries many, then some are looked at and later one now and
// then; meanwhile not even the right one is, so that a guess tells nothing. Others do not notice.
func TestAStrangerTriesFewTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := guarded(t, nil, io.Discard)
		assert.Is(t, tries(g, "10.0.0.7:1", 500), wrongOfOne, "tokens were looked at")
		w := with(g, "10.0.0.7:2", "the-one")
		assert.That(t, w.Code == http.StatusTooManyRequests && w.Header().Get("Retry-After") == "5" &&
			strings.Contains(w.Body.String(), "try again in 5 s"), "the right one, after too many: HTTP %d, Retry-After %q: %s",
			w.Code, w.Header().Get("Retry-After"), w.Body)
		page := (asked{peer: "10.0.0.7:1", header: http.Header{"Authorization": {"Bearer x"},
			"Accept": {"text/html"}}}).ask(g, Look)
		assert.That(t, page.Code == http.StatusTooManyRequests, "a browser: HTTP %d", page.Code)
		answer := httptest.NewRecorder()
		signIn := asked{method: http.MethodPost, peer: "10.0.0.7:3"}.request("/sign-in")
		if _, err := g.SignIn(answer, signIn, "the-one"); err == nil || answer.Header().Get("Retry-After") != "5" {
			t.Errorf("signing in is another way to try tokens: %v", err)
		}
		assert.Is(t, with(g, "10.0.0.8:1", "the-one").Code, http.StatusOK, "another address: HTTP")
		time.Sleep(wrongOfOneEvery) // by the clock of the bubble
		assert.Is(t, with(g, "10.0.0.7:1", "the-one").Code, http.StatusOK, "when it has waited: HTTP")
		time.Sleep(time.Hour)
		assert.Is(t, tries(g, "10.0.0.7:1", 500), wrongOfOne, "an hour later tokens were looked at")
	})
}

// Given a program and a person behind the same proxy as a stranger, when that one tries tokens, then neither of them is
// locked out; only a flood hinders the program, while it lasts.
func TestARightTokenIsNotLockedOutByStrangersBehindTheSameProxy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := guarded(t, nil, io.Discard)
		const proxy = "10.0.0.1:1"
		signed := httptest.NewRecorder()
		require.Get(g.SignIn(signed, asked{method: http.MethodPost, peer: proxy}.request("/sign-in"), "the-one"))(t)
		for range 60 {
			assert.AtMost(t, tries(g, proxy, 30), wrongOfOne, "tokens were looked at")
			require.Is(t, with(g, proxy, "the-one").Code, http.StatusOK, "the program: HTTP")
			time.Sleep(time.Second)
		}
		assert.AtMost(t, tries(g, proxy, 10*friends), 1, "tokens of a flood were looked at")
		assert.Is(t, with(g, proxy, "the-one").Code, http.StatusTooManyRequests,
			"in a flood guesses at the program's own token have no bound: HTTP")
		assert.Is(t, (asked{peer: proxy, cookie: signed.Result().Cookies()[0]}).ask(g, Look).Code, http.StatusOK,
			"the person, in the flood: HTTP")
		time.Sleep(time.Second)
		assert.Is(t, with(g, proxy, "the-one").Code, http.StatusOK, "after the flood: HTTP")
	})
}

// Given a stranger with very many addresses, then all of them together try few tokens, and a program is not locked out.
func TestManyStrangersTryFewTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := guarded(t, nil, io.Discard)
		require.Is(t, with(g, "192.0.2.1:1", "the-one").Code, http.StatusOK, "the program: HTTP")
		looked := 0
		for i := range 100 { // a network of IPv6 is one address
			looked += tries(g, fmt.Sprintf("[2001:db8::%x]:1", i), 1)
		}
		assert.Is(t, looked, wrongOfOne, "tokens from one network were looked at")
		for i := range 2000 {
			looked += tries(g, fmt.Sprintf("[2001:db8:0:%x::%x]:1", i%500, i), 1)
		}
		assert.Is(t, looked, wrongOfAll, "tokens were looked at")
		assert.Is(t, with(g, "192.0.2.1:1", "the-one").Code, http.StatusOK, "the program: HTTP")
	})
}

// Given a program with a token that was changed, which asks again and again, then it is told so each time, and who
// comes from its address with a right token for the first time is let in.
func TestAForgottenProgramLocksNobodyOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := guarded(t, nil, io.Discard)
		for range 10 * wrongOfAll {
			require.Is(t, with(g, "10.0.0.1:1", "the-one-of-last-year").Code, http.StatusUnauthorized, "the program: HTTP")
		}
		assert.Is(t, with(g, "10.0.0.1:1", "the-one").Code, http.StatusOK, "another one from there: HTTP")
	})
}

// The log and the metric say how many tokens were refused, the log once a minute.
func TestRefusedTokensAreCountedAndToldOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logs bytes.Buffer
		metrics := prometheus.NewRegistry()
		g := guarded(t, metrics, &logs)
		tries(g, "10.0.0.7:1", 100)
		time.Sleep(warnEvery)
		tries(g, "10.0.0.7:1", 1)
		n := strings.Count(logs.String(), "unknown tokens are refused")
		assert.That(t, n == 2 && strings.Contains(logs.String(), "since_last_line=1 last_from=10.0.0.7:1") &&
			strings.Contains(logs.String(), "since_last_line=100 ") && !strings.Contains(logs.String(), "guess-"),
			"%d lines, want 2 with their counts and no token:\n%s", n, logs.String())
		families, err := metrics.Gather()
		require.That(t, err == nil && len(families) == 1 && families[0].GetName() == "rollbackd_refused_tokens_total",
			"%v, %v", families, err)
		counts := map[string]float64{}
		for _, m := range families[0].GetMetric() {
			counts[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
		}
		assert.That(t, counts[whyUnknown] == wrongOfOne+1 && counts[whyTooMany] == 100-wrongOfOne, "the metric says %v",
			counts)
	})
}
