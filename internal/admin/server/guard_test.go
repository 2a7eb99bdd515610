package server

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// newGuard makes a guard whose log goes to logs.
func newGuard(t *testing.T, o GuardOptions, logs io.Writer) *Guard {
	t.Helper()
	o.Logger = slog.New(slog.NewTextHandler(logs, nil))
	return require.Get(NewGuard(o))(t)
}

// asked is one request as the kernel and the client tell it.
type asked struct {
	method, peer, host string
	header             http.Header
	cookie             *http.Cookie
	old                bool // HTTP/1.0
}

// ask asks a handler that wants a right and answers with the name of who asked.
func (a asked) ask(g *Guard, need Right) *httptest.ResponseRecorder {
	r := a.request("/page?x=1")
	if a.old {
		r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/1.0", 1, 0
	}
	if a.cookie != nil {
		r.AddCookie(a.cookie)
	}
	w := httptest.NewRecorder()
	g.Protect(need, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, Who(r.Context()).Name)
	})).ServeHTTP(w, r)
	return w
}

// request is one for a path, from this machine by its name if nothing else is said.
func (a asked) request(path string) *http.Request {
	r := httptest.NewRequest(cmp.Or(a.method, http.MethodGet), path, http.NoBody)
	r.RemoteAddr, r.Host = cmp.Or(a.peer, "127.0.0.1:50000"), cmp.Or(a.host, "localhost:8080")
	maps.Copy(r.Header, a.header)
	return r
}

func token(text string) http.Header { return http.Header{"Authorization": {"Bearer " + text}} }

// Given no token and no proxy, then only this machine is answered, by a name of the loopback address, and not through
// a proxy; else a page of a stranger's in a browser here, or a proxy here, could act for anybody.
func TestWithoutATokenOnlyTheLoopbackIsAnswered(t *testing.T) {
	g := newGuard(t, GuardOptions{}, io.Discard)
	for name, c := range map[string]struct {
		asked
		want int
	}{
		"IPv4":                            {asked{}, 200},
		"another address of the loopback": {asked{peer: "127.9.9.9:1", host: "127.0.0.1"}, 200},
		"IPv6":                            {asked{peer: "[::1]:1", host: "[::1]:8080"}, 200},
		"IPv4 in IPv6":                    {asked{peer: "[::ffff:127.0.0.1]:1"}, 200},
		"it may act":                      {asked{method: http.MethodPost}, 200},
		"another machine":                 {asked{peer: "10.0.0.7:1"}, 403},
		"another machine that says it is this one": {asked{peer: "10.0.0.7:1", header: http.Header{
			"X-Forwarded-For": {"127.0.0.1"}, "X-Real-Ip": {"127.0.0.1"}, "Forwarded": {"for=127.0.0.1"}}}, 403},
		"a name that a stranger's DNS gave the loopback address": {asked{host: "evil.example:8080"}, 403},
		"a name that begins like localhost":                      {asked{host: "localhost.evil.example"}, 403},
		"an address of another machine as name":                  {asked{host: "10.0.0.1:8080"}, 403},
		"through a proxy on this machine": {asked{header: http.Header{
			"X-Forwarded-For": {"10.0.0.7"}}}, 403},
		"through a proxy on this machine that says nothing of itself, as nginx by default": {asked{old: true}, 403},
		"another site makes a browser post": {asked{method: http.MethodPost,
			header: http.Header{"Sec-Fetch-Site": {"cross-site"}}}, 403},
		"another origin posts": {asked{method: http.MethodPost, header: http.Header{"Origin": {"http://evil.example"}}}, 403},
	} {
		w := c.ask(g, Act)
		assert.That(t, w.Code == c.want && (w.Code != 200 || w.Body.String() == Local), "%s: HTTP %d %s, want %d", name,
			w.Code, w.Body, c.want)
		if c.peer != "" && c.want == 403 {
			public := httptest.NewRecorder()
			g.Public(http.NotFoundHandler()).ServeHTTP(public, asked{peer: c.peer, host: c.host}.request("/sign-in"))
			assert.Is(t, public.Code, 403, "%s: what is public answers with", name)
		}
	}
}

// Given no token and a proxy on this machine that says no more of itself than one header, then it is a proxy; what
// browsers and people's programs send is none.
func TestAProxyIsKnownByAnyOfItsHeaders(t *testing.T) {
	g := newGuard(t, GuardOptions{}, io.Discard)
	for _, name := range []string{
		"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Server", "X-Forwarded-Port", "X-Forwarded",
		"CF-Connecting-IP", "CF-Ray", "True-Client-IP", "X-Real-IP", "X-Client-IP", "X-Cluster-Client-Ip", "Via",
		"X-Original-URL", "X-Envoy-External-Address", "X-Amzn-Trace-Id", "Fastly-Client-IP", "Fly-Client-IP",
		"X-Azure-ClientIP", "Tailscale-User-Login", "Ngrok-Trace-Id", "Max-Forwards", "Proxy-Connection",
	} {
		assert.Is(t, (asked{header: http.Header{http.CanonicalHeaderKey(name): {""}}}).ask(g, Look).Code, 403,
			"a proxy that sends only %s gets HTTP", name)
	}
	browser := http.Header{"Accept": {"*/*"}, "Authorization": {"x"}, "Cookie": {"a=b"}, "Sec-Fetch-Site": {"same-origin"},
		"Origin": {"http://localhost:8080"}, "Sec-Ch-Ua": {"x"}, "X-Requested-With": {"x"}, "Traceparent": {"x"},
		"Idempotency-Key": {"x"}, "Dnt": {"1"}, "Upgrade-Insecure-Requests": {"1"}, "Priority": {"u=0"}}
	assert.Is(t, (asked{header: browser}).ask(g, Look).Code, 200, "a browser gets HTTP")
}

// Given a daemon that misses something, then anybody is told what, and only who may look is told why, as reasons hold
// accounts, addresses and keys.
func TestReasonsAreToldToThoseWhoMayLook(t *testing.T) {
	const secret = "Access denied for user 'rb'@'10.1.2.3', key order-7"
	for name, c := range map[string]struct {
		o    GuardOptions
		from asked
		told bool
	}{
		"no token is set up, and this machine asks": {GuardOptions{}, asked{}, true},
		"… through a proxy":                         {GuardOptions{}, asked{header: http.Header{"Via": {"x"}}}, false},
		"… by a stranger's name":                    {GuardOptions{}, asked{host: "evil.example"}, false},
		"… another machine":                         {GuardOptions{}, asked{peer: "10.0.0.7:1"}, false},
		"a token is set up":                         {GuardOptions{Token: tok}, asked{}, false},
		"… a wrong one is sent":                     {GuardOptions{Token: tok}, asked{header: token("wrong")}, false},
		"… it is sent":                              {GuardOptions{Token: tok}, asked{header: token("tok")}, true},
	} {
		h := Options{Guard: newGuard(t, c.o, io.Discard), Logger: slog.New(slog.DiscardHandler), Health: func() Readiness {
			return Readiness{Group: "g", Queue: "q", Waiting: []string{"mysql: " + secret, "person: paused by anna: " + secret},
				Degraded: []string{"q.dead: " + secret, "q.dead: 2 " + secret}}
		}}.handler()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, c.from.request("/readyz"))
		const names = `{"ready":false,"draining":false,"waiting":["mysql","person"],"degraded":["q.dead"],"group":"g",` +
			`"queue":"q"}`
		got := strings.TrimSpace(w.Body.String())
		assert.That(t, w.Code == 503 && strings.Contains(got, secret) == c.told && (c.told || got == names), "%s: HTTP %d %s",
			name, w.Code, got)
	}
}

func tok() string { return "tok" }

// Given named tokens, then each opens what its right says, the loopback without one opens nothing, and what may not be
// done is refused by the server.
func TestATokenOpensWhatItsRightSays(t *testing.T) {
	sum := sha256.Sum256([]byte("token-of-hash"))
	path := filepath.Join(t.TempDir(), "tokens")
	writeFile(t, path, "# who may do what\n\nann full token-of-ann\nbob read token-of-bob\nhash full sha256:"+
		hex.EncodeToString(sum[:])+"\n")
	var logs bytes.Buffer
	g := newGuard(t, GuardOptions{Token: func() string { return "the-one" }, TokensFile: path}, &logs)
	for text, c := range map[string]struct {
		name      string
		look, act int
	}{
		"the-one":                              {SettingName, 200, 200},
		"token-of-ann":                         {"ann", 200, 200},
		"token-of-bob":                         {"bob", 200, 403},
		"token-of-hash":                        {"hash", 200, 200},
		"token-of-eve":                         {"", 401, 401},
		"sha256:" + hex.EncodeToString(sum[:]): {"", 401, 401},
		"":                                     {"", 401, 401},
	} {
		a := asked{header: token(text), peer: "10.0.0.7:1", host: "shop.example"}
		look, act := a.ask(g, Look), a.ask(g, Act)
		assert.That(t, look.Code == c.look && act.Code == c.act && (look.Code != 200 || look.Body.String() == c.name),
			"%q: %d %s and %d, want %+v", text, look.Code, look.Body, act.Code, c)
		assert.That(t, look.Code != 401 || look.Header().Get("WWW-Authenticate") != "", "401 without WWW-Authenticate")
	}
	assert.That(t, !strings.Contains(logs.String(), "token-of-eve") && strings.Contains(logs.String(), "10.0.0.7"),
		"the log of a refused token: %s", logs.String())
	assert.Is(t, (asked{}).ask(g, Look).Code, 401, "the loopback without a token: HTTP")
	page := asked{header: http.Header{"Accept": {"text/html,*/*"}}}.ask(g, Look)
	assert.That(t, page.Code == 303 && page.Header().Get("Location") == "/sign-in?next=%2Fpage%3Fx%3D1",
		"a browser is answered with %d to %q", page.Code, page.Header().Get("Location"))
}

// Given that the file of tokens changes, then it holds from the next request on; given that it cannot be read, then
// the former ones hold and one warning says why, without a token in it.
func TestTheFileOfTokensIsReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	writeFile(t, path, "ann full first\n")
	var logs bytes.Buffer
	g := newGuard(t, GuardOptions{TokensFile: path}, &logs)
	can := func(text string) bool { return asked{header: token(text)}.ask(g, Look).Code == 200 }
	require.That(t, can("first") && !can("second"), "the first token does not open")
	writeFile(t, path, "ann full second-token\n")
	assert.That(t, !can("first") && can("second-token"), "the changed file is not read")
	writeFile(t, path, "ann everything third-secret-token\n")
	assert.That(t, can("second-token") && !can("third-secret-token") && can("second-token"), "who is let in has changed")
	require.OK(t, os.Remove(path))
	assert.That(t, can("second-token"), "without the file nobody is let in")
	if n := strings.Count(logs.String(), "cannot be read again"); n != 2 || strings.Contains(logs.String(), "third") {
		t.Errorf("%d warnings, want one for each trouble:\n%s", n, logs.String())
	}
}

func TestABadFileOfTokensIsRefusedByLineAndWithoutItsText(t *testing.T) {
	for text, want := range map[string]string{
		"":                                    "no token",
		"ann full":                            "line 1",
		"ann full a b":                        "line 1",
		"ann full tok-secret\nbob tok-secret": "line 2",
		"ann write tok-secret":                "read or full",
		"ann full sha256:tok-secret":          "sha256",
		"ann full tok-secret\nann read other": "line 2 has the name",
		"ann full tok-secret\nbob read tok-secret": "line 2 has the token",
		// a limit cuts no token in half
		strings.Repeat("# why\n", 1<<20/6-3) + "ann full a\nbob read tok-secret": "over 1048576 bytes",
	} {
		_, err := ReadTokens(strings.NewReader(text))
		assert.That(t, err != nil && strings.Contains(err.Error(), want) && !strings.Contains(err.Error(), "secret"),
			"%.50q: %v, want %q", text, err, want)
	}
}

// Given a sign-in, then the cookie is good for its time, on every daemon with the token, until the token is changed; a
// cookie that somebody makes or changes is none, not even by who knows the token's hash.
func TestASessionIsItsTokenAndNothingElse(t *testing.T) {
	one := "the-one-and-only"
	o := GuardOptions{Token: func() string { return one }, BasePath: "/x/y"}
	g, other := newGuard(t, o, io.Discard), newGuard(t, o, io.Discard)
	signIn := func(text, origin string) *http.Cookie {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, "/x/y/sign-in", http.NoBody)
		r.Header.Set("Origin", origin)
		if _, err := g.SignIn(w, r, text); err != nil {
			return nil
		}
		return w.Result().Cookies()[0]
	}
	require.That(t, signIn("another", "http://shop.example") == nil, "a wrong token signs in")
	c := signIn(" the-one-and-only\n", "https://shop.example") // pasted
	require.That(t, c != nil && c.HttpOnly && c.Secure && c.SameSite == http.SameSiteStrictMode && c.Path == "/x/y/" &&
		!strings.Contains(c.Value, one) && time.Until(c.Expires) <= sessionTime, "the cookie: %+v", c)
	plain := signIn(one, "http://localhost:8080")
	assert.That(t, !plain.Secure, "over plain HTTP the browser would not send a Secure cookie back")
	remote := asked{cookie: c, peer: "10.0.0.7:1", host: "shop.example"}
	a, b := remote.ask(g, Act), remote.ask(other, Act)
	assert.That(t, a.Code == 200 && b.Code == 200 && a.Body.String() == SettingName,
		"HTTP %d and %d, want 200 of both daemons", a.Code, b.Code)
	now := time.Now()
	known := Token{SettingName, Act, sha256.Sum256([]byte(one))}
	assert.That(t, opensSession(known, c.Value, now) && !opensSession(known, c.Value, now.Add(sessionTime+time.Second)),
		"a session does not end")
	if opensSession(known, sealSession(known, "anything", now.Add(time.Hour)), now) { // by the hash, without the token
		t.Error("the hash is enough for a session")
	}
	head, tail, _ := strings.Cut(c.Value, ".")
	_, sealed, _ := strings.Cut(tail, ".")
	for _, bad := range []string{"", ".", "..", "a.b.c", head + ".99999999999." + sealed, c.Value + "A",
		c.Value[:len(c.Value)-4]} {
		assert.Is(t, (asked{cookie: &http.Cookie{Name: cookieName, Value: bad}}).ask(g, Look).Code, 401, "cookie %q", bad)
	}
	one = "another-one"
	assert.Is(t, remote.ask(g, Look).Code, 401, "after the token was changed: HTTP")
}

// Given a proxy that is trusted, then its header names who asks, who is told apart from a token of that name; from
// anywhere else, or twice, it means nothing.
func TestAProxyIsBelievedByItsAddress(t *testing.T) {
	p := Proxy{Header: "X-User", Peers: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"),
		netip.MustParsePrefix("fd00::/8"), netip.MustParsePrefix("192.0.2.1/32")}, GroupHeader: "X-Groups", Group: "on-call"}
	g := newGuard(t, GuardOptions{Proxy: p}, io.Discard)
	h := func(user string, more ...string) http.Header {
		head := http.Header{"X-User": {user}}
		if len(more) > 0 {
			head["X-Groups"] = more
		}
		return head
	}
	for name, c := range map[string]struct {
		asked
		look, act int
	}{
		"in the group":       {asked{peer: "10.1.2.3:1", header: h("ann", "staff, on-call")}, 200, 200},
		"in IPv6":            {asked{peer: "[fd00::7]:1", header: h("ann", "on-call")}, 200, 200},
		"a single address":   {asked{peer: "192.0.2.1:1", header: h("ann", "on-call")}, 200, 200},
		"as the token":       {asked{peer: "10.1.2.3:1", header: h(SettingName, "on-call")}, 200, 200},
		"in another group":   {asked{peer: "10.1.2.3:1", header: h("bob", "staff,on-call-2")}, 200, 403},
		"in no group":        {asked{peer: "10.1.2.3:1", header: h("bob")}, 200, 403},
		"groups twice":       {asked{peer: "10.1.2.3:1", header: h("bob", "staff", "on-call")}, 200, 403},
		"from elsewhere":     {asked{peer: "10.2.0.1:1", header: h("ann", "on-call")}, 401, 401},
		"from this machine":  {asked{header: h("ann", "on-call")}, 401, 401},
		"twice":              {asked{peer: "10.1.2.3:1", header: http.Header{"X-User": {"ann", "eve"}}}, 401, 401},
		"nobody":             {asked{peer: "10.1.2.3:1", header: h("")}, 401, 401},
		"a name with a line": {asked{peer: "10.1.2.3:1", header: h("a\tb")}, 401, 401},
		"a site makes it post": {asked{method: http.MethodPost, peer: "10.1.2.3:1", header: http.Header{"X-User": {"ann"},
			"X-Groups": {"on-call"}, "Sec-Fetch-Site": {"cross-site"}}}, 403, 403},
	} {
		look, act := c.ask(g, Look), c.ask(g, Act)
		assert.That(t, look.Code == c.look && act.Code == c.act, "%s: HTTP %d and %d, want %d and %d", name, look.Code,
			act.Code, c.look, c.act)
		if who := look.Body.String(); look.Code == http.StatusOK && !strings.HasSuffix(who, " (proxy)") {
			t.Errorf("%s: he is called %q, as a token may be", name, who)
		}
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	require.OK(t, os.WriteFile(path, []byte(text), 0o600))
}

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
		assert.That(t, counts[whyUnknown] == wrongOfOne+1 && counts[whyTooMany] == 100-wrongOfOne, "the metric: %v", counts)
	})
}
