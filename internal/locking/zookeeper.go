package locking

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/google/uuid"

	"github.com/rollbackd/rollbackd/lock"
)

// ZooKeeper is the lock over ephemeral nodes of ZooKeeper: a node for each name, of the session of this process. The
// client keeps the session alive; when it ends (the process has died, or was cut off for longer than a LockTTL), the
// server takes all its nodes away. It writes no done markers: they would have to outlive the session, and somebody
// would have to delete each of them. So Done gives the names back.
//
// A session whose server has failed us once is given up, and with it all that it held: what became of a call that was
// cut off is never known, and a node that nobody knows of would stand as long as the session.
type ZooKeeper struct {
	lock.Locker
	store *zkStore
}

// OpenZooKeeper makes a lock. It asks no server. Close ends its session.
func OpenZooKeeper(s Servers, o lock.Options) (*ZooKeeper, error) {
	o = o.WithDefaults()
	to, err := parseZooKeeperURL(s.ZooKeeperURL)
	if err != nil {
		return nil, fmt.Errorf("ZooKeeper URL: %w", err)
	}
	store := &zkStore{to: to, ttl: o.LockTTL, timeout: o.Timeout, opened: s.Opened}
	locker, err := lock.Over("zookeeper", store, o)
	if err != nil {
		return nil, err
	}
	return &ZooKeeper{locker, store}, nil
}

// Run keeps the lock, see [lock.Locker], and ends the session with it: its locks are free at once then.
func (l *ZooKeeper) Run(ctx context.Context) error {
	err := l.Locker.Run(ctx)
	l.store.drop(l.store.current())
	return err
}

// Close ends the session, and waits for what is left of former ones.
func (l *ZooKeeper) Close() error {
	l.store.drop(l.store.current())
	l.store.left.Wait()
	return nil
}

type zkStore struct {
	to           zkURL
	ttl, timeout time.Duration
	opened       func() // nil: nobody counts
	left         sync.WaitGroup

	mu      sync.Mutex
	session *zkSession // nil: none yet, or given up; guarded by mu
}

// zkSession is a session, and the wires that it has had: the client closes none that hangs.
type zkSession struct {
	conn *zk.Conn

	mu    sync.Mutex
	ready bool       // the folder is there; guarded by mu
	wires []net.Conn // guarded by mu
	over  bool       // guarded by mu
}

func (s *zkStore) current() *zkSession {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.session
}

// open returns the session, or a new one. It does not wait for a server.
func (s *zkStore) open() (*zkSession, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session != nil {
		return s.session, nil
	}
	session := &zkSession{}
	dial := func(network, addr string, timeout time.Duration) (net.Conn, error) {
		conn, err := net.DialTimeout(network, addr, min(timeout, s.timeout))
		if err != nil {
			return nil, err
		}
		wire := &framed{Conn: conn}
		session.keep(wire)
		if s.opened != nil {
			s.opened()
		}
		return wire, nil
	}
	conn, _, err := zk.Connect(s.to.hosts, s.ttl, zk.WithDialer(dial), zk.WithHostProvider(&zkHosts{}),
		zk.WithLogger(silent{}), zk.WithLogInfo(false))
	if err != nil {
		return nil, err
	}
	session.conn = conn
	s.session = session
	return session, nil
}

func (s *zkSession) keep(wire net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wires = append(s.wires, wire)
	if s.over {
		_ = wire.Close()
	}
	const kept = 2 // the client has closed all but the last one
	s.wires = s.wires[max(0, len(s.wires)-kept):]
}

// drop gives a session up: in good order where the server answers, else it ends there by itself.
func (s *zkStore) drop(session *zkSession) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if session == nil || s.session != session {
		return // somebody was faster
	}
	s.session = nil
	s.left.Go(func() {
		session.conn.Close() // waits for a second, at most
		session.mu.Lock()
		defer session.mu.Unlock()
		session.over = true
		for _, wire := range session.wires {
			_ = wire.Close()
		}
	})
}

// ask runs a call on the session, for the lock's timeout at most. The client's calls know no context: one that hangs is
// left behind with its session.
func ask[T any](ctx context.Context, s *zkStore, call func(*zk.Conn) (T, error)) (T, error) {
	var none T
	if ctx.Err() != nil {
		return none, context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.timeout, fmt.Errorf("zookeeper took over %v", s.timeout))
	defer cancel()
	session, err := s.open()
	if err != nil {
		return none, err
	}
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	s.left.Go(func() {
		var r result
		if r.err = s.prepare(session); r.err == nil {
			r.value, r.err = call(session.conn)
		}
		done <- r
	})
	select {
	case r := <-done:
		if r.err != nil {
			s.drop(session)
		}
		return r.value, r.err
	case <-ctx.Done():
		s.drop(session)
		return none, context.Cause(ctx)
	}
}

// prepare makes the folder of the locks, once in a session.
func (s *zkStore) prepare(session *zkSession) error {
	session.mu.Lock()
	ready := session.ready
	session.mu.Unlock()
	if ready {
		return nil
	}
	if s.to.user != "" {
		err := insist(func() error {
			return session.conn.AddAuth("digest", []byte(s.to.user+":"+s.to.password))
		})
		if err != nil {
			return fmt.Errorf("log in: %w", err)
		}
	}
	for end := 1; end <= len(s.to.path); end++ {
		if end < len(s.to.path) && s.to.path[end] != '/' {
			continue
		}
		folder := s.to.path[:end]
		err := insist(func() error {
			found, _, err := session.conn.Exists(folder)
			if found || err != nil {
				return err
			}
			_, err = session.conn.Create(folder, nil, 0, s.acl())
			return err
		})
		if err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return fmt.Errorf("make the folder %s: %w", folder, err)
		}
	}
	session.mu.Lock()
	defer session.mu.Unlock()
	session.ready = true
	return nil
}

// acl gives everything to who has logged in as we have, or to everybody where nobody logs in.
func (s *zkStore) acl() []zk.ACL {
	if s.to.user != "" {
		return zk.AuthACL(zk.PermAll)
	}
	return zk.WorldACL(zk.PermAll)
}

// insist repeats a call whose connection was lost: the session may live on over the next one. All of ours may be
// repeated.
func insist(call func() error) error {
	const tries = 3
	for try := 1; ; try++ {
		err := call()
		again := errors.Is(err, zk.ErrConnectionClosed) || errors.Is(err, zk.ErrSessionMoved) ||
			errors.Is(err, zk.ErrSessionExpired) // the client begins another
		if !again || try == tries {
			return err
		}
	}
}

func (s *zkStore) node(name string) string { return s.to.path + "/" + name }

// chunk of names whose nodes go into one transaction; a packet has 1 MB at most by default.
const zkChunk = 1000

// Take makes the nodes of all names in one transaction, which is refused as a whole when any of them is there. Then
// they are looked at, all at once, and the missing ones are made.
func (s *zkStore) Take(ctx context.Context, value string, names []lock.Name) ([]lock.Held, error) {
	names = slices.Clone(names) // a call that is cut off goes on for a while
	return ask(ctx, s, func(conn *zk.Conn) ([]lock.Held, error) {
		held := make([]lock.Held, len(names))
		open := make([]int, len(names))
		for i := range open {
			open[i] = i
		}
		const tries = 3 // a node that was in the way may be gone before it is looked at
		for try := 0; len(open) > 0 && try < tries; try++ {
			var left []int
			for some := range slices.Chunk(open, zkChunk) {
				more, err := s.takeSome(conn, value, names, some, held)
				if err != nil {
					return held, err
				}
				left = append(left, more...)
			}
			open = left
		}
		for _, i := range open {
			held[i].Hold = lock.HeldByOther // whose lock it is changes faster than it is looked at
		}
		return held, nil
	})
}

// takeSome tries some names and returns those that it knows nothing of.
func (s *zkStore) takeSome(
	conn *zk.Conn, value string, names []lock.Name, some []int, held []lock.Held,
) (left []int, _ error) {
	makes := make([]any, len(some))
	for n, i := range some {
		makes[n] = &zk.CreateRequest{
			Path: s.node(names[i].String()), Data: []byte(value), Acl: s.acl(), Flags: zk.FlagEphemeral,
		}
	}
	err := transact(conn, makes)
	if err == nil {
		for _, i := range some {
			held[i].Hold = lock.Mine
		}
		return nil, nil
	}
	if !errors.Is(err, zk.ErrNodeExists) {
		return nil, err
	}
	texts := make([]string, len(some))
	for n, i := range some {
		texts[n] = names[i].String()
	}
	nodes, err := s.look(conn, texts)
	if err != nil {
		return nil, err
	}
	for n, i := range some {
		switch node := nodes[n]; {
		case !node.there:
			left = append(left, i)
		case !node.ephemeral: // nobody takes it away, so nobody waits for it
			held[i].Hold = lock.Foreign
		default:
			held[i] = lock.ReadHeld(node.value, value)
		}
	}
	return left, nil
}

// transact is one transaction of the operations.
func transact(conn *zk.Conn, operations []any) error {
	return insist(func() error {
		_, err := conn.Multi(operations...)
		return err
	})
}

// zkNode is what stands under a name.
type zkNode struct {
	there, ephemeral bool
	value            string
	version          int32
}

// look reads nodes, all at once over one connection.
func (s *zkStore) look(conn *zk.Conn, names []string) ([]zkNode, error) {
	nodes := make([]zkNode, len(names))
	err := atOnce(len(names), func(i int) error {
		return insist(func() error {
			data, stat, err := conn.Get(s.node(names[i]))
			if errors.Is(err, zk.ErrNoNode) {
				return nil
			}
			if errors.Is(err, zk.ErrNoAuth) { // another account's, in a folder that both may use: nobody waits for it
				nodes[i] = zkNode{there: true}
				return nil
			}
			if err != nil {
				return err
			}
			nodes[i] = zkNode{true, stat.EphemeralOwner != 0, string(data), stat.Version}
			return nil
		})
	})
	return nodes, err
}

// atOnce calls f for 0 to n-1, many at a time, and returns the first error.
func atOnce(n int, f func(i int) error) error {
	const most = 128
	var wg sync.WaitGroup
	errs := make([]error, min(n, most))
	for worker := range errs {
		wg.Go(func() {
			for i := worker; i < n && errs[worker] == nil; i += len(errs) {
				errs[worker] = f(i)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// GiveBack deletes the nodes that have the value. A node may change hands between the look and the deletion, which
// costs the new holder its lock, and nothing else.
func (s *zkStore) GiveBack(ctx context.Context, value string, names []lock.Name) error {
	texts := textsOf(names)
	_, err := ask(ctx, s, func(conn *zk.Conn) (struct{}, error) {
		nodes, err := s.look(conn, texts)
		if err != nil {
			return struct{}{}, err
		}
		var ours []string
		for i, node := range nodes {
			if node.there && node.value == value {
				ours = append(ours, texts[i])
			}
		}
		return struct{}{}, s.delete(conn, ours)
	})
	return err
}

// Mark deletes the nodes, whoever holds them: the success is committed.
func (s *zkStore) Mark(ctx context.Context, marks []lock.Mark) error {
	texts := make([]string, len(marks))
	for i, m := range marks {
		texts[i] = m.Name.String()
	}
	_, err := ask(ctx, s, func(conn *zk.Conn) (struct{}, error) { return struct{}{}, s.delete(conn, texts) })
	return err
}

// delete is one transaction, or two where some were not there; or each by itself where some may not be deleted, which
// are none of ours.
func (s *zkStore) delete(conn *zk.Conn, names []string) error {
	for some := range slices.Chunk(names, zkChunk) {
		err := s.deleteAll(conn, some)
		if errors.Is(err, zk.ErrNoNode) { // as after a time in which nobody was asked: one look costs less than many writes
			nodes, failed := s.look(conn, some)
			if failed != nil {
				return failed
			}
			var there []string
			for i, node := range nodes {
				if node.there {
					there = append(there, some[i])
				}
			}
			if some = there; len(some) == 0 {
				continue
			}
			err = s.deleteAll(conn, some)
		}
		if passes(err) {
			err = atOnce(len(some), func(i int) error {
				err := insist(func() error { return conn.Delete(s.node(some[i]), anyVersion) })
				if passes(err) {
					return nil
				}
				return err
			})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

const anyVersion = -1

func (s *zkStore) deleteAll(conn *zk.Conn, names []string) error {
	deletes := make([]any, len(names))
	for i, name := range names {
		deletes[i] = &zk.DeleteRequest{Path: s.node(name), Version: anyVersion}
	}
	return transact(conn, deletes)
}

// passes reports that one node cannot be deleted, and no failure of the server.
func passes(err error) bool {
	return errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrNoAuth) || errors.Is(err, zk.ErrNotEmpty)
}

// Renew has nothing to do: the client keeps the session alive, and with it all its nodes.
func (s *zkStore) Renew(_ context.Context, names []lock.Name, _ []string) (stands []bool, err error) {
	return slices.Repeat([]bool{true}, len(names)), nil
}

// GiveUp deletes nodes that were held for too long: they would stand as long as the session.
func (s *zkStore) GiveUp(ctx context.Context, value string, names []lock.Name) error {
	return s.GiveBack(ctx, value, names)
}

// Probe makes a node and deletes it, in one transaction: a server without a majority of others answers what is read.
func (s *zkStore) Probe(ctx context.Context) error {
	_, err := ask(ctx, s, func(conn *zk.Conn) (struct{}, error) {
		path := s.node("rollbackd:probe:" + uuid.NewString())
		return struct{}{}, transact(conn, []any{
			&zk.CreateRequest{Path: path, Acl: s.acl(), Flags: zk.FlagEphemeral}, &zk.DeleteRequest{Path: path, Version: -1},
		})
	})
	return err
}

// Show looks at one node. When it ends nobody knows: with its session, a LockTTL after its process died.
func (s *zkStore) Show(ctx context.Context, name lock.Name) (lock.State, error) {
	nodes, err := ask(ctx, s, func(conn *zk.Conn) ([]zkNode, error) { return s.look(conn, []string{name.String()}) })
	if err != nil {
		return lock.State{}, err
	}
	switch node := nodes[0]; {
	case !node.there:
		return lock.State{}, nil
	case !node.ephemeral:
		return lock.State{Hold: lock.Foreign, TTL: -1}, nil
	default:
		return lock.ReadState(node.value, s.ttl), nil
	}
}

func textsOf(names []lock.Name) []string {
	texts := make([]string, len(names))
	for i, n := range names {
		texts[i] = n.String()
	}
	return texts
}

// zkHosts tries each server once before the client takes a rest: its own provider rests for a second after any loss of
// the connection to a single server. Names are resolved by who dials, each time.
type zkHosts struct {
	mu          sync.Mutex
	hosts       []string // guarded by mu
	next, tried int      // guarded by mu
}

// Init takes the servers.
func (h *zkHosts) Init(servers []string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hosts = servers
	return nil
}

// Len is how many there are.
func (h *zkHosts) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.hosts)
}

// Next is the one to try, and whether all were tried in vain.
func (h *zkHosts) Next() (server string, retryStart bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	server = h.hosts[h.next]
	h.next = (h.next + 1) % len(h.hosts)
	if h.tried++; h.tried > len(h.hosts) {
		h.tried, retryStart = 1, true
	}
	return server, retryStart
}

// Connected says that the last one is good.
func (h *zkHosts) Connected() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tried = 0
	h.next = (h.next + len(h.hosts) - 1) % len(h.hosts) // and the first to be tried again
}

// silent is a logger of the client that says nothing: what goes wrong comes back as an error.
type silent struct{}

// Printf says nothing.
func (silent) Printf(string, ...any) {}

// zkURL is where ZooKeeper is and under which folder the locks stand.
type zkURL struct {
	hosts          []string
	path           string
	user, password string
}
