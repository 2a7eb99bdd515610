package deadletter_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

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
	var body []byte
	url := receiver(t, func(w http.ResponseWriter, r *http.Request) {
		request = r
		body, _ = io.ReadAll(r.Body)
		w.WriteHeader(http.StatusNoContent)
	})
	require.OK(t, webhook(t, deadletter.WebhookOptions{URL: url, Secrets: func() []string {
		return []string{secret}
	}}).Notify(t.Context(), aLetter))
	want := `{"letters":[{"group":"g","tag":"t","key":"k \u003c1\u003e","reason":"exhausted","attempts":5,"replays":1,` +
		`"dead_at":"0001-01-01T00:00:00Z","created_at":"0001-01-01T00:00:00Z","remark":"no","body_sha256":"ab",` +
		`"parked":false}]}`
	if string(body) != want || request.Method != http.MethodPost ||
		request.Header.Get("Content-Type") != "application/json" {
		t.Errorf("%s of %s:\n%s\nwant\n%s", request.Method, request.Header.Get("Content-Type"), body, want)
	}
	header := request.Header.Get(deadletter.SignatureHeader)
	now := time.Now()
	seconds, _, _ := strings.Cut(strings.TrimPrefix(header, "t="), ",")
	sum := hmac.New(sha256.New, nil)
	sum.Write([]byte(seconds + "." + string(body)))
	// by somebody who hopes for a receiver without a secret
	forged := "t=" + seconds + ",v1=" + hex.EncodeToString(sum.Sum(nil))
	for name, c := range map[string]struct {
		secret, header, body string
		at                   time.Time
		good                 bool
	}{
		"as it is":                    {secret, header, string(body), now, true},
		"beside another one":          {secret, header + ",v1=00,v2=x", string(body), now, true},
		"another secret":              {secret + "x", header, string(body), now, false},
		"another body":                {secret, header, string(body) + " ", now, false},
		"another time in it":          {secret, strings.Replace(header, "t=1", "t=2", 1), string(body), now, false},
		"sent again after an hour":    {secret, header, string(body), now.Add(time.Hour), false},
		"signed by a clock far ahead": {secret, header, string(body), now.Add(-time.Hour), false},
		"no header":                   {secret, "", string(body), now, false},
		"no signature":                {secret, strings.Split(header, ",")[0], string(body), now, false},
		"no secret":                   {"", forged, string(body), now, false},
		"no hex":                      {secret, strings.Split(header, ",")[0] + ",v1=zz", string(body), now, false},
	} {
		err := deadletter.VerifySignature(c.secret, c.header, []byte(c.body), c.at, 5*time.Minute)
		if c.good != (err == nil) || !c.good && !errors.Is(err, deadletter.ErrSignature) {
			t.Errorf("%s: %v, want good %v", name, err, c.good)
		}
	}
}

// While the secret is changed, who knows the former and who knows the next one both find theirs.
func TestTheWebhookSignsWithBothSecretsWhileOneIsChanged(t *testing.T) {
	t.Parallel()
	var header string
	var body []byte
	url := receiver(t, func(w http.ResponseWriter, r *http.Request) {
		header = r.Header.Get(deadletter.SignatureHeader)
		body, _ = io.ReadAll(r.Body)
		w.WriteHeader(http.StatusNoContent)
	})
	secrets := []string{"former"}
	hook := webhook(t, deadletter.WebhookOptions{URL: url, Secrets: func() []string { return secrets }})
	for _, c := range []struct{ now, good, bad []string }{
		{[]string{"former"}, []string{"former"}, []string{"next", ""}},
		{[]string{"former", "next", ""}, []string{"former", "next"}, []string{"", "formernext"}},
		{[]string{"next"}, []string{"next"}, []string{"former"}},
		{[]string{""}, nil, []string{""}},
	} {
		secrets = c.now
		require.OK(t, hook.Notify(t.Context(), aLetter))
		assert.Is(t, header != "", (len(c.good) > 0), "with the secrets %q it is signed %q", c.now, header)
		for _, secret := range c.good {
			if err := deadletter.VerifySignature(secret, header, body, time.Now(), time.Minute); err != nil {
				t.Errorf("signed with %q, checked with %q: %v", c.now, secret, err)
			}
		}
		for _, secret := range c.bad {
			assert.Error(t, deadletter.VerifySignature(secret, header, body, time.Now(), time.Minute), deadletter.ErrSignature,
				"signed with %q, checked with %q", c.now, secret)
		}
	}
}

func TestOnlyAnAnswerOf2xxCountsAsTold(t *testing.T) {
	t.Parallel()
	elsewhere := receiver(t, func(http.ResponseWriter, *http.Request) {
		t.Error("the webhook went where it was not sent")
	})
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	redirect := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere, code) }
	}
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   string // in the error; "": notified
	}{
		"200":           {status(200), ""},
		"202":           {status(202), ""},
		"301":           {redirect(301), "301"},
		"303":           {redirect(303), "303"},
		"307":           {redirect(307), "307"},
		"308":           {redirect(308), "308"},
		"400":           {status(400), "400"},
		"410":           {status(410), "410"},
		"500":           {status(500), "500"},
		"hangs up":      {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "EOF"},
		"never answers": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "Timeout"},
		"never ends": {func(w http.ResponseWriter, r *http.Request) { // its status has said all
			w.WriteHeader(200)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answer := func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body) // else the server does not notice that the client is gone
				c.answer(w, r)
			}
			hook := webhook(t, deadletter.WebhookOptions{URL: receiver(t, answer), Secrets: func() []string {
				return []string{secret}
			}, Timeout: 2 * time.Second})
			err := hook.Notify(t.Context(), aLetter)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("Notify = %v, want %q", err, c.want)
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
		if err == nil {
			t.Fatal("notified")
		}
		for _, s := range []string{"password", "token"} {
			if strings.Contains(err.Error(), s) {
				t.Errorf("%v holds a secret", err)
			}
		}
	}
	for _, url := range []string{"", "ftp://token.example", "http://%zztoken", "token", "http:///token"} {
		if _, err := deadletter.NewWebhook(deadletter.WebhookOptions{URL: url}); err == nil ||
			strings.Contains(err.Error(), "token") {
			t.Errorf("%q: %v, want a refusal without it", url, err)
		}
	}
}
