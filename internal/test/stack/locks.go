package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// prepareRedis makes a Redis that keeps nothing on disk: after a kill it comes back empty, which is the worst a lock
// can meet. Its settings are in a file, with those of a set, which it writes anew when its role changes.
func prepareRedis(dir string, o Options, ofSet ...string) *Server {
	ports := must.Get(freePorts(2))
	addr, tls := loopback(ports[0]), loopback(ports[1])
	config := writeConfig(dir, "redis.conf", map[string]any{
		"Port": ports[0], "Second": ports[1], "Dir": dir, "TLS": o.Encryption, "OfSet": ofSet,
	})
	s := newServer(KindRedis, dir, addr, redisProgram(o.RedisProgram), nil, append([]string{config}, o.RedisArgs...)...)
	s.url, s.tlsAddr, s.encryption, s.bus = "redis://"+addr+"/0", tls, o.Encryption, ports[1]
	s.ask = func(ctx context.Context) error { return pingRedis(ctx, addr) }
	return s
}

func redisProgram(name string) executable {
	if name != "" {
		return findProgram(name)
	}
	return findProgram("redis-server", "valkey-server")
}

func pingRedis(ctx context.Context, addr string) error { return talk(ctx, addr, "PING\r\n", "+PONG") }

// EnvRedisHA asks for the tests on Redis that fails over: each needs three to six servers, and seconds until they know
// each other.
const EnvRedisHA = "ROLLBACKD_TEST_REDIS_HA"

// NeedRedisHA skips the test if the environment does not ask for such tests.
func NeedRedisHA(t testing.TB) { t.Helper(); needs(t, EnvRedisHA, "redis-ha") }

// RedisSet is several servers of Redis that are one for their clients: a master with its replica and three sentinels,
// or a cluster. Each writes down what it learns, so one that was killed comes back in the role that it had last, and
// empty.
type RedisSet struct {
	Data      []*Server // those that hold keys: at first the masters, then the replica of each
	Sentinels []*Server // none in a cluster

	t       testing.TB
	url     string
	masters int
	stack   *Stack
}

// What takes Redis its time to see that a master is away, and to try again: Sentinel's defaults, 30 s and 180 s, by
// thirty, and a cluster's, 15 s, by seven and a half. A machine under load must not look like a dead server.
const (
	redisMaster     = "shop"
	downAfter       = time.Second
	failoverTimeout = 6 * time.Second
	nodeTimeout     = 2 * time.Second
)

// OwnSentinels starts a master with one replica and three sentinels for this test alone, as [OwnRabbit] does, if the
// environment asks for such tests, and returns when each knows all others.
func OwnSentinels(t testing.TB) *RedisSet {
	t.Helper()
	s := newRedisSet(t, 1)
	s.startData()
	master := strings.Replace(s.Data[0].addr, ":", " ", 1)
	s.startData("replicaof " + master)
	for range 3 {
		s.Sentinels = append(s.Sentinels, s.start(func(dir string) *Server {
			return prepareSentinel(dir, master)
		}))
	}
	s.url = "redis://" + addrs(s.Sentinels) + "/0?master=" + redisMaster
	s.Settle()
	return s
}

// OwnRedisCluster starts a cluster of three masters for this test alone, as [OwnSentinels] does, each with a replica if
// there shall be some.
func OwnRedisCluster(t testing.TB, replicas bool) *RedisSet {
	t.Helper()
	const masters, slots = 3, 16384
	s := newRedisSet(t, masters)
	for len(s.Data) < masters || replicas && len(s.Data) < 2*masters {
		s.startData("cluster-enabled yes", "cluster-announce-ip 127.0.0.1", "cluster-config-file nodes.conf",
			fmt.Sprintf("cluster-node-timeout %d", nodeTimeout.Milliseconds()))
	}
	for i, node := range s.Data {
		s.do(node, "cluster", "set-config-epoch", i+1) // else those that meet would have to agree first
		if i < masters {
			s.do(node, "cluster", "addslotsrange", i*slots/masters, (i+1)*slots/masters-1)
		}
		if i > 0 {
			host, port, _ := strings.Cut(node.addr, ":")
			s.do(s.Data[0], "cluster", "meet", host, port, node.bus)
		}
	}
	s.eventually("all nodes know each other", func(ctx context.Context) {
		for _, node := range s.Data {
			s.wantInfo(ctx, node, []any{"cluster", "info"}, fmt.Sprint("cluster_known_nodes:", len(s.Data)), "cluster_state:ok")
		}
	})
	for i, node := range s.Data[masters:] {
		s.do(node, "cluster", "replicate", s.do(s.Data[i], "cluster", "myid"))
	}
	s.url = "redis://" + addrs(s.Data) + "?cluster=true"
	s.Settle()
	return s
}

func addrs(servers []*Server) string {
	var all []string
	for _, server := range servers {
		all = append(all, server.addr)
	}
	return strings.Join(all, ",")
}

func newRedisSet(t testing.TB, masters int) *RedisSet {
	t.Helper()
	NeedRedisHA(t)
	mayKill(t, KindRedis)
	s := newStack()
	stopWith(t, s)
	return &RedisSet{t: t, masters: masters, stack: s}
}

func (s *RedisSet) startData(settings ...string) {
	s.t.Helper()
	s.Data = append(s.Data, s.start(func(dir string) *Server {
		return prepareRedis(dir, Options{}, settings...)
	}))
}

func (s *RedisSet) start(prepare func(dir string) *Server) (server *Server) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), startTimeout)
	defer cancel()
	require.OK(s.t, must.Catch(func() { server = s.stack.run(ctx, string(KindRedis), io.Discard, prepare) }))
	server.t = s.t
	return server
}

// prepareSentinel makes a sentinel of a master.
func prepareSentinel(dir, master string) *Server {
	port := must.Get(freePorts(1))[0]
	config := writeConfig(dir, "sentinel.conf", map[string]any{
		"Port": port, "Dir": dir, "Name": redisMaster, "Master": master,
		"Down": downAfter.Milliseconds(), "Failover": failoverTimeout.Milliseconds(),
	})
	s := newServer(KindRedis, dir, loopback(port), redisProgram(""), nil, config, "--sentinel")
	s.url = "redis://" + s.addr
	s.ask = func(ctx context.Context) error { return pingRedis(ctx, s.addr) }
	return s
}

// URL names the set: its sentinels and their master, or the nodes of the cluster.
func (s *RedisSet) URL() string { return s.url }

// Masters are those that clients shall ask now: the one that more than half of the sentinels name, or those of a
// cluster that run and say that they are one.
func (s *RedisSet) Masters() (masters []*Server) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	votes := map[string]int{}
	for _, sentinel := range s.Sentinels {
		if named, err := s.ask(ctx, sentinel, "sentinel", "get-master-addr-by-name", redisMaster).StringSlice(); err == nil {
			votes[strings.Join(named, ":")]++
		}
	}
	for _, server := range s.Data {
		if votes[server.addr] > len(s.Sentinels)/2 || len(s.Sentinels) == 0 && s.Role(server) == "master" {
			masters = append(masters, server)
		}
	}
	return masters
}

// AskedBy is the one sentinel to which a client of this name is connected; nil if it is none or more than one.
func (s *RedisSet) AskedBy(name string) *Server {
	s.t.Helper()
	var asked []*Server
	for _, sentinel := range s.Sentinels {
		if clients, _ := s.do(sentinel, "client", "list").(string); strings.Contains(clients, " name="+name+" ") {
			asked = append(asked, sentinel)
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
	if words, err := s.ask(ctx, server, "role").Slice(); err == nil {
		role, _ = words[0].(string)
	}
	return role
}

// Settle waits until all servers run in a role and know of each other: the sentinels of one master, its replica and two
// others of themselves, the nodes of a cluster of all slots; and each replica has what its master has.
func (s *RedisSet) Settle() {
	s.t.Helper()
	each := len(s.Data) / s.masters
	s.eventually("the servers know each other", func(ctx context.Context) {
		for _, sentinel := range s.Sentinels {
			s.wantInfo(ctx, sentinel, []any{"info", "sentinel"}, fmt.Sprintf("slaves=%d,sentinels=%d", len(s.Data)-1,
				len(s.Sentinels)), "status=ok")
		}
		for _, server := range s.Data {
			replication := []any{"info", "replication"}
			isMaster := must.Catch(func() {
				s.wantInfo(ctx, server, replication, "role:master", fmt.Sprint("connected_slaves:", each-1))
			})
			if isMaster != nil {
				s.wantInfo(ctx, server, replication, "role:slave", "master_link_status:up")
			}
			if len(s.Sentinels) > 0 {
				continue
			}
			s.wantInfo(ctx, server, []any{"cluster", "info"}, "cluster_state:ok")
			for _, slots := range must.Get(s.ask(ctx, server, "cluster", "slots").Slice()) {
				if r, ok := slots.([]any); !ok || len(r) != 2+each { // the first and the last slot, and the nodes
					must.OK(fmt.Errorf("slots have these nodes: %v", slots))
				}
			}
		}
		if n := len(s.Masters()); n != s.masters {
			must.OK(fmt.Errorf("there are %d masters", n))
		}
	})
}

// wantInfo stops who asks for what a server says of itself unless it says these words.
func (s *RedisSet) wantInfo(ctx context.Context, server *Server, question []any, words ...string) {
	text := must.Get(s.ask(ctx, server, question...).Text())
	for _, word := range words {
		if !strings.Contains(text, word) {
			must.OK(fmt.Errorf("no %q in %q", word, text))
		}
	}
}

// do runs a command on one server.
func (s *RedisSet) do(server *Server, args ...any) any {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	answer, err := s.ask(ctx, server, args...).Result()
	if err != nil {
		s.t.Fatalf("%v: %v", args, err)
	}
	return answer
}

// ask asks one server. One that is known not to answer is not waited for.
func (s *RedisSet) ask(ctx context.Context, server *Server, args ...any) *redis.Cmd {
	if server.Pid() == 0 || server.frozen.Load() {
		cmd := redis.NewCmd(ctx, args...)
		cmd.SetErr(fmt.Errorf("the redis at %s does not run", server.addr))
		return cmd
	}
	client := redis.NewClient(&redis.Options{
		Addr: server.addr, Protocol: 2, DisableIdentity: true, MaxRetries: -1, ContextTimeoutEnabled: true, PoolSize: 1,
	})
	defer client.Close()
	return client.Do(ctx, args...)
}

// eventually waits until nothing stops it.
func (s *RedisSet) eventually(what string, step func(context.Context)) {
	s.t.Helper()
	ctx, cancel := context.WithTimeoutCause(context.Background(), startTimeout, errors.New("still not: "+what))
	defer cancel()
	require.OK(s.t, again(ctx, nil, func(ctx context.Context) error { return must.Catch(func() { step(ctx) }) }))
}

// zooKeeperJars are the folders' files of Debian's package that the server alone needs; the first one says whether it
// is installed.
var zooKeeperJars = []string{
	"zookeeper", "zookeeper-jute", "slf4j-api", "slf4j-simple", "log4j-1.2", "netty-all", "commons-cli",
	"jackson-annotations",
}

// prepareZooKeeper makes a single server. It takes sessions from 100 ms on, so that tests need not wait long for the
// end of one. What it was told is in its folder, so a killed one comes back with the sessions and nodes that it had.
func prepareZooKeeper(dir string) *Server {
	java, port := findProgram("java"), must.Get(freePorts(1))[0]
	path := []string{dir}
	for _, jar := range zooKeeperJars {
		path = append(path, "/usr/share/java/"+jar+".jar")
	}
	java.needs(path[1])
	config := writeConfig(dir, "zoo.cfg", map[string]any{"Dir": dir, "Port": port})
	s := newServer(KindZooKeeper, dir, loopback(port), java, nil,
		"-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.log.dir="+dir,
		"-cp", strings.Join(path, ":"), "org.apache.zookeeper.server.quorum.QuorumPeerMain", config)
	s.url = "zookeeper://" + s.addr + "/rollbackd"
	// It answers ruok, "are you ok", before it takes sessions.
	s.ask = func(ctx context.Context) error { return talk(ctx, s.addr, "srvr", "Mode: standalone") }
	return s
}
