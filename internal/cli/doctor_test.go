package cli

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/go-sql-driver/mysql"
	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/internal/doctor"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/grants"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestDoctorLooksAtEverythingAndChangesNothing(t *testing.T) {
	s := newShell(t)
	s.replace = append(s.replace, stack.Addr(t, stack.Redis(t)), "REDIS")
	s.says("fail schema = rollbackd migrate\nfail queue = does not exist\nfail exchange = does not exist\nno permission")
	assert.That(t, !s.broker.Exists(s.queue), "doctor has made the queue that it missed")
	s.quietly("", "migrate")
	assert.Is(t, s.run("", "doctor"), exitDone, "all is well, and the exit code")
	n := s.broker.Depth(s.queue) + s.broker.Depth(rabbit.DeadQueue(s.queue)) +
		s.broker.Depth(rabbit.BackstopQueue(s.queue))
	assert.That(t, n == 0, "doctor has left %d messages", n)
	for line := range strings.Lines(s.script.String()) {
		n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n"))
		assert.That(t, n <= 100, "a line has %d columns, want at most 100: %s", n, line)
	}
	text := regexp.MustCompile(`\n {8,}`).ReplaceAllString(s.script.String(), " ") // where lines end depends on the names
	for _, v := range []struct{ pattern, with string }{
		{`-?[\d.]+(ms|µs|s) off`, "A MOMENT off"}, {`\d+ (bytes|allowed)`, "MANY $1"},
		{`[\d.]+[KM] used, limit \S+, policy`, "SOME used, limit SOME, policy"},
		{`rabbitmq  version.*\n`, "rabbitmq  version: RABBITMQ'S VERSION\n"},
	} {
		text = regexp.MustCompile(v.pattern).ReplaceAllString(text, v.with)
	}
	// which of these are well depends on the servers
	text = regexp.MustCompile(`(?m)^\w+ +(rabbitmq +version|mysql +version|mysql +durability|redis +version|redis `+
		`+memory).*\n`).ReplaceAllString(text, "")
	s.script.Reset()
	s.script.WriteString(text)
	s.golden("doctor")
}

// Given two queues, the second of which nobody consumes and is then gone, then doctor says so, and tells what they
// share once.
func TestDoctorLooksAtEveryQueue(t *testing.T) {
	points := stack.AMQP(t).Name("points")
	s := newShell(t, "ROLLBACKD_QUEUES=stock,points", "ROLLBACKD_POINTS__QUEUE="+points,
		"ROLLBACKD_POINTS__ROUTING_KEYS=points", "ROLLBACKD_POINTS__GROUP=points")
	s.track(points, 100*time.Millisecond, 200*time.Millisecond)
	s.quietly("", "migrate")
	s.says("ok further queue = " + points + ": \nwarn " + points + ": daemon = nobody consumes from " + points)
	checks, _ := s.examine()
	shared := slices.DeleteFunc(checks, func(c doctor.Check) bool { return !strings.HasSuffix(c.Name, "reachable") })
	assert.Is(t, len(shared), 3, "servers are told of: %+v", shared)
	s.broker.Delete(points)
	s.says("fail " + points + ": queue \"" + points + "\" = it does not exist")
}

// The service gets no message: a HEAD request tells whether it is there.
func TestDoctorAsksWhetherTheServiceAnswers(t *testing.T) {
	s := newShell(t)
	var posts atomic.Int64
	status := http.StatusMethodNotAllowed
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodHead {
			posts.Add(1)
		}
		w.WriteHeader(status)
	}))
	target := []string{"ROLLBACKD_HANDLER=http", "ROLLBACKD_HTTP_TARGET=" + service.URL + "/secret-path"}
	for code, level := range map[int]string{200: "ok", 405: "ok", 401: "warn", 301: "warn", 404: "warn", 503: "warn"} {
		status = code
		s.says(fmt.Sprintf("%s answer = it answers a HEAD request with %d", level, code), target...)
	}
	service.Close()
	s.says("fail answer = no connection\nno secret-path", target...)
	assert.AtMost(t, posts.Load(), 0, "messages were sent")
}

func TestDoctorFindsWhatIsWrongWithRabbitMQ(t *testing.T) {
	s := migrated(t)
	s.broker.Delete(s.queue+".dead", s.queue+".retry.200ms")
	s.broker.DeclareQueue(s.queue+".dead", map[string]any{"x-queue-type": "quorum", "x-delivery-limit": int64(20)})
	for _, queue := range []string{s.queue, rabbit.BackstopQueue(s.queue)} {
		s.broker.Publish("", queue, stack.Message{Body: []byte("{}"), DeliveryMode: 2})
	}
	u := require.Get(url.Parse(s.broker.URL))(t)
	password, _ := u.User.Password()
	away := s.away(s.broker.URL, "")
	s.vars = append(s.vars, "$URL", s.broker.URL, "$AWAY", away.Through(s.broker.URL), "$ADDR", away.Addr, "$PASSWORD",
		password)
	s.play("doctor-rabbitmq", nil)
	assert.That(t, s.broker.Depth(s.queue) == 1 && !s.broker.Exists(s.queue+".retry.200ms"), "doctor changed something")
}

// Given a log without rows, then doctor says nothing of groups, since it is new; given rows of another group, it names
// that one, and fails no more than before.
func TestDoctorNamesTheGroupsThatThereAre(t *testing.T) { played(t, "group") }

func TestDoctorFindsWhatIsWrongWithMySQL(t *testing.T) {
	s := migrated(t)
	restricted := require.Get(mysql.ParseDSN(stack.Restricted(t, s.dsn, "SELECT ON consumer_log",
		"SELECT, INSERT, DELETE ON consumer_log_event", "SELECT ON rollbackd_meta", "SELECT ON rollbackd_schema",
		"SELECT, UPDATE ON stock", "SELECT, INSERT, UPDATE ON stock_reservation")))(t)
	restricted.ClientFoundRows = true
	other := require.Get(s.db().Conn(t.Context()))(t)
	defer func() { _ = other.Close() }()
	stack.Exec(t, other, "LOCK TABLES stock WRITE") // which is no missing right
	s.says("exit 0\nwarn right = those on stock could not be tried\nno GRANT")
	stack.Exec(t, other, "UNLOCK TABLES")
	s.says("ok rights")
	s.vars = append(s.vars, "$RESTRICTED", restricted.FormatDSN(), "$AWAY", s.away(s.dsn, "").Through(s.dsn))
	s.play("doctor-mysql", nil)
}

// Given a transaction that idles with a row for which a daemon waits, then doctor names it and the statement that ends
// it; to an account that may not see that it names the missing right.
func TestDoctorNamesWhoHoldsRowsThatADaemonWaitsFor(t *testing.T) {
	s := migrated(t, "ROLLBACKD_LEASE=3s", "ROLLBACKD_HANDLER_TIMEOUT=2s")
	db := s.db()
	ctx := context.WithoutCancel(t.Context())
	var conns [2]*sql.Conn
	for i := range conns {
		conns[i] = require.Get(db.Conn(ctx))(t)
		defer func() { _ = conns[i].Close() }()
		for _, text := range []string{"SET SESSION wait_timeout = 600, innodb_lock_wait_timeout = 600", "BEGIN"} {
			require.Get(conns[i].ExecContext(ctx, text))(t)
		}
	}
	const insert = "INSERT INTO rollbackd_meta (name, value) VALUES ('held', 'x')"
	require.Get(conns[0].ExecContext(ctx, insert))(t)
	done := make(chan struct{})
	go func() { // joined below
		defer close(done)
		_, _ = conns[1].ExecContext(ctx, insert) // a duplicate, or not
	}()
	s.until("warn row locks = .rollbackd_meta → KILL ")
	s.says("note row locks = denied", "ROLLBACKD_MYSQL_DSN="+stack.Restricted(t, s.dsn, "ALL ON *"))
	require.Get(conns[0].ExecContext(ctx, "ROLLBACK"))(t)
	<-done
}

// Given a server whose transactions are read-only by default, when it is migrated and asked, then it is written to all
// the same, and doctor names the default. A binary log of statements it names before anything is tried: it refuses
// every write.
func TestDoctorFindsWhatIsWrongWithTheServerOfMySQL(t *testing.T) {
	s := newShell(t)
	s.dsn = stack.Own(t, stack.Options{Only: []stack.Kind{stack.KindMySQL},
		MySQLArgs: []string{"--log-bin=bin", "--server-id=1", "--binlog-format=STATEMENT"}}).Database(t)
	s.set("MYSQL_DSN=" + s.dsn)
	readOnly := func(on string) {
		for _, name := range []string{"tx_read_only", "transaction_read_only"} { // MariaDB's name, and MySQL's
			_, _ = s.db().ExecContext(t.Context(), "SET GLOBAL "+name+" = "+on)
		}
	}
	readOnly("ON")
	s.says("fail binlog_format = error 1665\nnote transaction_read_only = read-write all the same")
	s.exec("SET GLOBAL binlog_format = 'ROW'")
	s.quietly("", "migrate")
	s.says("ok schema\nno binlog_format")
	readOnly("OFF")
	s.play("doctor-mysql-server", nil)
}

func TestDoctorFindsWhatIsWrongWithRedis(t *testing.T) {
	s := migrated(t)
	server := stack.OwnRedis(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer func() { _ = client.Close() }()
	ctx := t.Context()
	for _, command := range [][]any{
		{"config", "set", "maxmemory", "100mb"}, {"config", "set", "maxmemory-policy", "allkeys-lru"},
		{"acl", "setuser", "reader", "on", ">pw", "~*", "+@all", "-set"}, {"acl", "setuser", "nokeys", "on", ">pw",
			"~other:*", "+@all"},
	} {
		require.OK(t, client.Do(ctx, command...).Err())
	}
	s.says("warn memory = allkeys-lru\nok lock = taken and released", "ROLLBACKD_REDIS_URL="+server.URL())
	n, err := client.DBSize(ctx).Result()
	assert.That(t, err == nil && n == 0, "doctor has left %d keys, %v", n, err)
	for _, user := range []string{"reader", "nokeys"} {
		s.says("fail lock = NOPERM", "ROLLBACKD_REDIS_URL=redis://"+user+":pw@"+server.Addr())
	}
	s.says("note lock = off\nwarn ROLLBACKD_LOCK_ON_ERROR = no effect", "ROLLBACKD_REDIS_URL=off",
		"ROLLBACKD_LOCK_ON_ERROR=pause")
	s.says("warn reachable = cluster support disabled → leave cluster=true out",
		"ROLLBACKD_REDIS_URL="+server.URL()+"?cluster=true")
	node := stack.Own(t,
		stack.Options{Only: []stack.Kind{stack.KindRedis}, RedisArgs: []string{"--cluster-enabled", "yes"}})
	s.says("fail mode = a node of a cluster", "ROLLBACKD_REDIS_URL="+node.URL())
	require.OK(t, client.Do(ctx, "replicaof", "127.0.0.1", "1").Err())
	s.says("fail mode = a replica\nfail lock = READONLY", "ROLLBACKD_REDIS_URL="+server.URL())
	require.OK(t, server.Stop())
	s.says("warn reachable = goes on without it", "ROLLBACKD_REDIS_URL="+server.URL())
	s.says("fail reachable", "ROLLBACKD_REDIS_URL="+server.URL(), "ROLLBACKD_LOCK_ON_ERROR=pause")
}

// An account that may do on the sentinels what the list of rights says suffices: nothing is refused.
func TestDoctorLooksAtSentinelsAndTheirMaster(t *testing.T) {
	s := migrated(t)
	set := stack.OwnSentinels(t)
	admins := make([]*redis.Client, len(set.Sentinels))
	for i, sentinel := range set.Sentinels {
		admins[i] = redis.NewClient(&redis.Options{Addr: sentinel.Addr()})
		defer func() { _ = admins[i].Close() }()
		require.OK(t, admins[i].ACLSetUser(t.Context(), "app", grants.SentinelACL("app", "s3cret")[3:]...).Err())
	}
	setting := "ROLLBACKD_REDIS_URL=" + set.URL()
	s.says("ok master = "+set.Data[0].Addr()+", say 3 of 3\nok failover = 1\nok lock = taken and released",
		setting+"&sentinel_user=app&sentinel_password=s3cret")
	for _, admin := range admins {
		refused, err := admin.Do(t.Context(), "acl", "log").Slice()
		assert.That(t, err == nil && len(refused) == 0, "a sentinel refused something: %v, %v", refused, err)
	}
	s.says("warn sentinel = WRONGPASS\nno wr0ng", setting+"&sentinel_user=app&sentinel_password=wr0ng")
	s.says("warn sentinel "+set.Sentinels[0].Addr()+" = no master of that name",
		strings.Replace(setting, "master=", "master=un", 1))
	s.says("fail mode = a sentinel", "ROLLBACKD_REDIS_URL="+set.Sentinels[0].URL())
	for i, sentinel := range set.Sentinels[:2] {
		require.OK(t, sentinel.Kill())
		s.says(fmt.Sprintf("warn sentinel %s = refused\nok master = say %d of 3\nok lock = taken and released",
			sentinel.Addr(), 2-i), setting)
	}
	s.until("warn failover = NOQUORUM", setting) // the last one knows that it is alone
}

func TestDoctorLooksAtEachMasterOfARedisCluster(t *testing.T) {
	s := migrated(t)
	set := stack.OwnRedisCluster(t, false)
	setting := "ROLLBACKD_REDIS_URL=" + set.URL()
	wants := "ok cluster = masters: 3, slots that are served: 16384 of 16384\nok lock = taken and released\n"
	for _, server := range set.Data {
		wants += "note failover = " + server.Addr() + "\nok node " + server.Addr() + ": version\n"
	}
	s.says(wants, setting)
	s.says("fail mode = a node of a cluster", "ROLLBACKD_REDIS_URL="+set.Data[0].URL())
	require.OK(t, set.Data[1].Kill())
	s.says("warn node "+set.Data[1].Addr()+": reachable = refused", setting)
}

func TestDoctorLooksAtEachMasterOfARedlock(t *testing.T) {
	s := migrated(t)
	servers := []*stack.Server{stack.OwnRedis(t), stack.OwnRedis(t), stack.OwnRedis(t)}
	s.set("LOCK=redlock", "REDIS_URL="+servers[0].URL()+","+servers[1].URL()+","+servers[2].URL())
	s.says("ok master 3: version\nok lock = taken and released")
	require.OK(t, servers[1].Kill())
	s.says("warn master 2: reachable\nok lock = taken and released")
	require.OK(t, servers[0].Kill())
	s.says("warn masters = 1 of 3")
	s.says("fail masters = 1 of 3", "ROLLBACKD_LOCK_ON_ERROR=pause")
}

func TestDoctorTakesALockInZooKeeper(t *testing.T) {
	s := migrated(t)
	server := stack.OwnZooKeeper(t)
	s.set("LOCK=zookeeper", "ZOOKEEPER_URL="+server.URL())
	s.says("ok lock = taken and released")
	require.OK(t, server.Kill())
	s.says("warn lock = goes on without it")
	s.says("fail lock", "ROLLBACKD_LOCK_ON_ERROR=pause")
}

func TestDoctorFindsSettingsThatDoNotGoTogether(t *testing.T) { played(t, "settings") }

// Given a daemon whose queues end its connections, by a message that a filter on the way does not let through, then
// doctor names each queue and what to do, in the daemon's words, so too a dead-letter queue that a policy makes refuse
// letters, which AMQP does not show; and once the way is free, that all is well. A probe, which needs no setting but
// the address, says by its exit code whether the daemon lives and is ready.
func TestDoctorRepeatsWhatTheDaemonMisses(t *testing.T) {
	s := newShell(t)
	direct, addr := s.broker.URL, stack.FreeAddr(t)
	backstop := rabbit.BackstopQueue(s.queue)
	s.run("", "migrate")
	s.set("HTTP_ADDR=" + addr)
	// given no daemon, or somebody else
	s.says("exit 0\nnote answer = no fault when none runs on this machine")
	s.says("note answer = ROLLBACKD_HTTP_ADDR is off", "ROLLBACKD_HTTP_ADDR=off")
	s.says("note answer = another port each time", "ROLLBACKD_HTTP_ADDR=127.0.0.1:0")
	other := stack.Proxy(t, stack.Addr(t, s.dsn)) // MySQL speaks first, and no HTTP
	s.says("warn answer = not a daemon of rollbackd", "ROLLBACKD_HTTP_ADDR="+other.Addr)
	probe := &shell{t: t, environ: []string{"ROLLBACKD_HTTP_ADDR=" + addr, "ROLLBACKD_MYSQL_DSN_FILE=gone"}}
	probe.answers(exitFailed, "no daemon answers at ROLLBACKD_HTTP_ADDR "+addr, "", "probe")
	probe.answers(exitFailed, "no daemon answers at ROLLBACKD_HTTP_ADDR "+addr, "", "probe", "--ready")
	// given one that works
	way := stack.Proxy(t, stack.Addr(t, direct))
	s.set("AMQP_URL=" + way.Through(direct))
	s.daemon()
	past := "ROLLBACKD_AMQP_URL=" + direct // doctor goes by another way
	_, port, _ := net.SplitHostPort(addr)
	for _, form := range []string{addr, ":" + port, "0.0.0.0:" + port, "[::]:" + port, "localhost:" + port} {
		s.until("ok answer = :"+port+", group stock-rollback, queue "+s.queue+",…takes deliveries", past,
			"ROLLBACKD_HTTP_ADDR="+form)
	}
	said := probe.answers(exitDone, "", "", "probe") + probe.answers(exitDone, "", "", "probe", "--ready")
	assert.Is(t, said, "", "a probe says")
	// when a message ends each connection on which it comes
	const killer = `{"order_sn":"killer"}`
	way.KillOn([]byte(killer))
	for _, queue := range []string{s.queue, backstop} {
		s.broker.Publish("", queue, stack.Message{Body: []byte(killer), DeliveryMode: rabbit.Persistent})
	}
	for _, queue := range []string{s.queue, backstop} {
		s.until("warn degraded = "+queue+": something in it ended the last…ook for what cuts the connection", past)
	}
	// when RabbitMQ is away
	way.KillOn(nil)
	way.Refuse(true)
	way.Cut()
	s.until("fail waiting = rabbitmq: ", past)
	s.until("note answer = takes no deliveries", past)
	probe.answers(exitFailed, "it waits for rabbitmq", "", "probe", "--ready")
	// and when the settings are those of another daemon, then this one's troubles are not taken for that one's
	for _, setting := range []string{"ROLLBACKD_GROUP=other", "ROLLBACKD_QUEUE=" + s.queue + ".other"} {
		s.until("warn answer = is not that of these settings", past, setting)
		s.says("no warn degraded\nno fail waiting\nno note draining", past, setting)
	}
	// when the way is free
	way.Refuse(false)
	s.eventually(2, "SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 3")
	s.until("ok answer = takes deliveries", past)
	// when a policy makes the dead-letter queue refuse letters
	dead := rabbit.DeadQueue(s.queue)
	s.broker.Policy("full-"+dead, dead, map[string]any{"max-length": 0, "overflow": "reject-publish"})
	defer s.broker.Policy("full-"+dead, dead, nil)
	for range 3 { // the limit is soft
		s.broker.Publish("", s.queue, stack.Message{Body: []byte("no JSON"), DeliveryMode: rabbit.Persistent})
	}
	s.until("warn degraded = "+dead+": …rabbitmqctl list_policies", past)
}
