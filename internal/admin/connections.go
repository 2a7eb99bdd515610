package admin

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

const (
	// mostOpen bounds the connections, half of them from one address. A quarter of what the process may open is never
	// theirs, so that connections to servers find room.
	mostOpen = 256
	// mostHeader bounds the headers of a request in bytes, and headersWithin how long they take: before they are whole
	// nobody knows who asks.
	mostHeader    = 8 << 10
	headersWithin = 2 * time.Second
	// droppedTold is how often the log says that connections are dropped.
	droppedTold = time.Minute
)

// connections bounds who is connected. At the limit a newcomer takes the place of whoever has waited longest, and is
// not made to wait, as by netutil.LimitListener: strangers that say nothing could hold all places and probes would get
// no answer. Those that the guard has let in keep their places until they are answered; they never have all.
type connections struct {
	*net.TCPListener

	most int
	log  *slog.Logger

	mu     sync.Mutex
	open   map[*conn]struct{} // guarded by mu, as all below
	held   int                // by requests of people
	of     map[string]int     // the same, of each
	told   time.Time          // when the log last said that connections are dropped
	untold int                // dropped since then
}

// conn is one of them.
type conn struct {
	*net.TCPConn

	all  *connections
	from netip.Addr

	since time.Time // it came, or was last heard; guarded by all.mu, as all below
	held  bool
	gone  bool // its place is another's
}

func newConnections(l *net.TCPListener, log *slog.Logger) *connections {
	most := mostOpen
	var files syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files) == nil {
		most = int(max(4, min(mostOpen, files.Cur/4)))
	}
	return &connections{TCPListener: l, most: most, log: log, open: map[*conn]struct{}{}, of: map[string]int{}}
}

// Accept takes the next one. It makes room for it and never waits for that.
func (l *connections) Accept() (net.Conn, error) {
	tcp, err := l.AcceptTCP()
	if err != nil {
		return nil, err
	}
	c := &conn{TCPConn: tcp, all: l, from: networkOf(tcp.RemoteAddr().String())}
	if out := l.enter(c); out != nil {
		_ = out.TCPConn.Close() // it is of no use any more
	}
	return c, nil
}

// enter gives a newcomer a place, and returns whose it was, if it was somebody's.
func (l *connections) enter(c *conn) (out *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var eldest, neighbour *conn // of all, and of those from the same address
	neighbours := 0
	for o := range l.open {
		if o.held {
			continue
		}
		eldest = elder(eldest, o)
		if o.from == c.from {
			neighbour = elder(neighbour, o)
			neighbours++
		}
	}
	switch {
	case neighbours >= l.most/2:
		out = neighbour
	case len(l.open) >= l.most:
		out = eldest
	}
	if out != nil {
		out.gone = true
		delete(l.open, out)
		l.tell(out)
	}
	c.since = time.Now()
	l.open[c] = struct{}{}
	return out
}

func elder(a, b *conn) *conn {
	if a == nil || b.since.Before(a.since) {
		return b
	}
	return a
}

// tell holds mu. It says once a minute at most that connections are dropped: a stranger must not fill the log.
func (l *connections) tell(out *conn) {
	if l.untold++; !l.told.IsZero() && time.Since(l.told) < droppedTold {
		return
	}
	l.log.Warn("connections to ROLLBACKD_HTTP_ADDR are dropped before they were answered: too many are open",
		"since_last_line", l.untold, "most", l.most, "last_from", out.RemoteAddr().String())
	l.told, l.untold = time.Now(), 0
}

// Close gives the place back.
func (c *conn) Close() error {
	c.all.mu.Lock()
	delete(c.all.open, c)
	c.all.mu.Unlock()
	return c.TCPConn.Close()
}

type connKey struct{}

// known lets handlers find the connection.
func (l *connections) known(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// heard notes for each request that its connection was heard.
func (l *connections) heard(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(connKey{}).(*conn); ok {
			l.mu.Lock()
			c.since = time.Now()
			l.mu.Unlock()
		}
		h.ServeHTTP(w, r)
	})
}

// hold keeps the place of the connection on which a person asks until leave is called. Of the places a quarter is for
// one, and a quarter for nobody: there newcomers and probes find one. A request whose place is gone already is not
// begun, since nobody would get its answer.
func hold(r *http.Request, who string) (leave func(), ok bool) {
	c, ok := r.Context().Value(connKey{}).(*conn)
	if !ok { // not by our server
		return func() {}, true
	}
	l := c.all
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.gone {
		panic(http.ErrAbortHandler)
	}
	if l.held >= l.most*3/4 || l.of[who] >= l.most/4 {
		return nil, false
	}
	c.held = true
	l.held++
	l.of[who]++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		c.held, c.since = false, time.Now()
		l.held--
		if l.of[who]--; l.of[who] == 0 {
			delete(l.of, who)
		}
	}, true
}
