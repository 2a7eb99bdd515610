package admin_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/admin"
	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/example/producer"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestMain(m *testing.M) { stack.Main(m) }

const (
	prefix, queue = "/ops/rollbacks", "seats.free"
	// The tokens of one who may act and of one who may look.
	anna, rita = "token-of-anna-who-may-act", "token-of-rita-who-may-look"
)

// program consumes, and has a site mounted in its own server.
type program struct {
	t   *testing.T
	c   *consumer.Consumer
	url string // of the server
}

// start runs a program in whose server its site is mounted below the prefix, until the test ends.
func start(t *testing.T, o admin.Options, mount func(http.Handler) http.Handler) *program {
	servers := producer.All()
	t.Cleanup(servers.Close)
	servers.Dead(queue, "booking-1")
	apply := func(context.Context, *gorm.DB, consumer.Message) error { return nil }
	c := require.Get(consumer.Open(t.Context(), consumer.Config{
		MySQLDSN: servers.MySQLDSN, AMQPURLs: []string{servers.AMQPURL}, Queue: queue, Migrate: true,
		Logger: slog.New(slog.DiscardHandler),
	}, consumer.Each(apply)))(t)
	o.Prefix = prefix
	site := require.Get(admin.Open(t.Context(), o, c))(t)
	mux := http.NewServeMux()
	mux.Handle(prefix+"/", mount(site))
	server := httptest.NewServer(mux)
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, run := range []func(context.Context) error{c.Run, site.Run} {
		wg.Go(func() { assert.OK(t, run(ctx)) })
	}
	t.Cleanup(func() {
		stop()
		wg.Wait()
		server.Close()
	})
	p := &program{t, c, server.URL}
	poll.Until(p.t, "it consumes", func() bool { return c.State().Consuming })
	return p
}

// answer is what the server said.
type answer struct {
	*http.Response
	text string
}

// is fails the test unless the server answered with the status, and this.
func (a answer) is(t *testing.T, status int, want string) {
	t.Helper()
	assert.That(t, a.StatusCode == status && strings.Contains(a.text, want), "%s: HTTP %d, want %d and %s: %s",
		a.Request.URL, a.StatusCode, status, want, a.text)
}

// ask asks below the prefix, and follows nothing; pairs are headers.
func (p *program) ask(method, path, body string, pairs ...string) answer {
	p.t.Helper()
	r := require.Get(http.NewRequestWithContext(p.t.Context(), method, p.url+prefix+path, strings.NewReader(body)))(p.t)
	for pair := range slices.Chunk(pairs, 2) {
		r.Header.Set(pair[0], pair[1])
	}
	r.Close = true
	resp := require.Get(http.DefaultTransport.RoundTrip(r))(p.t)
	defer resp.Body.Close()
	text := require.Get(io.ReadAll(resp.Body))(p.t)
	return answer{resp, string(text)}
}

// by are the headers of somebody who sends JSON.
func by(token string) []string {
	return []string{"Authorization", "Bearer " + token, "Content-Type", "application/json"}
}

var address = regexp.MustCompile(`(?:href|src|action|data-events)="(/[^"]*)"`)

// Given a program that mounts the site below a path, in either way, with tokens; then health and metrics answer to
// anybody, everything else asks for a token, all addresses stand below the path, an act of who may only look is refused
// and does nothing, and one who may act pauses, resumes and replays.
func TestASiteMountedBelowAPathHasTheRightsOfADaemon(t *testing.T) {
	for name, mount := range map[string]func(http.Handler) http.Handler{
		"with its path":       func(h http.Handler) http.Handler { return h },
		"its path is cut off": func(h http.Handler) http.Handler { return http.StripPrefix(prefix, h) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "tokens")
			require.OK(t, os.WriteFile(file, []byte("anna full "+anna+"\nrita read "+rita+"\n"), 0o600))
			p := start(t, admin.Options{TokensFile: file}, mount)
			p.tellsPeopleApart()
			p.signsIn()
			p.acts()
		})
	}
}

func (p *program) tellsPeopleApart() {
	for path, want := range map[string]string{
		"/healthz": "ok", "/readyz": `"ready":true`, "/metrics": `rollbackd_deliveries_total{outcome="applied",queue="` +
			queue + `"}`,
	} {
		p.ask(http.MethodGet, path, "").is(p.t, http.StatusOK, want)
	}
	p.ask(http.MethodGet, "/api/v1/overview", "").is(p.t, http.StatusUnauthorized, "")
	a := p.ask(http.MethodGet, "/letters", "", "Accept", "text/html")
	if to := a.Header.Get("Location"); a.StatusCode != http.StatusSeeOther || !strings.HasPrefix(to, prefix+"/sign-in?") {
		p.t.Errorf("a page without a token: HTTP %d to %s", a.StatusCode, to)
	}
}

// signsIn signs in as rita, and looks at every address of the first page.
func (p *program) signsIn() {
	form := url.Values{"token": {rita}, "next": {prefix + "/letters"}}.Encode()
	in := p.ask(http.MethodPost, "/sign-in", form, "Content-Type", "application/x-www-form-urlencoded")
	cookies := in.Cookies()
	to := in.Header.Get("Location")
	require.That(p.t, in.StatusCode == http.StatusSeeOther && to == prefix+"/letters" && len(cookies) == 1 &&
		cookies[0].Path == prefix+"/", "HTTP %d to %s with %v", in.StatusCode, to, cookies)
	session := cookies[0].Name + "=" + cookies[0].Value
	page := p.ask(http.MethodGet, "/", "", "Cookie", session)
	all := address.FindAllStringSubmatch(page.text, -1)
	require.That(p.t, page.StatusCode == http.StatusOK && len(all) >= 10, "HTTP %d with %d addresses: %s", page.StatusCode,
		len(all), page.text)
	for _, found := range all {
		rest, below := strings.CutPrefix(found[1], prefix)
		if !below {
			p.t.Errorf("%s is not below %s", found[1], prefix)
		} else if rest != "/sign-out" && !strings.Contains(rest, "live=") {
			assert.Is(p.t, p.ask(http.MethodGet, rest, "", "Cookie", session).StatusCode, http.StatusOK, "%s: HTTP", found[1])
		}
	}
	p.ask(http.MethodPost, "/pause", url.Values{"why": {"x"}, "for": {"5m"}, "token": {"x"}}.Encode(), "Cookie", session,
		"Content-Type", "application/x-www-form-urlencoded").is(p.t, http.StatusForbidden, "")
	p.ask(http.MethodGet, "/api/v1/openapi.json", "", by(rita)...).is(p.t, http.StatusOK, `"url": "`+prefix+`/api/v1"`)
}

func (p *program) acts() {
	const why = `{"why":"the booking office moves"}`
	p.ask(http.MethodPost, "/api/v1/pause", why, by(rita)...).is(p.t, http.StatusForbidden, "")
	a := p.ask(http.MethodGet, "/api/v1/acts", "", by(rita)...)
	assert.That(p.t, !strings.Contains(a.text, `"kind":"pause"`), "what was refused is done: %s", a.text)
	paused := p.ask(http.MethodPost, "/api/v1/pause", why, append(by(anna), "Idempotency-Key", "pause-1")...)
	paused.is(p.t, http.StatusCreated, "")
	assert.Has(p.t, paused.Header.Get("Location"), prefix+"/api/v1/acts/", "the pause is at")
	p.ask(http.MethodPost, "/api/v1/pause", why, append(by(anna), "Idempotency-Key", "pause-2")...).
		is(p.t, http.StatusConflict, paused.Header.Get("Location"))
	poll.Until(p.t, "it is paused", func() bool {
		return p.ask(http.MethodGet, "/readyz", "").StatusCode == http.StatusServiceUnavailable
	})
	if s := p.c.State(); len(s.Paused) == 0 || !strings.HasPrefix(s.Paused[0], consumer.PausedByPerson) {
		p.t.Errorf("paused, its state is %+v", s)
	}
	p.ask(http.MethodPost, "/api/v1/resume", why, append(by(anna), "Idempotency-Key", "resume-1")...).
		is(p.t, http.StatusCreated, "")
	poll.Until(p.t, "it goes on", func() bool { return p.ask(http.MethodGet, "/readyz", "").StatusCode == http.StatusOK })
	var preview struct{ At string }
	seen := p.ask(http.MethodGet, "/api/v1/runs/preview?kind=replay&key=booking-1", "", by(anna)...)
	err := json.Unmarshal([]byte(seen.text), &preview)
	require.That(p.t, err == nil && preview.At != "", "HTTP %d %s: %v", seen.StatusCode, seen.text, err)
	run := fmt.Sprintf(`{"kind":"replay","filter":{"keys":["booking-1"]},"why":"mended","cut_off":%q}`, preview.At)
	p.ask(http.MethodPost, "/api/v1/runs", run, append(by(anna), "Idempotency-Key", "run-1")...).
		is(p.t, http.StatusCreated, "")
	poll.Until(p.t, "the letter is applied", func() bool {
		return strings.Contains(p.ask(http.MethodGet, "/api/v1/message?key=booking-1", "", by(rita)...).text,
			`"status":"success"`)
	})
}

// Given a site without tokens, then it answers to its own machine alone, to everything; other machines get nothing but
// health and metrics.
func TestASiteWithoutATokenAnswersToItsOwnMachineAlone(t *testing.T) {
	t.Parallel()
	var foreign http.Handler
	p := start(t, admin.Options{}, func(h http.Handler) http.Handler {
		foreign = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.RemoteAddr = "10.1.2.3:4567"
			h.ServeHTTP(w, r)
		})
		return h
	})
	for path, want := range map[string]int{"/": 403, "/letters": 403, "/api/v1/overview": 403, "/healthz": 200} {
		assert.Is(t, p.ask(http.MethodGet, path, "").StatusCode, http.StatusOK, "%s from this machine: HTTP", path)
		w := httptest.NewRecorder()
		foreign.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost"+prefix+path, http.NoBody))
		assert.Is(t, w.Code, want, "%s from another machine: HTTP", path)
	}
}

// Given what no site can be made of, then Open says so.
func TestASiteSaysWhatItLacks(t *testing.T) {
	t.Parallel()
	cfg := consumer.Config{MySQLDSN: "u:p@tcp(127.0.0.1:1)/x", AMQPURLs: []string{"amqp://127.0.0.1:1"}}
	open := func(cfg consumer.Config) *consumer.Consumer {
		c := require.Get(consumer.Open(t.Context(), cfg, consumer.Each(nil)))(t)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	wrapped := cfg
	wrapped.Registerer = prometheus.WrapRegistererWithPrefix("x_", prometheus.NewRegistry())
	refused := func(want string, o admin.Options, all ...*consumer.Consumer) {
		t.Helper()
		_, err := admin.Open(t.Context(), o, all...)
		assert.That(t, err != nil && strings.Contains(err.Error(), want), "Open says %v, want %s", err, want)
	}
	refused("no consumer", admin.Options{})
	refused("Gatherer", admin.Options{}, open(wrapped))
	refused("tokens", admin.Options{TokensFile: "/no/such/tokens"}, open(cfg))
	for _, prefix := range []string{"x", "/x/", "/{x}", "/x;y", "/ü"} { // of the last two a cookie's path would be another
		refused(fmt.Sprintf("Prefix %q", prefix), admin.Options{Prefix: prefix}, open(cfg))
	}
}
