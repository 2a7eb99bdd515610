package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// EnvRedisHA asks for the tests on Redis that fails over: each needs three to six servers, and seconds until they know
// each other.
const EnvRedisHA = "ROLLBACKD_TEST_REDIS_HA"

// NeedRedisHA skips the test if the environment does not ask for such tests.
func NeedRedisHA(t testing.TB) {
	t.Helper()
	if os.Getenv(EnvRedisHA) == "" {
		t.Skip("make test-redis-ha runs this")
	}
}

// RedisSet is several servers of Redis that are one for their clients: a master with its replica and three sentinels,
// or a cluster. Each writes down what it learns, so one that was killed comes back in the role that it had last, and
// empty.
type RedisSet struct {
	Data      []*Server // those that hold keys: at first the masters, then the replica of each
	Sentinels []*Server // none in a cluster

	t       testing.TB
	url     string
	masters int
	dir     string
	lock    *os.File
	spawner *spawner
	started int
}

// What takes Redis its time to see that a master is away, and to try again: Sentinel's defaults, 30 s and 180 s, by
// thirty, and a cluster's, 15 s, by seven and a half. A machine under load must not look like a dead server.
const (
	redisMaster     = "shop"
	downAfter       = time.Second
	failoverTimeout = 6 * time.Second
	nodeTimeout     = 2 * time.Second
)

const slots = 16384 // of a cluster

// redisSetArgs are those of a server in a set. Without the delay a replica would wait for others before it gets its
// first copy.
func redisSetArgs(bus int) []string {
	return []string{"--repl-diskless-sync-delay", "0", "--cluster-port", strconv.Itoa(bus)}
}

// redisFile writes the arguments into a file, which Redis writes anew when its role changes, and returns the arguments
// that name it.
func redisFile(dir string, args []string) ([]string, error) {
	var text strings.Builder
	for _, word := range args {
		if name, ok := strings.CutPrefix(word, "--"); ok {
			fmt.Fprintf(&text, "\n%s", name)
		} else {
			fmt.Fprintf(&text, " %q", word)
		}
	}
	text.WriteString("\n")
	path := filepath.Join(dir, "redis.conf")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		return nil, fmt.Errorf("write the configuration of redis: %w", err)
	}
	return []string{path}, nil
}

// OwnSentinels starts a master with one replica and three sentinels for this test alone, as [OwnRabbit] does, if the
// environment asks for such tests, and returns when each knows all others.
func OwnSentinels(t testing.TB) *RedisSet {
	t.Helper()
	s := newRedisSet(t, 1)
	s.startData()
	host, port, _ := strings.Cut(s.Data[0].addr, ":")
	s.startData("--replicaof", host, port)
	var addrs []string
	for range 3 {
		sentinel := s.start(func(dir string) (*Server, error) { return prepareSentinel(s.spawner, dir, s.Data[0].addr) })
		s.Sentinels, addrs = append(s.Sentinels, sentinel), append(addrs, sentinel.addr)
	}
	s.url = "redis://" + strings.Join(addrs, ",") + "/0?master=" + redisMaster
	s.Settle()
	return s
}

// OwnRedisCluster starts a cluster of three masters for this test alone, as [OwnSentinels] does, each with a replica if
// there shall be some.
func OwnRedisCluster(t testing.TB, replicas bool) *RedisSet {
	t.Helper()
	s := newRedisSet(t, 3)
	count := s.masters
	if replicas {
		count *= 2
	}
	var addrs []string
	for range count {
		s.startData("--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1", "--cluster-config-file", "nodes.conf",
			"--cluster-node-timeout", strconv.FormatInt(nodeTimeout.Milliseconds(), 10))
		addrs = append(addrs, s.Data[len(s.Data)-1].addr)
	}
	for i, node := range s.Data {
		s.do(node, "cluster", "set-config-epoch", i+1) // else those that meet would have to agree first
		if i < s.masters {
			s.do(node, "cluster", "addslotsrange", i*slots/s.masters, (i+1)*slots/s.masters-1)
		}
		if i > 0 {
			host, port, _ := strings.Cut(node.addr, ":")
			s.do(s.Data[0], "cluster", "meet", host, port, node.bus)
		}
	}
	s.eventually("all nodes know each other", func(ctx context.Context) error {
		for _, node := range s.Data {
			err := s.with(node, func(c *redis.Client) error {
				return wantInfo(c.ClusterInfo(ctx), "cluster_known_nodes:"+strconv.Itoa(count), "cluster_state:ok")
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	for i, node := range s.Data[s.masters:] {
		s.do(node, "cluster", "replicate", s.do(s.Data[i], "cluster", "myid"))
	}
	s.url = "redis://" + strings.Join(addrs, ",") + "?cluster=true"
	s.Settle()
	return s
}

func newRedisSet(t testing.TB, masters int) *RedisSet {
	t.Helper()
	NeedRedisHA(t)
	mayKill(t, KindRedis)
	dir, lock, err := makeFolder()
	if err != nil {
		t.Fatal(err)
	}
	s := &RedisSet{t: t, masters: masters, dir: dir, lock: lock, spawner: newSpawner()}
	t.Cleanup(func() {
		if err := s.end(); err != nil {
			t.Errorf("stop the test's own servers of redis: %v", err)
		}
	})
	return s
}

func (s *RedisSet) startData(args ...string) {
	s.t.Helper()
	s.Data = append(s.Data, s.start(func(dir string) (*Server, error) {
		return prepareRedis(s.spawner, dir, Options{RedisArgs: args, inRedisSet: true})
	}))
}

func (s *RedisSet) start(prepare func(dir string) (*Server, error)) *Server {
	s.t.Helper()
	s.started++
	server, err := startWith(s.t.Context(), KindRedis, filepath.Join(s.dir, fmt.Sprintf("%s%d", KindRedis, s.started)),
		func(_ context.Context, dir string) (*Server, error) { return prepare(dir) })
	if err != nil {
		s.t.Fatal(err)
	}
	server.t = s.t
	return server
}

func (s *RedisSet) end() error {
	var errs []error
	for _, server := range slices.Concat(s.Sentinels, s.Data) {
		errs = append(errs, server.end())
	}
	s.spawner.close()
	return errors.Join(append(errs, os.RemoveAll(s.dir), s.lock.Close())...)
}

// prepareSentinel makes a sentinel of a master. Two of three must agree that it is away.
func prepareSentinel(sp *spawner, dir, master string) (*Server, error) {
	program, err := findProgram("redis-server", "valkey-server")
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	addr := loopback(ports[0])
	config := filepath.Join(dir, "sentinel.conf")
	text := fmt.Sprintf("port %d\nbind 127.0.0.1\ndir %s\nsentinel monitor %s %s 2\n", ports[0], dir, redisMaster,
		strings.Replace(master, ":", " ", 1))
	text += fmt.Sprintf("sentinel down-after-milliseconds %s %d\n", redisMaster, downAfter.Milliseconds())
	text += fmt.Sprintf("sentinel failover-timeout %s %d\n", redisMaster, failoverTimeout.Milliseconds())
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("write the configuration of a sentinel: %w", err)
	}
	return &Server{
		kind: KindRedis, dir: dir, addr: addr, url: "redis://" + addr,
		main: &process{
			name: "redis sentinel", spawner: sp, logPath: filepath.Join(dir, "sentinel.log"),
			command: func() *exec.Cmd { return program.server(dir, environment(dir), config, "--sentinel") },
		},
		ask: func(ctx context.Context) error { return pingRedis(ctx, addr) },
	}, nil
}

// URL names the set: its sentinels and their master, or the nodes of the cluster.
func (s *RedisSet) URL() string { return s.url }

// At is the server that holds keys at this address, nil if there is none.
func (s *RedisSet) At(addr string) *Server {
	for _, server := range s.Data {
		if server.addr == addr {
			return server
		}
	}
	return nil
}

// Masters are those that clients shall ask now: the one that more than half of the sentinels name, or those of a
// cluster that run and say that they have slots.
func (s *RedisSet) Masters() (masters []*Server) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	votes := make(map[string]int)
	for _, sentinel := range s.Sentinels {
		if named, err := s.namedBy(ctx, sentinel); err == nil {
			votes[named]++
		}
	}
	for _, server := range s.Data {
		switch {
		case votes[server.addr] > len(s.Sentinels)/2:
			masters = append(masters, server)
		case len(s.Sentinels) == 0 && s.hasSlots(ctx, server):
			masters = append(masters, server)
		}
	}
	return masters
}

func (s *RedisSet) namedBy(ctx context.Context, sentinel *Server) (addr string, err error) {
	err = s.with(sentinel, func(c *redis.Client) error {
		named, err := c.Do(ctx, "sentinel", "get-master-addr-by-name", redisMaster).StringSlice()
		if err == nil {
			addr = strings.Join(named, ":")
		}
		return err
	})
	return addr, err
}

// hasSlots looks at what a node says of itself: the line of CLUSTER NODES with myself in it.
func (s *RedisSet) hasSlots(ctx context.Context, node *Server) (has bool) {
	_ = s.with(node, func(c *redis.Client) error {
		text, err := c.ClusterNodes(ctx).Result()
		for line := range strings.Lines(text) {
			const beforeSlots = 8 // words of a line
			words := strings.Fields(line)
			has = has || len(words) > beforeSlots && strings.Contains(words[2], "myself,master")
		}
		return err
	})
	return has
}

// AskedBy is the one sentinel to which a client of this name is connected; nil if it is none or more than one.
func (s *RedisSet) AskedBy(name string) *Server {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	var asked []*Server
	for _, sentinel := range s.Sentinels {
		err := s.with(sentinel, func(c *redis.Client) error {
			clients, err := c.ClientList(ctx).Result()
			if strings.Contains(clients, " name="+name+" ") {
				asked = append(asked, sentinel)
			}
			return err
		})
		if err != nil {
			s.t.Fatalf("ask a sentinel for its clients: %v", err)
		}
	}
	if len(asked) != 1 {
		return nil
	}
	return asked[0]
}

// Role is what a server says of itself: master or slave. It is empty while the server says nothing: who gives it
// another role ends its connections.
func (s *RedisSet) Role(server *Server) (role string) {
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	_ = s.with(server, func(c *redis.Client) error {
		words, err := c.Do(ctx, "role").Slice()
		if err == nil {
			role, _ = words[0].(string)
		}
		return err
	})
	return role
}

// Settle waits until all servers run in a role and know of each other: the sentinels of one master, its replica and two
// others of themselves, the nodes of a cluster of all slots; and each replica has what its master has.
func (s *RedisSet) Settle() {
	s.t.Helper()
	s.eventually("the servers know each other", func(ctx context.Context) error {
		for _, sentinel := range s.Sentinels {
			err := s.with(sentinel, func(c *redis.Client) error {
				return wantInfo(c.Info(ctx, "sentinel"), fmt.Sprintf("slaves=%d,sentinels=%d", len(s.Data)-1, len(s.Sentinels)),
					"status=ok")
			})
			if err != nil {
				return err
			}
		}
		for _, server := range s.Data {
			if err := s.with(server, func(c *redis.Client) error { return s.settled(ctx, c) }); err != nil {
				return err
			}
		}
		if n := len(s.Masters()); n != s.masters {
			return fmt.Errorf("there are %d masters", n)
		}
		return nil
	})
}

func (s *RedisSet) settled(ctx context.Context, c *redis.Client) error {
	replication := c.Info(ctx, "replication")
	if err := wantInfo(replication, "role:master", "connected_slaves:"+strconv.Itoa(len(s.Data)/s.masters-1)); err != nil {
		if err := wantInfo(replication, "role:slave", "master_link_status:up"); err != nil {
			return err
		}
	}
	if len(s.Sentinels) > 0 {
		return nil
	}
	if err := wantInfo(c.ClusterInfo(ctx), "cluster_state:ok"); err != nil {
		return err
	}
	asked := redis.NewClusterSlotsCmd(ctx, "cluster", "slots")
	_ = c.Process(ctx, asked)
	ranges, err := asked.Result()
	for _, r := range ranges {
		if err == nil && len(r.Nodes) != len(s.Data)/s.masters {
			err = fmt.Errorf("slots from %d on have %d nodes", r.Start, len(r.Nodes))
		}
	}
	return err
}

func wantInfo(info *redis.StringCmd, words ...string) error {
	text, err := info.Result()
	for _, word := range words {
		if err == nil && !strings.Contains(text, word) {
			err = fmt.Errorf("no %q in %q", word, text)
		}
	}
	return err
}

// do runs a command on one server.
func (s *RedisSet) do(server *Server, args ...any) (answer any) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	err := s.with(server, func(c *redis.Client) (err error) {
		answer, err = c.Do(ctx, args...).Result()
		return err
	})
	if err != nil {
		s.t.Fatalf("%v: %v", args, err)
	}
	return answer
}

// with gives a client of one server. One that is known not to answer is not waited for.
func (s *RedisSet) with(server *Server, do func(*redis.Client) error) error {
	if server.Pid() == 0 || server.frozen.Load() {
		return fmt.Errorf("the redis at %s does not run", server.addr)
	}
	client := redis.NewClient(&redis.Options{
		Addr: server.addr, Protocol: 2, DisableIdentity: true, MaxRetries: -1, ContextTimeoutEnabled: true, PoolSize: 1,
	})
	return errors.Join(do(client), client.Close())
}

// eventually waits until nothing is wrong.
func (s *RedisSet) eventually(what string, wrong func(context.Context) error) {
	s.t.Helper()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for late := time.After(startTimeout); ; {
		ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
		err := wrong(ctx)
		cancel()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-late:
			s.t.Fatalf("after %v still not: %s: %v", startTimeout, what, err)
		}
	}
}
