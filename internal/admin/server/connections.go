package server

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

const (
	// mostOpen bounds the connections, half of them from one address. They are a quarter of what the process may open at
	// most, so that connections to servers find room.
	mostOpen = 512
	// newcomers is how many a second may come from one address at the limit: each is sure of its place for so long that
	// what it asks has arrived, if it asks at once, and those 4,096 that the kernel keeps waiting do so for 0.64 s.
	newcomers = 6400
	// mostHeader bounds the headers of a request in bytes, and headersWithin how long they take: before they are whole
	// nobody knows who asks.
	mostHeader    = 8 << 10
	headersWithin = 2 * time.Second
)

// connections bounds who is connected. At the limit a newcomer takes the place of whoever has waited longest, and does
// not wait until somebody leaves, as by netutil.LimitListener: strangers that say nothing could hold all places and
// probes would get no answer. Those that the guard has let in keep their places until they are answered; they never
// have all.
type connections struct {
	*net.TCPListener

	most int
	room chan struct{} // those that have no place any more count too, until net/http has done with them
	// people are those whose requests are answered: three eighths of the places, and one for each.
	people *Places

	mu      sync.Mutex
	open    map[*conn]struct{} // guarded by mu, as all below
	dropped warner
}

// conn is one of them.
type conn struct {
	*net.TCPConn

	all    *connections
	from   netip.Addr
	closed sync.Once
	// unheard is how much was read since the last request; far below zero while one is answered.
	unheard atomic.Int64

	since time.Time // it came, or was last heard; guarded by all.mu, as all below
	held  bool
	gone  bool // its place is another's
}

func newConnections(l *net.TCPListener, log *slog.Logger) *connections {
	most := mostOpen
	if files, err := OpenFiles(); err == nil {
		most = int(max(8, min(mostOpen, files/4)))
	}
	return &connections{
		TCPListener: l, most: most, room: make(chan struct{}, 2*most), open: map[*conn]struct{}{},
		people: NewPlaces(most*3/8, most/8), dropped: warner{log: log},
	}
}

// Accept takes the next one, and makes room for it.
func (l *connections) Accept() (net.Conn, error) {
	l.room <- struct{}{} // half of them have no place, and end within moments
	tcp, err := l.AcceptTCP()
	if err != nil {
		<-l.room
		return nil, err
	}
	c := &conn{TCPConn: tcp, all: l, from: networkOf(tcp.RemoteAddr().String())}
	for {
		out, wait := l.enter(c)
		if out != nil {
			_ = out.TCPConn.Close() // it is of no use any more
		}
		if wait <= 0 {
			return c, nil
		}
		time.Sleep(wait)
	}
}

// enter gives a newcomer a place, and returns whose it was, if it was somebody's; or says how long to wait for one.
func (l *connections) enter(c *conn) (out *conn, wait time.Duration) {
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
		sure := time.Duration(l.most/2) * time.Second / newcomers
		if wait = time.Until(out.since.Add(sure)); wait > 0 {
			return nil, wait
		}
		out.gone = true
		delete(l.open, out)
		l.dropped.warn("connections to ROLLBACKD_HTTP_ADDR are dropped before they were answered: too many are open",
			"most", l.most, "last_from", out.RemoteAddr().String())
	}
	c.since = time.Now()
	l.open[c] = struct{}{}
	return out, 0
}

func elder(a, b *conn) *conn {
	if a == nil || b.since.Before(a.since) {
		return b
	}
	return a
}

// Close gives the place back.
func (c *conn) Close() error {
	c.closed.Do(func() {
		c.all.mu.Lock()
		delete(c.all.open, c)
		c.all.mu.Unlock()
		<-c.all.room
	})
	return c.TCPConn.Close()
}

var errLongHeader = errors.New("the headers are too long")

// Read ends a connection with long headers at once when many are open: net/http would keep it for half a second after
// its answer, so that whoever reads slowly gets that.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	if c.unheard.Add(int64(n)) > mostHeader && len(c.all.room) > c.all.most/4 {
		return 0, errLongHeader
	}
	return n, err
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
			c.unheard.Store(math.MinInt64 / 2)
			defer c.unheard.Store(0)
		}
		h.ServeHTTP(w, r)
	})
}

// hold keeps the place of the connection on which a person asks until leave is called. In those that are not for people
// newcomers and probes find theirs. A request whose place is another's by now is not begun, since nobody would get its
// answer.
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
	free, ok := l.people.Enter(who)
	if !ok {
		return nil, false
	}
	c.held = true
	return func() {
		free()
		l.mu.Lock()
		defer l.mu.Unlock()
		c.held, c.since = false, time.Now()
	}, true
}

// Places bound how much is done at once: in all, and for each person.
type Places struct {
	most, ofOne int

	mu  sync.Mutex
	all int            // guarded by mu
	of  map[string]int // guarded by mu
}

// NewPlaces makes so many places.
func NewPlaces(most, ofOne int) *Places {
	return &Places{most: most, ofOne: ofOne, of: map[string]int{}}
}

// Enter takes a place, if there is one, until leave is called.
func (p *Places) Enter(who string) (leave func(), ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all >= p.most || p.of[who] >= p.ofOne {
		return nil, false
	}
	p.all++
	p.of[who]++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.all--
		if p.of[who]--; p.of[who] == 0 {
			delete(p.of, who)
		}
	}, true
}

// warnEvery is how often one thing is warned of.
const warnEvery = time.Minute

// warner says the same thing once a minute at most, and how often it has come since: a stranger must not fill the log.
// Whoever shares one holds a mutex.
type warner struct {
	log    *slog.Logger
	rarely rate.Sometimes
	untold int
}

func (w *warner) warn(text string, args ...any) {
	w.untold++
	w.rarely.Interval = warnEvery
	w.rarely.Do(func() {
		w.log.Warn(text, append([]any{"since_last_line", w.untold}, args...)...)
		w.untold = 0
	})
}
