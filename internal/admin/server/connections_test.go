package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
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

// besieged is a server that strangers connect to.
type besieged struct {
	t    *testing.T
	addr string
}

// besiege serves what guarded says, behind the tokens of ann and bob.
func besiege(t *testing.T, guarded http.HandlerFunc) besieged {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens")
	writeFile(t, path, "ann full token-of-ann\nbob read token-of-bob\n")
	g := newGuard(t, GuardOptions{TokensFile: path}, io.Discard)
	return besieged{t, serve(t, Options{
		Addr: "127.0.0.1:0", Health: func() Readiness { return Readiness{Consuming: true} }, Guard: g,
		Guarded: map[string]http.Handler{"/": g.Protect(Look, guarded)},
	})}
}

// connect opens a connection from an address of this machine and sends text.
func (b besieged) connect(from, text string) net.Conn {
	b.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c := require.Get(d.DialContext(b.t.Context(), "tcp", b.addr))(b.t)
	b.t.Cleanup(func() { _ = c.Close() })
	_, _ = io.WriteString(c, text) // the server may have dropped it by now
	return c
}

// open counts the connections that the server has not ended.
func open(conns []net.Conn) (n int) {
	for _, c := range conns {
		_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
		if _, err := c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			n++
		}
	}
	return n
}

// alive asks for /healthz on a new connection, and says how long the answer took.
func (b besieged) alive() time.Duration {
	b.t.Helper()
	began := time.Now()
	assert.OK(b.t, Alive(b.t.Context(), b.addr, time.Minute), "/healthz:")
	return time.Since(began)
}

// ask sends a request of a person and gives its status when it is answered.
func (b besieged) ask(token string) (status int, retry string) {
	b.t.Helper()
	req, _ := http.NewRequestWithContext(b.t.Context(), http.MethodGet, "http://"+b.addr+"/", http.NoBody) // which is one
	req.Close = true
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		b.t.Error(err)
		return 0, ""
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, resp.Header.Get("Retry-After")
}

// What strangers send to hold a connection: a part of the headers, and headers whose body never comes.
var halves = []string{
	"", "GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("a", 7<<10),
	"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\nx",
	"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("a", 15<<10), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
}

// Given strangers that open connections without end and say half of what they want, then only so many are open,
// /healthz answers meanwhile and afterwards, and who came from another address keeps his connection.
func TestStrangersThatHoldConnectionsKeepNobodyOut(t *testing.T) {
	t.Parallel()
	b := besiege(t, func(http.ResponseWriter, *http.Request) {})
	other := b.connect("127.0.0.3", "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
	answers := bufio.NewReader(other)
	healthy := func() error {
		_ = other.SetReadDeadline(time.Now().Add(time.Minute))
		resp, err := http.ReadResponse(answers, nil)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, resp.Body)
		return errors.Join(err, resp.Body.Close())
	}
	require.OK(t, healthy())
	all := make([][]net.Conn, 2)
	var siege sync.WaitGroup
	for i := range all {
		siege.Go(func() {
			for n := range 600 {
				all[i] = append(all[i], b.connect("127.0.0.2", halves[n%len(halves)]))
			}
		})
	}
	took := make([]time.Duration, 20)
	for i := range took {
		took[i] = b.alive()
	}
	siege.Wait()
	slices.Sort(took) // the machine itself may hold up some of them
	assert.AtMost(t, took[len(took)/2], time.Second, "half of the times took /healthz amid a siege")
	b.alive()
	assert.AtMost(t, open(append(all[0], all[1]...)), mostOpen/2, "connections from one address are open")
	require.Get(io.WriteString(other, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"))(t)
	assert.OK(t, healthy(), "who came from another address lost his connection:")
	for from := range 3 { // so many that all places are taken
		for range 150 {
			all[0] = append(all[0], b.connect(fmt.Sprint("127.0.0.", 4+from), halves[1]))
		}
	}
	b.alive()
	assert.AtMost(t, open(append(all[0], all[1]...)), mostOpen, "connections are open")
}

// Given headers that do not end, or are too many, then their connection ends soon.
func TestHeadersEndSoon(t *testing.T) {
	t.Parallel()
	b := besiege(t, func(http.ResponseWriter, *http.Request) {})
	began := time.Now()
	c := b.connect("127.0.0.1", halves[1])
	_ = c.SetReadDeadline(began.Add(time.Minute))
	_, err := io.Copy(io.Discard, c)
	require.That(t, !errors.Is(err, os.ErrDeadlineExceeded), "half a header holds a connection for a minute")
	assert.AtMost(t, time.Since(began), 10*headersWithin, "half a header holds a connection for")
	large := b.connect("127.0.0.1", "GET /healthz HTTP/1.1\r\nX: "+strings.Repeat("a", 13<<10)+"\r\n\r\n")
	resp := require.Get(http.ReadResponse(bufio.NewReader(large), nil))(t)
	defer resp.Body.Close()
	assert.Is(t, resp.StatusCode, http.StatusRequestHeaderFieldsTooLarge, "headers of 13 KiB: HTTP")
}

// Given a person whose requests take for ever, then he gets so many places and no more, strangers do not take them
// away, and other people and probes are answered.
func TestNobodyTakesAllPlaces(t *testing.T) {
	t.Parallel()
	const asked = mostOpen/8 + 20
	begun, end := make(chan struct{}, 2*asked), make(chan struct{})
	b := besiege(t, func(_ http.ResponseWriter, r *http.Request) {
		if Who(r.Context()).Name == "ann" {
			begun <- struct{}{}
			<-end
		}
	})
	var asking sync.WaitGroup
	var mu sync.Mutex
	answers := map[int]int{}
	refused := make(chan struct{}, asked)
	for range asked {
		asking.Go(func() {
			status, retry := b.ask("token-of-ann")
			mu.Lock()
			answers[status]++
			mu.Unlock()
			if status == http.StatusServiceUnavailable && retry != "" {
				refused <- struct{}{}
			}
		})
	}
	for range asked - mostOpen/8 {
		<-refused
	}
	for range mostOpen / 8 {
		<-begun
	}
	for range mostOpen {
		b.connect("127.0.0.1", halves[1])
	}
	b.alive()
	status, _ := b.ask("token-of-bob")
	assert.That(t, status == http.StatusOK, "another person gets HTTP %d", status)
	close(end)
	asking.Wait()
	assert.Is(t, answers[http.StatusOK], mostOpen/8, "he is answered with %v", answers)
	status, _ = b.ask("token-of-ann")
	assert.That(t, status == http.StatusOK, "after that he gets HTTP %d", status)
}

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
