package stack

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// TCPProxy stands between a client and a server and breaks the wire between them while the server itself stays well.
// Its methods may be called from any goroutine.
type TCPProxy struct {
	// Addr is where the client connects to instead of the server.
	Addr string

	fail    func(format string, args ...any) // told what the proxy itself could not do
	target  string
	wg      sync.WaitGroup // the listener's goroutine, and of each link one or two
	carried atomic.Int64

	mu       sync.Mutex
	listener *net.TCPListener // set when the proxy is made
	refuses  bool
	links    map[*link]struct{}
	closed   bool
	open     chan struct{} // closed while bytes may flow; replaced by an open channel to hold them
	delay    time.Duration
	rate     int // bytes a second in each direction of a link; 0 is unlimited
	traps    []*trap
	killer   []byte // what a server may not send, or nil
	killed   int    // how many links that has ended
}

// link is one client's connection and the one to the server that belongs to it.
type link struct {
	client *net.TCPConn
	server atomic.Pointer[net.TCPConn] // nil until the server was reached
	gone   chan struct{}               // closed when it is cut
	once   sync.Once

	// dropping is set from the moment the client sent what a DropReply waits for: the server's next bytes cut the link.
	// tail is the end of what the server has sent, where a killer may have begun. Both are guarded by the proxy's mu.
	dropping *trap
	tail     []byte
}

// trap waits for bytes of a client, once.
type trap struct {
	match   func(clientBytes []byte) bool
	deliver bool            // whether the server gets the bytes
	opened  <-chan struct{} // the piece waits for it instead
	sprung  chan struct{}
}

// Proxy starts a proxy in front of target, which is a host and port, for the time of this test.
func Proxy(t testing.TB, target string) *TCPProxy {
	t.Helper()
	p := require.Get(NewProxy(target, t.Errorf))(t)
	t.Cleanup(p.Close)
	return p
}

// NewProxy starts a proxy outside of tests; fail is told when the proxy itself cannot do what it was told.
// [TCPProxy.Close] ends it.
func NewProxy(target string, fail func(format string, args ...any)) (*TCPProxy, error) {
	l, err := listen()
	if err != nil {
		return nil, err
	}
	return newProxy(l, target, fail), nil
}

func newProxy(l *net.TCPListener, target string, fail func(format string, args ...any)) *TCPProxy {
	p := &TCPProxy{
		fail: fail, Addr: l.Addr().String(), target: target, listener: l,
		links: map[*link]struct{}{}, open: make(chan struct{}),
	}
	close(p.open)
	p.wg.Go(p.accept)
	return p
}

func (p *TCPProxy) locked(do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	do()
}

// Through returns the URL or DSN of the server with the proxy's address in the place of the server's.
func (p *TCPProxy) Through(url string) string {
	if !strings.Contains(url, p.target) {
		p.fail("lead a client through the proxy: its URL does not name %s", p.target)
	}
	return strings.Replace(url, p.target, p.Addr, 1)
}

// Cut resets all connections there are: both sides get an error at once. New ones are taken. It returns how many there
// were.
func (p *TCPProxy) Cut() (n int) {
	p.locked(func() {
		n = len(p.links)
		for l := range p.links {
			l.cut()
		}
	})
	return n
}

// Refuse makes new connections fail with "connection refused", or lets them in again. Those there are stay. The port
// stays bound meanwhile: somebody else's server would take it.
func (p *TCPProxy) Refuse(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if on == p.refuses {
		return
	}
	raw, err := p.listener.SyscallConn()
	if err == nil {
		controlled := raw.Control(func(fd uintptr) {
			// On Linux a socket whose reading is shut listens no more and keeps its address. Nobody may be bound beside it
			// then, as Go lets others be by default.
			err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_REUSEADDR, map[bool]int{false: 1}[on])
			if on {
				err = errors.Join(err, syscall.Shutdown(int(fd), syscall.SHUT_RD))
			} else {
				err = errors.Join(err, syscall.Listen(int(fd), syscall.SOMAXCONN))
			}
		})
		err = errors.Join(controlled, err)
	}
	if err != nil {
		p.fail("refuse connections (%v): %v", on, err)
		return
	}
	p.refuses = on
	if !on {
		p.wg.Go(p.accept)
	}
}

// Hold freezes the bytes of all connections, in both directions, as a network does that drops every packet; new
// connections are taken and frozen too. Hold(false) lets the bytes go on: none is lost.
func (p *TCPProxy) Hold(on bool) {
	p.locked(func() {
		switch held := !poll.IsClosed(p.open); {
		case on && !held:
			p.open = make(chan struct{})
		case !on && held:
			close(p.open)
		}
	})
}

// Delay holds each piece of bytes back for d, in both directions, which makes every link slow. 0 ends it.
func (p *TCPProxy) Delay(d time.Duration) { p.locked(func() { p.delay = d }) }

// Rate lets at most so many bytes a second through each direction of each link, as a narrow line does. 0 ends it.
func (p *TCPProxy) Rate(bytesPerSecond int) { p.locked(func() { p.rate = bytesPerSecond }) }

// Carried is how many bytes have been passed on so far, in both directions.
func (p *TCPProxy) Carried() int64 { return p.carried.Load() }

// DropReply waits for the first piece of bytes from a client for which match is true, gives it to the server, waits
// until the server replies, and then cuts that connection instead of passing the reply on: the server did it and the
// client does not know. The channel is closed when that has happened. It happens once.
//
// A piece is what one read brings, at most 64 KiB: small requests such as COMMIT come whole.
func (p *TCPProxy) DropReply(match func(clientBytes []byte) bool) <-chan struct{} {
	return p.set(&trap{match: match, deliver: true})
}

// Losing makes two functions: lose loses the reply to the next piece with the word in it, and lost says whether it did.
func (p *TCPProxy) Losing(word string) (lose func(), lost func() int) {
	var sprung <-chan struct{}
	lose = func() {
		sprung = p.DropReply(func(piece []byte) bool { return bytes.Contains(piece, []byte(word)) })
	}
	return lose, func() int {
		select {
		case <-sprung:
			return 1
		case <-time.After(10 * time.Second): // who asks several servers does not wait for the one that answers last
			return 0
		}
	}
}

// DropRequest cuts the connection before the server gets the first piece of bytes for which match is true: the server
// did not do it and the client does not know. The channel is closed when that has happened. It happens once.
func (p *TCPProxy) DropRequest(match func(clientBytes []byte) bool) <-chan struct{} {
	return p.set(&trap{match: match})
}

// HoldRequest holds the first piece of bytes for which match is true until opened is closed; other connections go on.
// The channel is closed when the piece is there.
func (p *TCPProxy) HoldRequest(match func(clientBytes []byte) bool, opened <-chan struct{}) <-chan struct{} {
	return p.set(&trap{match: match, opened: opened})
}

func (p *TCPProxy) set(t *trap) <-chan struct{} {
	t.sprung = make(chan struct{})
	p.locked(func() { p.traps = append(p.traps, t) })
	return t.sprung
}

// KillOn cuts, from now on and each time, the connection on which the server sends these bytes, before they have
// arrived whole: as a filter on the way does that takes them for an attack. nil ends it.
func (p *TCPProxy) KillOn(killer []byte) { p.locked(func() { p.killer = killer }) }

// Killed is how many connections KillOn has ended.
func (p *TCPProxy) Killed() (n int) { p.locked(func() { n = p.killed }); return n }

// Links is the number of connections that are open now.
func (p *TCPProxy) Links() (n int) { p.locked(func() { n = len(p.links) }); return n }

// Close cuts everything and returns when all goroutines of the proxy have ended.
func (p *TCPProxy) Close() {
	p.Refuse(true)
	p.locked(func() { p.closed = true })
	_ = p.listener.Close() // a listener always closes
	p.Cut()
	p.wg.Wait()
}

// accept ends when its listener is closed, or refuses.
func (p *TCPProxy) accept() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) && !errors.Is(err, syscall.EINVAL) {
				p.fail("proxy: accept: %v", err)
			}
			return
		}
		l := &link{client: conn.(*net.TCPConn), gone: make(chan struct{})}
		p.locked(func() {
			if p.closed {
				l.cut()
				return
			}
			p.links[l] = struct{}{}
			p.wg.Go(func() { p.serve(l) })
		})
	}
}

// serve carries the bytes of one link until both sides have ended or the link is cut.
func (p *TCPProxy) serve(l *link) {
	defer p.locked(func() { l.cut(); delete(p.links, l) })
	conn, err := net.DialTimeout("tcp", p.target, askTimeout)
	if err != nil {
		return // the client's connection is reset, as by a server that is down
	}
	server := conn.(*net.TCPConn)
	l.server.Store(server)
	if poll.IsClosed(l.gone) { // cut while the server was dialled, so cut did not see it
		reset(server)
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() { p.carry(l, l.client, server) })
	p.carry(l, server, l.client)
	wg.Wait()
}

// carry copies one direction. When one has ended, the other may go on.
func (p *TCPProxy) carry(l *link, from, to *net.TCPConn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && p.wait(l, n) && p.passes(l, buf[:n], from == l.client) {
			_, failed := to.Write(buf[:n])
			err = cmp.Or(failed, err)
			p.carried.Add(int64(n))
		} else if n > 0 {
			err = net.ErrClosed
		}
		if errors.Is(err, io.EOF) {
			_ = to.CloseWrite()
			return
		}
		if err != nil {
			l.cut()
			return
		}
	}
}

// wait holds a piece of n bytes back as Hold, Delay and Rate say; it is false when the link was cut meanwhile.
func (p *TCPProxy) wait(l *link, n int) bool {
	p.mu.Lock()
	open, delay := p.open, p.delay
	if p.rate > 0 {
		delay += time.Duration(n) * time.Second / time.Duration(p.rate)
	}
	p.mu.Unlock()
	if delay > 0 {
		select {
		case <-time.After(delay):
		case <-l.gone:
			return false
		}
	}
	select {
	case <-open:
		return true
	case <-l.gone:
		return false
	}
}

// passes says whether a piece is passed on: it springs the first trap that matches what a client says, and stops the
// reply that such a trap waits for, and what kills.
func (p *TCPProxy) passes(l *link, piece []byte, fromClient bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	springs := func(t *trap) bool { l.cut(); close(t.sprung); return false }
	switch {
	case fromClient:
		i := slices.IndexFunc(p.traps, func(t *trap) bool { return t.match(piece) })
		if i < 0 {
			return true
		}
		t := p.traps[i]
		p.traps = slices.Delete(slices.Clone(p.traps), i, i+1)
		if t.opened != nil {
			close(t.sprung)
			p.mu.Unlock()
			defer p.mu.Lock()
			select {
			case <-t.opened:
				return true
			case <-l.gone:
				return false
			}
		}
		if !t.deliver {
			return springs(t)
		}
		l.dropping = t
	case l.dropping != nil:
		return springs(l.dropping)
	case p.killer != nil:
		seen := append(l.tail, piece...)
		if bytes.Contains(seen, p.killer) {
			p.killed++
			return false
		}
		l.tail = slices.Clone(seen[max(0, len(seen)-len(p.killer)+1):])
	}
	return true
}

// cut resets both sides. It may be called twice.
func (l *link) cut() {
	l.once.Do(func() {
		close(l.gone)
		reset(l.client)
		if server := l.server.Load(); server != nil {
			reset(server)
		}
	})
}

// reset closes so that the other side gets a reset instead of an orderly end.
func reset(conn *net.TCPConn) {
	_ = conn.SetLinger(0) // fails only on a closed connection
	_ = conn.Close()
}
