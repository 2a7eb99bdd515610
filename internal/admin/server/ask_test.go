package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// serve answers on an address of a form that the setting takes, for the time of this test.
func serve(t *testing.T, o Options) (addr string) {
	t.Helper()
	o.Metrics, o.Logger = prometheus.NewRegistry(), slog.New(slog.DiscardHandler)
	s, err := Listen(t.Context(), o)
	if err != nil {
		t.Skipf("this machine cannot listen on %s: %v", o.Addr, err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var serving sync.WaitGroup
	serving.Go(func() { assert.OK(t, s.Serve(ctx)) })
	t.Cleanup(func() { stop(); serving.Wait() })
	return s.Addr()
}

// daemon serves one of which this is known, to whoever asks from this machine.
func daemon(t *testing.T, addr string, said Readiness) string {
	t.Helper()
	return serve(t,
		Options{Addr: addr, Health: func() Readiness { return said }, Guard: newGuard(t, GuardOptions{}, io.Discard)})
}

// Given a daemon that listens on an address in any of the forms that the setting takes, then it is found there, and
// what it says arrives word for word.
func TestADaemonIsAskedWhereItListens(t *testing.T) {
	const why = "stock.rollback.backstop: something in it ended the last 3 connections \u202e"
	for _, host := range []string{"", "0.0.0.0", "[::]", "127.0.0.1", "[::1]", "localhost"} {
		t.Run(host, func(t *testing.T) {
			_, port, _ := net.SplitHostPort(daemon(t, host+":0", Readiness{
				Group: "group", Queue: "queue", Consuming: true, Waiting: []string{"mysql: refused"}, Degraded: []string{why},
			}))
			got, err := Ask(t.Context(), host+":"+port, "")
			assert.That(t, err == nil && got.Group == "group" && got.Queue == "queue" && !got.Ready && !got.Draining &&
				slices.Equal(got.Waiting, []string{"mysql: refused"}) && slices.Equal(got.Degraded, []string{why}), "Ask = %+v, %v",
				got, err)
			from, err := netip.ParseAddrPort(got.From)
			assert.That(t, err == nil && from.Addr().IsLoopback() && fmt.Sprint(from.Port()) == port,
				"it is said to answer at %q, %v", got.From, err)
		})
	}
}

// Given a daemon in each of its states, then a probe says whether it is alive and whether it is ready, and why not.
func TestAProbeTellsAliveFromReady(t *testing.T) {
	for name, c := range map[string]struct {
		health       Readiness
		alive, ready error
		why          string // in the errors
	}{
		"consumes":         {Readiness{Consuming: true}, nil, nil, ""},
		"waits":            {Readiness{Waiting: []string{"mysql: refused"}}, nil, ErrNotReady, "mysql: refused"},
		"drains":           {Readiness{Consuming: true, Draining: true}, nil, ErrNotReady, "drains"},
		"starts":           {Readiness{}, nil, ErrNotReady, NotConnected},
		"is stuck":         {Readiness{Consuming: true, Stuck: "lane 2 stands"}, ErrStuck, nil, "lane 2 stands"},
		"takes, with less": {Readiness{Consuming: true, Degraded: []string{"backstop"}}, nil, nil, ""},
	} {
		addr := daemon(t, "127.0.0.1:0", c.health)
		alive, ready := Alive(t.Context(), addr, time.Minute), Ready(t.Context(), addr, time.Minute)
		assert.Error(t, alive, c.alive, "%s: alive", name)
		assert.Error(t, ready, c.ready, "%s: ready", name)
		for _, err := range []error{alive, ready} {
			assert.That(t, err == nil || strings.Contains(err.Error(), c.why), "the error %q does not say %q", err, c.why)
		}
	}
}

// Given that nobody listens, then that is told apart from somebody who gives no answer.
func TestWhereNobodyListensNobodyAnswers(t *testing.T) {
	l := require.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	addr := l.Addr().String()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := Ask(ctx, addr, "")
	assert.Error(t, err, ErrSilent, "a frozen listener, which never accepts")
	assert.Error(t, Alive(t.Context(), addr, 200*time.Millisecond), ErrSilent, "a probe of it")
	require.OK(t, l.Close())
	_, port, _ := net.SplitHostPort(addr)
	for _, form := range []string{addr, ":" + port, "0.0.0.0:" + port, "[::]:" + port} {
		_, err := Ask(t.Context(), form, "")
		assert.Error(t, err, ErrNobody, "%s", form)
	}
}

// Given another program on the port, whatever it answers, then it is not believed, not followed, and not read to its
// end.
func TestAnotherProgramIsNotTakenForADaemon(t *testing.T) {
	var followed atomic.Bool
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		followed.Store(true)
		readyz(w, Readiness{Consuming: true}.Said())
	}))
	defer elsewhere.Close()
	for name, answer := range map[string]http.HandlerFunc{
		"not found":       http.NotFound,
		"a redirect":      http.RedirectHandler(elsewhere.URL, http.StatusFound).ServeHTTP,
		"a page":          func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "<html>") },
		"an empty object": func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "{}") },
		"null":            func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "null") },
		"nothing":         func(http.ResponseWriter, *http.Request) {},
		"a daemon's and more": func(w http.ResponseWriter, _ *http.Request) {
			readyz(w, Readiness{Consuming: true, Degraded: []string{strings.Repeat("x", maxAnswerBytes)}}.Said())
		},
		"without an end": func(w http.ResponseWriter, _ *http.Request) {
			for {
				if _, err := w.Write(make([]byte, 32<<10)); err != nil {
					return
				}
			}
		},
		"a connection that ends": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(answer)
			defer s.Close()
			addr := s.Listener.Addr().String()
			got, err := Ask(t.Context(), addr, "")
			alive, ready := Alive(t.Context(), addr, time.Minute), Ready(t.Context(), addr, time.Minute)
			assert.That(t, errors.Is(err, ErrStranger) && errors.Is(alive, ErrStranger) && errors.Is(ready, ErrStranger),
				"Ask = %+v, %v; it is alive: %v, ready: %v", got, err, alive, ready)
		})
	}
	assert.That(t, !followed.Load(), "the redirect was followed")
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
