package lockers

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/rollbackd/rollbackd/lock"
)

// zooKeeper is the lock over ephemeral nodes of ZooKeeper: a node for each name, of the session of this process. The
// client keeps the session alive; when it ends (the process has died, or was cut off for longer than a LockTTL), the
// server takes all its nodes away. It writes no done markers: they would have to outlive the session, and somebody
// would have to delete each of them. So Done gives the names back.
//
// A session whose server has failed us once is given up, and with it all that it held: what became of a call that was
// cut off is never known, and a node that nobody knows of would stand as long as the session.
type zooKeeper struct {
	to     zkURL
	acl    []zk.ACL
	o      lock.Options
	opened func()
	left   sync.WaitGroup

	mu      sync.Mutex
	session *zkSession // nil: none yet, or given up; guarded by mu
}

type zkSession struct {
	conn    *zk.Conn
	prepare func() error       // logs in and makes the folder, once
	end     context.CancelFunc // closes its wires: the client closes none that hangs
}

// openZooKeeper asks no server.
func (l *Lock) openZooKeeper(s Servers, o lock.Options) error {
	to, err := parseZooKeeperURL(s.ZooKeeperURL)
	if err != nil {
		return fmt.Errorf("ZooKeeper URL: %w", err)
	}
	store := &zooKeeper{to: to, acl: zk.WorldACL(zk.PermAll), o: o, opened: s.Opened}
	if to.login != "" { // everything is for who has logged in as we have
		store.acl = zk.AuthACL(zk.PermAll)
	}
	l.Closer = store
	l.Locker, err = lock.Over("zookeeper", store, o)
	return err
}

// Close ends the session, and waits for what is left of former ones.
func (s *zooKeeper) Close() error {
	s.drop(nil)
	s.left.Wait()
	return nil
}

// open returns the session, or a new one. It does not wait for a server.
func (s *zooKeeper) open() (*zkSession, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session != nil {
		return s.session, nil
	}
	life, end := context.WithCancel(context.Background())
	dial := func(network, addr string, timeout time.Duration) (net.Conn, error) {
		conn, err := net.DialTimeout(network, addr, min(timeout, s.o.Timeout))
		if err != nil {
			return nil, err
		}
		if s.opened != nil {
			s.opened()
		}
		return &zkWire{Conn: conn, forget: context.AfterFunc(life, func() { _ = conn.Close() })}, nil
	}
	conn, _, err := zk.Connect(s.to.hosts, s.o.LockTTL, zk.WithDialer(dial), zk.WithHostProvider(&zkHosts{}),
		zk.WithLogger(log.New(io.Discard, "", 0)), zk.WithLogInfo(false))
	if err != nil {
		end()
		return nil, err
	}
	s.session = &zkSession{conn, sync.OnceValue(func() error { return s.prepare(conn) }), end}
	return s.session, nil
}

// drop gives a session up, nil: whichever there is. It ends in good order where the server answers, else by itself.
func (s *zooKeeper) drop(session *zkSession) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if session = cmp.Or(session, s.session); session == nil || s.session != session {
		return // somebody was faster
	}
	s.session = nil
	s.left.Go(func() {
		session.conn.Close() // waits for a second, at most
		session.end()
	})
}

// ask runs a call on the session. The client's calls know no context: one that hangs is left behind with its session,
// so what it writes may be read only when ask returns nil.
func (s *zooKeeper) ask(ctx context.Context, call func(*zk.Conn) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	session, err := s.open()
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	s.left.Go(func() {
		err := session.prepare()
		if err == nil {
			err = call(session.conn)
		}
		done <- err
	})
	select {
	case err = <-done:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		s.drop(session)
	}
	return err
}

// prepare logs in and makes the folder of the locks. Who may not write into its parents may use it all the same.
func (s *zooKeeper) prepare(conn *zk.Conn) error {
	if s.to.login != "" {
		if err := insist(func() error { return conn.AddAuth("digest", []byte(s.to.login)) }); err != nil {
			return fmt.Errorf("log in: %w", err)
		}
	}
	folder := ""
	for _, part := range strings.Split(s.to.folder[1:], "/") {
		folder += "/" + part
		err := insist(func() error {
			found, _, err := conn.Exists(folder)
			if !found && err == nil {
				_, err = conn.Create(folder, nil, 0, s.acl)
			}
			return err
		})
		if err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return fmt.Errorf("make the folder %s: %w", folder, err)
		}
	}
	return nil
}

// insist repeats a call whose connection was lost: the session may live on over the next one, and the client begins
// another for one that has expired.
func insist(call func() error) error {
	return repeat(call, func(err error) bool {
		return isAny(err, zk.ErrConnectionClosed, zk.ErrSessionMoved, zk.ErrSessionExpired)
	})
}

func isAny(err error, some ...error) bool {
	return slices.ContainsFunc(some, func(one error) bool { return errors.Is(err, one) })
}

// transact is one transaction of the operations, or several: a packet has 1 MB at most by default.
func transact(conn *zk.Conn, operations ...any) error {
	const most = 1000
	for some := range slices.Chunk(operations, most) {
		if err := insist(func() error { _, err := conn.Multi(some...); return err }); err != nil {
			return err
		}
	}
	return nil
}

func (s *zooKeeper) path(name lock.Name) string { return s.to.folder + "/" + name.String() }

func (s *zooKeeper) paths(names []lock.Name) []string {
	paths := make([]string, len(names))
	for i, n := range names {
		paths[i] = s.path(n)
	}
	return paths
}

// Take makes the nodes of all names in one transaction, which is refused as a whole when any of them is there. Then
// they are looked at, all at once, and the missing ones are left open.
func (s *zooKeeper) Take(ctx context.Context, value string, names []lock.Name) ([]lock.Held, error) {
	paths, held := s.paths(names), make([]lock.Held, len(names))
	err := s.ask(ctx, func(conn *zk.Conn) error {
		makes := make([]any, len(paths))
		for i, path := range paths {
			makes[i] = &zk.CreateRequest{Path: path, Data: []byte(value), Acl: s.acl, Flags: zk.FlagEphemeral}
			held[i].Hold = lock.Mine
		}
		err := transact(conn, makes...)
		if !errors.Is(err, zk.ErrNodeExists) {
			return err
		}
		nodes, err := look(conn, paths)
		for i, node := range nodes {
			held[i] = lock.Held{} // of one that is not there
			if node.there && !node.ephemeral {
				held[i].Hold = lock.Foreign // nobody takes it away, so nobody waits for it
			} else if node.there {
				held[i] = lock.ReadHeld(node.value, value)
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return held, nil
}

// zkNode is what stands under a name.
type zkNode struct {
	there, ephemeral bool
	value            string
}

// look reads nodes, all at once over one connection.
func look(conn *zk.Conn, paths []string) ([]zkNode, error) {
	nodes := make([]zkNode, len(paths))
	return nodes, atOnce(len(paths), func(i int) error {
		data, stat, err := conn.Get(paths[i])
		switch {
		case errors.Is(err, zk.ErrNoNode):
			return nil
		case errors.Is(err, zk.ErrNoAuth): // another account's, in a folder that both may use: nobody waits for it
			nodes[i].there = true
			return nil
		case err == nil:
			nodes[i] = zkNode{true, stat.EphemeralOwner != 0, string(data)}
		}
		return err
	})
}

// atOnce insists on f for 0 to n-1, many at a time.
func atOnce(n int, f func(i int) error) error {
	var group errgroup.Group
	group.SetLimit(128)
	for i := range n {
		group.Go(func() error { return insist(func() error { return f(i) }) })
	}
	return group.Wait()
}

// GiveBack deletes the nodes that have the value. A node may change hands between the look and the deletion, which
// costs the new holder its lock, and nothing else.
func (s *zooKeeper) GiveBack(ctx context.Context, value string, names []lock.Name) error {
	return s.delete(ctx, s.paths(names), func(node zkNode) bool { return node.value == value })
}

// Mark deletes the nodes, whoever holds them: the success is committed.
func (s *zooKeeper) Mark(ctx context.Context, marks []lock.Mark) error {
	return s.delete(ctx, s.paths(lock.NamesOf(marks)), nil)
}

// delete is one transaction. Where only some are meant, or some were not there, as after a time in which nobody was
// asked, it looks first and deletes one by one. What may not be deleted is none of ours.
func (s *zooKeeper) delete(ctx context.Context, paths []string, only func(zkNode) bool) error {
	return s.ask(ctx, func(conn *zk.Conn) error {
		if only == nil {
			deletes := make([]any, len(paths))
			for i, path := range paths {
				deletes[i] = &zk.DeleteRequest{Path: path, Version: anyVersion}
			}
			if err := transact(conn, deletes...); !passes(err) {
				return err
			}
		}
		nodes, err := look(conn, paths)
		if err != nil {
			return err
		}
		return atOnce(len(paths), func(i int) (err error) {
			if nodes[i].there && (only == nil || only(nodes[i])) {
				err = conn.Delete(paths[i], anyVersion)
			}
			if passes(err) {
				return nil
			}
			return err
		})
	})
}

const anyVersion = -1

// passes reports that one node cannot be deleted, and no failure of the server.
func passes(err error) bool { return isAny(err, zk.ErrNoNode, zk.ErrNoAuth, zk.ErrNotEmpty) }

// Renew has nothing to do: the client keeps the session alive, and with it all its nodes.
func (*zooKeeper) Renew(_ context.Context, names []lock.Name, _ []string) (stands []bool, err error) {
	return slices.Repeat([]bool{true}, len(names)), nil
}

// Probe makes a node and deletes it, in one transaction: a server without a majority of others answers what is read.
func (s *zooKeeper) Probe(ctx context.Context) error {
	path := s.to.folder + "/rollbackd:probe:" + uuid.NewString()
	return s.ask(ctx, func(conn *zk.Conn) error {
		return transact(conn, &zk.CreateRequest{Path: path, Acl: s.acl, Flags: zk.FlagEphemeral},
			&zk.DeleteRequest{Path: path, Version: anyVersion})
	})
}

// Show looks at one node. When it ends nobody knows: with its session, a LockTTL after its process died.
func (s *zooKeeper) Show(ctx context.Context, name lock.Name) (state lock.State, _ error) {
	var nodes []zkNode
	err := s.ask(ctx, func(conn *zk.Conn) (err error) {
		nodes, err = look(conn, []string{s.path(name)})
		return err
	})
	if err == nil && nodes[0].there {
		state = lock.State{Hold: lock.Foreign, TTL: -1}
		if nodes[0].ephemeral {
			state = lock.ReadState(nodes[0].value, s.o.LockTTL)
		}
	}
	return state, err
}

// zkHosts tries each server once before the client takes a rest: its own provider rests for a second after any loss of
// the connection to a single server. Names are resolved by who dials, each time. One goroutine of the client asks it.
type zkHosts struct {
	hosts       []string
	next, tried int
}

// Init takes the servers.
func (h *zkHosts) Init(servers []string) error { h.hosts = servers; return nil }

// Len is how many there are.
func (h *zkHosts) Len() int { return len(h.hosts) }

// Next is the one to try, and whether all were tried in vain.
func (h *zkHosts) Next() (server string, retryStart bool) {
	server = h.hosts[h.next]
	h.next = (h.next + 1) % len(h.hosts)
	if h.tried++; h.tried > len(h.hosts) {
		h.tried, retryStart = 1, true
	}
	return server, retryStart
}

// Connected says that the last one is good, and the first to be tried again.
func (h *zkHosts) Connected() { h.tried, h.next = 0, (h.next+len(h.hosts)-1)%len(h.hosts) }

// zkWire refuses what no ZooKeeper sends. The client makes room for as many bytes as the first four of an answer say,
// whoever answers: "HTTP" is a gibibyte, and an answer that is shorter than its head ends the process.
type zkWire struct {
	net.Conn
	head   [4]byte
	have   int         // bytes of head
	body   int         // bytes of the answer that are to come
	forget func() bool // the end of its session
}

const (
	shortestAnswer = 16      // its number, the transaction and the error
	longestAnswer  = 4 << 20 // four times what a server sends by default (jute.maxbuffer)
)

// Read counts along. The client is its only reader.
func (w *zkWire) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	for rest := p[:n]; len(rest) > 0; {
		if w.body > 0 {
			seen := min(w.body, len(rest))
			w.body, rest = w.body-seen, rest[seen:]
			continue
		}
		seen := copy(w.head[w.have:], rest)
		w.have, rest = w.have+seen, rest[seen:]
		if w.have < len(w.head) {
			break
		}
		length := binary.BigEndian.Uint32(w.head[:])
		if length < shortestAnswer || length > longestAnswer {
			return 0, errors.New("what answers at this address is no ZooKeeper")
		}
		w.have, w.body = 0, int(length)
	}
	return n, err
}

// Close closes the connection, and forgets what the end of the session would do.
func (w *zkWire) Close() error {
	w.forget()
	return w.Conn.Close()
}

// zkURL is where ZooKeeper is, under which folder the locks stand, and user:password.
type zkURL struct {
	hosts         []string
	folder, login string
}

// ZooKeeperForm is what a URL of ZooKeeper looks like.
const ZooKeeperForm = "zookeeper://[user:password@]host:port[,host:port…][/folder]"

var zkFolder = regexp.MustCompile(`^(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+$`)

// CheckZooKeeperURL says why ZooKeeper cannot be reached under this URL by its form alone, without ever quoting a
// secret.
func CheckZooKeeperURL(raw string) error {
	_, err := parseZooKeeperURL(raw)
	return err
}

// parseZooKeeperURL reads the URL by hand, because net/url refuses several addresses with ports.
func parseZooKeeperURL(raw string) (u zkURL, _ error) {
	rest, ok := strings.CutPrefix(raw, "zookeeper://")
	if !ok {
		return u, errors.New("it must begin with zookeeper://")
	}
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		user, password, _ := strings.Cut(rest[:at], ":")
		name, err := url.PathUnescape(user)
		secret, err2 := url.PathUnescape(password)
		if cmp.Or(err, err2) != nil || name == "" || secret == "" || strings.ContainsAny(rest[:at], "/?#") ||
			strings.Contains(name, ":") {
			return u, errors.New("before the @ stand user:password, with special characters percent-encoded")
		}
		u.login, rest = name+":"+secret, rest[at+1:]
	}
	hosts, folder, _ := strings.Cut(rest, "/")
	u.folder = "/" + cmp.Or(folder, "rollbackd")
	if !zkFolder.MatchString(u.folder) {
		return u, errors.New("the folder must be a path of letters, digits, - _ and . without a slash at its end")
	}
	for i, addr := range strings.Split(hosts, ",") {
		addr = strings.TrimSpace(addr)
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			host, port = strings.Trim(addr, "[]"), "2181"
		}
		n, err := strconv.ParseUint(port, 10, 16)
		if host == "" || err != nil || n == 0 || strings.ContainsAny(host, " /?#@") {
			return u, fmt.Errorf("address %d is not host:port", i+1)
		}
		u.hosts = append(u.hosts, net.JoinHostPort(host, port))
	}
	return u, nil
}
