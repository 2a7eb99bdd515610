package http

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"go.uber.org/goleak"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// message is one as the engine gives it.
func message() consumer.Message {
	return consumer.Message{
		Identity: dedup.Identity{Group: "g", Tag: "stock/rollback", Key: "20261121-0001 ü"},
		Body:     []byte(`{"order_sn":"20261121-0001"}`), Attempt: 3,
		Headers: map[string]any{
			"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": []byte("a=b"),
		},
	}
}

func serve(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

func call(t *testing.T, o Options, m consumer.Message) error {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = 5 * time.Second
	}
	c := require.Get(newCaller(o))(t)
	t.Cleanup(func() { c.access.kept.CloseIdleConnections() })
	ctx, cancel := context.WithTimeout(t.Context(), o.Timeout)
	defer cancel()
	return c.call(ctx, m)
}

func TestWhatIsPosted(t *testing.T) {
	t.Parallel()
	var got *http.Request
	var body []byte
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		got = r
		body, _ = io.ReadAll(r.Body)
	})
	m := message()
	o := Options{Target: s.URL + "/rollbacks", Token: func() string { return "word" },
		Secrets: func() []string { return []string{"old", "new"} }}
	require.OK(t, call(t, o, m))
	assert.Is(t, got.Method+" "+got.URL.Path+" "+string(body), "POST /rollbacks "+string(m.Body), "posted")
	for header, want := range map[string]string{
		"Idempotency-Key": KeyOf(m.Identity), "X-Rollbackd-Attempt": "3", "Content-Type": "application/json",
		"X-Rollbackd-Message": "g/stock%2Frollback/20261121-0001%20%C3%BC", "Authorization": "Bearer word",
		"Traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "Tracestate": "a=b",
	} {
		assert.Is(t, got.Header.Get(header), want, "%s", header)
	}
	for _, secret := range o.Secrets() { // as the webhook is
		signature := got.Header.Get(deadletter.SignatureHeader)
		assert.OK(t, deadletter.VerifySignature(secret, signature, body, time.Now(), time.Minute), secret)
	}
	// and of a message that says what it is, and what no header can hold
	m.ContentType, m.Headers = "application/vnd.shop+json; v=1", map[string]any{"traceparent": "x\r\ny"}
	require.OK(t, call(t, Options{Target: s.URL}, m))
	assert.Is(t, got.Header.Get("Content-Type"), m.ContentType, "Content-Type")
	assert.Is(t, got.Header.Get("Traceparent"), "", "Traceparent")
}

// The key must never change: services remember it for as long as they know the order.
func TestTheKeyNamesTheIdentityAlone(t *testing.T) {
	t.Parallel()
	id := dedup.Identity{Group: "stock-rollback", Tag: "stock.rollback", Key: "20261121-0001"}
	assert.Is(t, KeyOf(id), "tLx4XlthJdybyOBdG-tT96tqRWEog9rM4B1ShTDIKk0", "the key, which is part of the contract")
	seen := map[string]dedup.Identity{}
	for _, other := range []dedup.Identity{
		id, {Group: "a", Tag: "b", Key: "c"}, {Group: "ab", Tag: "", Key: "c"}, {Group: "a", Tag: "bc", Key: ""},
	} {
		key := KeyOf(other)
		was, twice := seen[key]
		assert.That(t, !twice && len(key) == 43, "%v and %v have the key %q", was, other, key)
		seen[key] = other
	}
}

func TestWhatAnAnswerMeans(t *testing.T) {
	t.Parallel()
	status := http.StatusOK
	answer := "no such goods:\x1b[31m 1001\r\n" + strings.Repeat("x", 2000)
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, answer)
	})
	for want, codes := range map[string][]int{
		"applied": {200, 201, 202, 204}, "misconfigured": {300, 301, 302, 303, 304, 307, 308, 401, 403, 407},
		"permanent": {400, 402, 404, 405, 406, 410, 411, 412, 413, 415, 418, 422, 451, 499}, "later": {409, 429},
		"failed": {408, 423, 425, 500, 501, 505, 599}, "unavailable": {502, 503, 504},
	} {
		for _, status = range codes {
			err := call(t, Options{Target: s.URL}, message())
			kind, after := consumer.CallMeans(err)
			assert.Is(t, kind.String(), want, "%d is %s (%v)", status, kind, err)
			assert.That(t, want != "later" || after == 7*time.Second, "%d: after %v, want 7s", status, after)
			if want == "permanent" || want == "failed" {
				assert.Has(t, err.Error(), "no such goods: [31m 1001 xxx", "%d: the error", status)
				assert.AtMost(t, len(err.Error()), 1200, "%d: bytes of the error", status)
			}
		}
	}
}

func TestWhatNoAnswerMeans(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	hangs := serve(t, func(http.ResponseWriter, *http.Request) { <-release })
	t.Cleanup(func() { close(release) }) // before its server closes
	cuts := serve(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	foreign := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(foreign.Close)
	foreign.Config.ErrorLog = nil
	for name, test := range map[string]struct{ target, kind, says string }{ // the kind is a consumer.CallMeaning's
		"refused":     {"http://127.0.0.1:1", "unavailable", "no connection: "},
		"no name":     {"http://no-such-host.invalid/", "unavailable", "no connection"},
		"timeout":     {hangs.URL, "unanswered", "perhaps applied: no answer within 1s"},
		"cut":         {cuts.URL, "unanswered", "perhaps applied: "},
		"certificate": {foreign.URL, "misconfigured", "its certificate: "},
	} {
		t.Run(name, func(t *testing.T) {
			timeout := 20 * time.Second // on a busy machine a handshake takes a while
			if test.target == hangs.URL {
				timeout = time.Second
			}
			err := call(t, Options{Target: test.target + "/secret", Timeout: timeout}, message())
			if kind, _ := consumer.CallMeans(err); kind.String() != test.kind || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%s: %v; want %s: %s", kind, err, test.kind, test.says)
			}
			assert.That(t, err == nil || !strings.Contains(err.Error(), "secret"), "the error shows the path: %v", err)
		})
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for header, want := range map[string]time.Duration{
		"": 0, "0": 0, "120": 2 * time.Minute, "-1": 0, "x": 0, "1e3": 0, "1.5": 0, "+1": 0, "4294967295": 24 * time.Hour,
		"4294967296": 24 * time.Hour, "99999999999999999999": 24 * time.Hour, "18446744073709551615": 24 * time.Hour,
		"-99999999999999999999": 0, "Sat, 21 Nov 2026 12:00:00": 0, "Sat, 21 Nov 2026 12:00:30 GMT": 30 * time.Second,
		"Sat, 21 Nov 2026 11:00:00 GMT": 0, "Tue, 21 Nov 2045 11:00:00 GMT": 24 * time.Hour,
	} {
		assert.Is(t, retryAfter(header, now), want, "Retry-After: %s", header)
	}
}

// Given a service that asks for a certificate of its own people, when the files of the client are changed, then the
// next call uses what stands in them, and files that do not belong together change nothing.
func TestCertificatesAreReadAgain(t *testing.T) {
	t.Parallel()
	trusted, other := stack.NewAuthority(t, "trusted"), stack.NewAuthority(t, "other")
	server, ours := trusted.Issue(stack.Certificate{Hosts: []string{"127.0.0.1"}}), trusted.Issue(stack.Certificate{})
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	s.TLS = trusted.Client(&server)
	s.TLS.ClientAuth = tls.RequireAnyClientCert
	s.StartTLS()
	t.Cleanup(s.Close)
	var warned []error
	c := require.Get(newCaller(Options{
		Target: s.URL, Timeout: 5 * time.Second, Warn: func(err error) { warned = append(warned, err) },
		CAFile: trusted.File, CertFile: ours.Cert, KeyFile: ours.Key,
	}))(t)
	t.Cleanup(func() { c.access.kept.CloseIdleConnections() })
	again := func() error {
		c.access.asked = time.Time{}
		return c.call(t.Context(), message())
	}
	require.OK(t, again())
	require.OK(t, os.WriteFile(ours.Key, []byte("half a file"), 0o600))
	for what, err := range map[string]error{"the files are broken": again(), "they still are": again()} {
		assert.That(t, err == nil && len(warned) == 1, "%s: %v, warned %v; want the former certificate and one warning", what,
			err, warned)
	}
	trusted.Replace(&ours, stack.Certificate{})
	// and one who does not know us
	stranger := call(t, Options{Target: s.URL, CAFile: trusted.File}, message())
	require.OK(t, os.Rename(other.File, trusted.File)) // of who has signed nothing
	for what, err := range map[string]error{"without a client certificate": stranger, "with another CA": again()} {
		kind, _ := consumer.CallMeans(err)
		assert.Is(t, kind, consumer.CallMisconfigured, "%s the call is", what)
	}
}

func TestATargetThatCannotBeCalledIsRefused(t *testing.T) {
	t.Parallel()
	for _, target := range []string{"", "ftp://h/", "http://", "h:80", "http://u:p@h/", "http://%zz"} {
		_, err := New(Options{Target: target, Timeout: time.Second})
		assert.That(t, err != nil && !strings.Contains(err.Error(), "u:p"), "%q: %v", target, err)
	}
	_, err := New(Options{Target: "https://h/", CAFile: "/no/such/file"})
	assert.That(t, err != nil, "a CA that cannot be read is not refused")
}

// raw is the connection itself.
func raw(w http.ResponseWriter) net.Conn {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	return conn
}

// Given connections that were used before, all of which the service closes as soon as it has the next request, when a
// call is made, then it is made once more at most, on a connection of its own, and that is counted.
func TestACallIsRepeatedOnceAtMost(t *testing.T) {
	t.Parallel()
	const pooled = 8
	hangUp := func(w http.ResponseWriter, _ int) { _ = raw(w).Close() }
	for name, test := range map[string]struct {
		body    string
		then    func(w http.ResponseWriter, onConn int) // how the service answers once the pool is full
		posts   int
		repeats int
		kind    consumer.CallMeaning
	}{
		"the connections are dead": {`{"a":1}`, func(w http.ResponseWriter, onConn int) {
			if onConn > 1 {
				_ = raw(w).Close()
			}
		}, 2, 1, consumer.CallApplied},
		"the service is dead": {`{"a":1}`, hangUp, 2, 1, consumer.CallUnanswered},
		"reset": {`{"a":1}`, func(w http.ResponseWriter, _ int) {
			conn := raw(w)
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = conn.Close()
		}, 2, 1, consumer.CallUnanswered},
		"half an answer": {`{"a":1}`, func(w http.ResponseWriter, _ int) {
			conn := raw(w)
			_, _ = io.WriteString(conn, "HTTP/1.1 20")
			_ = conn.Close()
		}, 1, 0, consumer.CallUnanswered},
		"no body": {"", hangUp, 1, 0, consumer.CallUnanswered},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			full := make(chan struct{})
			var mu sync.Mutex
			var came []string
			on := map[string]int{} // requests, by the connection's other end
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				mu.Lock()
				came = append(came, r.Header.Get(HeaderKey)+" "+string(body))
				on[r.RemoteAddr]++
				n, onConn := len(came), on[r.RemoteAddr]
				mu.Unlock()
				switch {
				case n < pooled:
					<-full
				case n == pooled:
					close(full)
				default:
					test.then(w, onConn)
				}
			})
			repeats := 0
			c := require.Get(newCaller(Options{
				Target: s.URL, Timeout: 5 * time.Second, Concurrency: pooled, Repeated: func() { repeats++ },
			}))(t)
			t.Cleanup(func() { c.access.kept.CloseIdleConnections() })
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			var wg sync.WaitGroup
			for range pooled {
				wg.Go(func() { assert.OK(t, c.call(ctx, message())) })
			}
			wg.Wait()
			m := message()
			m.Body = []byte(test.body)
			kind, _ := consumer.CallMeans(c.call(ctx, m))
			mu.Lock()
			defer mu.Unlock()
			got := came[pooled:]
			assert.That(t, len(got) == test.posts && repeats == test.repeats && kind == test.kind,
				"%d POSTs, %d repeats, %v; want %d, %d, %v", len(got), repeats, kind, test.posts, test.repeats, test.kind)
			for _, r := range got {
				assert.Is(t, r, KeyOf(m.Identity)+" "+test.body, "a POST")
			}
		})
	}
}

// Given answers with two megabytes of reason, header or body, with control characters, or without an end, then the
// status decides, at once, and what is said of it is short and does nothing to a terminal.
func TestAnAnswerIsJudgedByItsStatusHoweverItGoesOn(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("large \x1b[31m", 2<<20/11)
	for name, test := range map[string]struct {
		answer string
		then   string        // again and again
		every  time.Duration // between two of then
		kind   consumer.CallMeaning
	}{
		"large reason, away":     {answer: "HTTP/1.1 503 " + large + "\r\n\r\n", kind: consumer.CallUnavailable},
		"large reason, refused":  {answer: "HTTP/1.1 400 " + large + "\r\n\r\n", kind: consumer.CallPermanent},
		"large reason, redirect": {answer: "HTTP/1.1 302 " + large + "\r\n\r\n", kind: consumer.CallMisconfigured},
		"no HTTP":                {answer: large + "\r\n\r\n", kind: consumer.CallUnanswered},
		"a length of words": {
			answer: "HTTP/1.1 500 x\r\nContent-Length: " + large + "\r\n\r\n", kind: consumer.CallUnanswered,
		},
		"endless": {answer: "HTTP/1.1 500 x\r\n\r\n", then: strings.Repeat("x", 1<<10), kind: consumer.CallFailed},
		"slow":    {answer: "HTTP/1.1 500 x\r\n\r\n", then: "x", every: 50 * time.Millisecond, kind: consumer.CallFailed},
		"slow, applied": {
			answer: "HTTP/1.1 200 x\r\n\r\n", then: "x", every: 50 * time.Millisecond, kind: consumer.CallApplied,
		},
		"slow, another protocol": {
			answer: "HTTP/1.1 101 x\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", then: "x", every: 50 * time.Millisecond,
			kind: consumer.CallMisconfigured,
		},
		"body that never comes": {answer: "HTTP/1.1 422 x\r\nContent-Length: 9\r\n\r\n", kind: consumer.CallPermanent},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.ReadAll(r.Body)
				conn := raw(w)
				_, err := io.WriteString(conn, test.answer)
				for test.then != "" && err == nil {
					<-time.After(test.every)
					_, err = io.WriteString(conn, test.then)
				}
			})
			began := time.Now()
			err := call(t, Options{Target: s.URL, Timeout: 20 * time.Second}, message())
			assert.AtMost(t, time.Since(began), 15*time.Second, "it took")
			kind, _ := consumer.CallMeans(err)
			assert.Is(t, kind, test.kind, "it is (%.200v)", err)
			if err == nil {
				return
			}
			if text := err.Error(); len(text) > 1300 || strings.ContainsFunc(text, unicode.IsControl) {
				t.Errorf("%d bytes: %.200q", len(text), text)
			}
		})
	}
}
