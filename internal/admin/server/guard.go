package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/prometheus/client_golang/prometheus"
)

// Right is what somebody may do.
type Right uint8

// The rights. Who may act may also look.
const (
	Nobody Right = iota
	Look
	Act
)

// String is the right as the file of tokens has it.
func (r Right) String() string {
	return [...]string{Nobody: "none", Look: "read", Act: "full"}[r]
}

// Person is who asks, as far as the guard knows.
type Person struct {
	// Name is that of the token, or of the proxy's header with "(proxy)" behind it, or [Local]; it stands in the audit of
	// what was done.
	Name  string
	Right Right
	// Session: known by the cookie that a sign-in set, so that signing out means something.
	Session bool
}

// Local is the name of whoever asks from this machine while nothing else is set up.
const Local = "loopback"

// GuardOptions say who is let in. With none of them, only this machine's own loopback address is, to everything.
type GuardOptions struct {
	// Token is one token that may do everything, asked for at each request, so that it may change; nil or "": none.
	Token func() string
	// TokensFile holds named tokens, see [ReadTokens]; it is read again when it has changed. "": none.
	TokensFile string
	// Proxy is a proxy that says who asks; zero: none.
	Proxy Proxy
	// BasePath is where the pages begin, without a slash at its end: "" or like /stock/rollback.
	BasePath string
	// Refused is told of whoever may look and asked to act, before he gets the answer; nil: nobody is told.
	Refused func(context.Context, Person, *http.Request)
	// Metrics gets the count of refused tokens; nil: nobody does.
	Metrics prometheus.Registerer
	Logger  *slog.Logger
}

// Guard knows who asks and what he may do. It is safe for many goroutines.
type Guard struct {
	o       GuardOptions
	tokens  *tokens
	guesses *guesses
	cross   *http.CrossOriginProtection
}

// NewGuard reads the file of tokens, if there is one.
func NewGuard(o GuardOptions) (*Guard, error) {
	g := &Guard{o: o, cross: http.NewCrossOriginProtection()}
	var err error
	if g.tokens, err = newTokens(o); err != nil {
		return nil, err
	}
	g.guesses, err = newGuesses(o)
	return g, err
}

// open reports whether nothing is set up that could tell people apart.
func (g *Guard) open() bool { return g.tokens.none() && g.o.Proxy.Header == "" }

// BasePath is where the pages begin.
func (g *Guard) BasePath() string { return g.o.BasePath }

// SignsIn reports whether there is a token with which somebody could sign in.
func (g *Guard) SignsIn() bool { return !g.tokens.none() }

type personKey struct{}

// Who is the person that the guard let through; the zero Person where it did not stand.
func Who(ctx context.Context) Person {
	p, _ := ctx.Value(personKey{}).(Person)
	return p
}

// Why somebody is not let in.
var (
	errNoToken  = errors.New("a token is needed: sign in, or send it as Authorization: Bearer TOKEN")
	errBadToken = errors.New("the token is not one of those that are known here")
	errNotLocal = errors.New("without a token (ROLLBACKD_ADMIN_TOKEN) only this machine's loopback address is answered")
	errHost     = errors.New("without a token (ROLLBACKD_ADMIN_TOKEN) only names of the loopback address are answered, " +
		"such as localhost")
	errForwarded = errors.New("a proxy has passed this on: ROLLBACKD_ADMIN_TOKEN or ROLLBACKD_ADMIN_PROXY must be set")
)

// Protect lets those through to h who have the right, and stops requests that another site makes a browser send. h
// finds the person with [Who]. A browser without a session is sent to the page where it can sign in.
func (g *Guard) Protect(need Right, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, err := g.who(r)
		switch {
		case errors.Is(err, errNotLocal), errors.Is(err, errHost), errors.Is(err, errForwarded):
			Problem(w, http.StatusForbidden, err.Error())
		case retryLater(w, err):
			Problem(w, http.StatusTooManyRequests, err.Error())
		case err != nil && g.SignsIn() && wantsPage(r):
			http.Redirect(w, r, g.o.BasePath+"/sign-in?next="+url.QueryEscape(r.URL.RequestURI()), http.StatusSeeOther)
		case err != nil:
			w.Header().Set("WWW-Authenticate", `Bearer realm="rollbackd"`)
			Problem(w, http.StatusUnauthorized, err.Error())
		case p.Right < need:
			if g.o.Refused != nil && p.Name != "" {
				g.o.Refused(r.Context(), p, r)
			}
			Problem(w, http.StatusForbidden, fmt.Sprintf("%s may look and not act: a token that may do everything is needed",
				p.Name))
		default:
			if err := errors.Join(g.cross.Check(r), embedded(r)); err != nil {
				Problem(w, http.StatusForbidden, "another site made this request: "+err.Error())
				return
			}
			leave, ok := hold(r, p.Name)
			if !ok {
				Crowded(w, "requests of yours, or of all together, are being answered")
				return
			}
			defer leave()
			h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), personKey{}, p)))
		}
	})
}

// FromElsewhere reports whether another site has led a browser here, or makes it ask.
func FromElsewhere(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return site != "" && site != "same-origin" && site != "none"
}

// embedded says that another site makes a browser ask for something without showing that to the person as a page: as a
// picture, a script, a frame. Who follows a link may come from anywhere.
func embedded(r *http.Request) error {
	if !FromElsewhere(r) || r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document" {
		return nil
	}
	return errors.New("it is no page that a person has opened")
}

// Crowded says that as many things are done at once as may be.
func Crowded(w http.ResponseWriter, what string) {
	w.Header().Set("Retry-After", "1")
	Problem(w, http.StatusServiceUnavailable, "too many "+what+" at once: try again in a moment")
}

// retryLater reports whether an error is a TooManyError, and says in the header how long to wait.
func retryLater(w http.ResponseWriter, err error) bool {
	many, ok := errors.AsType[TooManyError](err)
	if ok {
		w.Header().Set("Retry-After", strconv.Itoa(many.Seconds()))
	}
	return ok
}

// Public lets everybody through who can reach this daemon at all, for the page where people sign in and what it is
// drawn with; it too stops requests that another site makes a browser send.
func (g *Guard) Public(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := g.cross.Check(r)
		if g.open() {
			err = errors.Join(local(r), err)
		}
		if err != nil {
			Problem(w, http.StatusForbidden, err.Error())
			return
		}
		p, err := g.who(r)
		if err != nil {
			p = Person{}
		}
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), personKey{}, p)))
	})
}

// knows reports whether whoever asks may look. Without a guard nobody may.
func (g *Guard) knows(r *http.Request) bool {
	if g == nil {
		return false
	}
	p, err := g.who(r)
	return err == nil && p.Right >= Look
}

// who asks. A token in the header decides alone: whoever sends one wants to be that one.
func (g *Guard) who(r *http.Request) (Person, error) {
	if g.open() {
		return Person{Name: Local, Right: Act}, local(r)
	}
	if text, ok := bearer(r); ok {
		t, err := g.guesses.check(r, text, g.tokens.find)
		return Person{Name: t.Name, Right: t.Right}, err
	}
	if p, ok := g.session(r); ok {
		return p, nil
	}
	if p, ok := g.o.Proxy.who(r); ok {
		return p, nil
	}
	if g.tokens.none() {
		return Person{}, fmt.Errorf("no proxy that is named in ROLLBACKD_ADMIN_PROXY says who asks, in the header %s",
			g.o.Proxy.Header)
	}
	return Person{}, errNoToken
}

func bearer(r *http.Request) (string, bool) {
	scheme, text, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	return strings.TrimSpace(text), ok && strings.EqualFold(scheme, "Bearer")
}

// wantsPage reports whether a person looks at the answer: a browser that opens a page.
func wantsPage(r *http.Request) bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead) &&
		strings.Contains(r.Header.Get("Accept"), "text/html")
}

// forwarded begin the names of headers with which proxies, balancers and tunnels say that they pass something on.
var forwarded = []string{
	"Forwarded", "X-Forwarded", "X-Original-", "X-Real-Ip", "X-Client-Ip", "X-Cluster-Client-Ip", "X-Proxy", "X-Scheme",
	"X-Envoy-", "X-Amz", "X-Appengine-", "X-Azure-", "X-Arr-", "X-Ms-", "X-Vercel-", "X-Nf-", "X-Sucuri-", "X-Varnish",
	"True-Client-Ip", "Client-Ip", "Cf-", "Cdn-Loop", "Fastly-", "Fly-", "Akamai-", "Incap-Client-Ip", "Ngrok-",
	"Tailscale-", "Via", "Max-Forwards", "Proxy-",
}

// local says why a request is not certainly from this machine; nil when it is. The address that the kernel tells counts
// and no header does. But the loopback address alone proves little: a browser on this machine may have been led here by
// a name of a stranger's that resolves to it, so the name that it asked for must be the loopback's too; and a proxy on
// this machine asks for the whole world, so a request that says it was forwarded is somebody else's.
func local(r *http.Request) error {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !peer.Addr().Unmap().IsLoopback() {
		return errNotLocal
	}
	if !loopbackName(r.Host) {
		return errHost
	}
	if !r.ProtoAtLeast(1, 1) { // people's programs have long spoken it; proxies that say nothing of themselves may not
		return errForwarded
	}
	for name := range r.Header {
		for _, begin := range forwarded {
			if strings.HasPrefix(name, begin) {
				return errForwarded
			}
		}
	}
	return nil
}

func loopbackName(hostPort string) bool {
	host, _, err := net.SplitHostPort(hostPort)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(hostPort, "["), "]")
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// Proxy is one that has made sure who asks, and says so in a header.
type Proxy struct {
	// Header names the person.
	Header string
	// Peers are the addresses of the proxy. From others the header means nothing.
	Peers []netip.Prefix
	// GroupHeader lists, with commas, the groups of the person: who is not in Group may look and not act. "": all may
	// act.
	GroupHeader, Group string
}

const (
	// maxName bounds a name, which stands in rows.
	maxName = 100
	// byProxy stands behind the name of a person whom a proxy names. The name of a token is one word, so nobody can be
	// called by a proxy what a token is called, in the audit or as owner of a form or an Idempotency-Key.
	byProxy = " (proxy)"
)

// nameable reports whether somebody may be called like that in rows and on pages.
func nameable(name string) bool {
	return len(name) <= maxName && !strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) })
}

// who is the person that the proxy names. A header that is there twice names nobody: one of the two may have come
// through from outside.
func (p Proxy) who(r *http.Request) (Person, bool) {
	names := r.Header.Values(p.Header)
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if p.Header == "" || err != nil || len(names) != 1 || !slices.ContainsFunc(p.Peers, func(n netip.Prefix) bool {
		return n.Contains(peer.Addr().Unmap())
	}) {
		return Person{}, false
	}
	name := strings.TrimSpace(names[0])
	if name == "" || !nameable(name) {
		return Person{}, false
	}
	person := Person{Name: name + byProxy, Right: Act}
	if p.GroupHeader != "" && !p.groups(r) {
		person.Right = Look
	}
	return person, true
}

func (p Proxy) groups(r *http.Request) bool {
	lists := r.Header.Values(p.GroupHeader)
	return len(lists) == 1 && slices.ContainsFunc(strings.Split(lists[0], ","), func(g string) bool {
		return strings.TrimSpace(g) == p.Group
	})
}

// Problem answers with an error in the form of RFC 9457. The detail is a whole sentence for a person.
func Problem(w http.ResponseWriter, status int, detail string) {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	writeJSON(w, "application/problem+json", status, struct {
		Title  string `json:"title"`
		Status int    `json:"status"`
		Detail string `json:"detail"`
	}{http.StatusText(status), status, detail})
}

// writeJSON answers with what can always be written as JSON.
func writeJSON(w http.ResponseWriter, kind string, status int, v any) {
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // who went away needs no answer
}
