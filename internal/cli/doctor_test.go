package cli

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
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

	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/internal/doctor"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/rights"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// examine runs doctor with some settings besides, or instead of, those of the shell.
func (s *shell) examine(more ...string) (checks []doctor.Check, code int) {
	s.t.Helper()
	stdout, stderr, code := runCLI(s.t, append(slices.Clip(s.environ), more...), "", "doctor", "-o", "json")
	if err := json.Unmarshal([]byte(stdout), &checks); err != nil {
		s.t.Fatalf("exit %d, %q, %q: %v", code, stdout, stderr, err)
	}
	return checks, code
}

// wantCheck looks for a check of this level whose name and finding contain the words.
func wantCheck(t *testing.T, checks []doctor.Check, code int, level doctor.Level, name, found string) {
	t.Helper()
	i := slices.IndexFunc(checks, func(c doctor.Check) bool {
		return c.Level == level && strings.Contains(c.Name, name) && strings.Contains(c.Found, found)
	})
	if i < 0 {
		t.Errorf("no check says %s of %q with %q:\n%+v", level, name, found, checks)
		return
	}
	if (level == doctor.Fail || level == doctor.Warn) && checks[i].Do == "" {
		t.Errorf("%+v does not say what to do", checks[i])
	}
	if level == doctor.Fail && code != exitFailed {
		t.Errorf("exit %d although %s fails, want 1", code, name)
	}
}

// wants is wantCheck of what doctor says with these settings.
func (s *shell) wants(level doctor.Level, name, found string, more ...string) {
	s.t.Helper()
	checks, code := s.examine(more...)
	wantCheck(s.t, checks, code, level, name, found)
}

func TestDoctorLooksAtEverythingAndChangesNothing(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.replace = append(s.replace, stack.Addr(t, stack.Redis(t)), "REDIS")
	checks, code := s.examine()
	wantCheck(t, checks, code, doctor.Fail, "schema", "rollbackd migrate")
	wantCheck(t, checks, code, doctor.Fail, "queue", "does not exist")
	wantCheck(t, checks, code, doctor.Fail, "exchange", "does not exist")
	if slices.ContainsFunc(checks, func(c doctor.Check) bool { return strings.Contains(c.Do, "permission") }) {
		t.Errorf("doctor advises to give permissions on what does not exist: %+v", checks)
	}
	if s.broker.Exists(s.queue) {
		t.Error("doctor has made the queue that it missed")
	}
	s.run("", "migrate")
	s.script.Reset()
	if code := s.run("", "doctor"); code != exitDone {
		t.Errorf("all is well, and the exit code is %d", code)
	}
	if n := s.broker.Depth(s.queue) + s.broker.Depth(rabbit.DeadQueue(s.queue)) +
		s.broker.Depth(rabbit.BackstopQueue(s.queue)); n != 0 {
		t.Errorf("doctor has left %d messages", n)
	}
	for line := range strings.Lines(s.script.String()) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > doctorWide {
			t.Errorf("a line has %d columns, want at most %d: %s", n, doctorWide, line)
		}
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

// The service gets no message: a HEAD request tells whether it is there.
func TestDoctorAsksWhetherTheServiceAnswers(t *testing.T) {
	t.Parallel()
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
	for code, level := range map[int]doctor.Level{
		200: doctor.OK, 405: doctor.OK, 401: doctor.Warn, 301: doctor.Warn, 404: doctor.Warn, 503: doctor.Warn,
	} {
		status = code
		checks, exit := s.examine(target...)
		wantCheck(t, checks, exit, level, "answer", fmt.Sprintf("it answers a HEAD request with %d", code))
	}
	service.Close()
	checks, exit := s.examine(target...)
	wantCheck(t, checks, exit, doctor.Fail, "answer", "no connection")
	if text := fmt.Sprint(checks); strings.Contains(text, "secret-path") || posts.Load() > 0 {
		t.Errorf("%d messages were sent; %s", posts.Load(), text)
	}
}

func TestDoctorFindsWhatIsWrongWithRabbitMQ(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	s.broker.Delete(s.queue+".dead", s.queue+".retry.200ms")
	s.broker.DeclareQueue(s.queue+".dead", map[string]any{"x-queue-type": "quorum", "x-delivery-limit": int64(20)})
	s.broker.Publish("", s.queue, stack.Message{Body: []byte("{}"), DeliveryMode: 2})
	s.broker.Publish("", rabbit.BackstopQueue(s.queue), stack.Message{Body: []byte("{}"), DeliveryMode: 2})
	checks, code := s.examine()
	wantCheck(t, checks, code, doctor.Fail, s.queue+".dead", "another x-delivery-limit")
	wantCheck(t, checks, code, doctor.Fail, s.queue+".retry.200ms", "does not exist")
	wantCheck(t, checks, code, doctor.Warn, "daemon", "nobody consumes")
	wantCheck(t, checks, code, doctor.Warn, "backstop", "1 messages that RabbitMQ gave up")
	wantCheck(t, checks, code, doctor.Note, "right to read "+s.queue, "messages wait")
	if s.broker.Depth(s.queue) != 1 || s.broker.Exists(s.queue+".retry.200ms") {
		t.Error("doctor has changed something")
	}
	// one URL of two that is away is a warning, all of them a failure
	away := stack.Proxy(t, stack.Addr(t, s.broker.URL))
	away.Refuse(true)
	checks, code = s.examine("ROLLBACKD_AMQP_URL=" + away.Through(s.broker.URL) + "," + s.broker.URL)
	wantCheck(t, checks, code, doctor.Warn, "reachable", away.Addr)
	wantCheck(t, checks, code, doctor.OK, "reachable", "")
	checks, code = s.examine("ROLLBACKD_AMQP_URL=" + away.Through(s.broker.URL))
	wantCheck(t, checks, code, doctor.Fail, "reachable", away.Addr)
	for _, c := range checks {
		if u, _ := url.Parse(s.broker.URL); c.Area == "rabbitmq" && strings.Contains(fmt.Sprint(c), ":"+mustPassword(u)+"@") {
			t.Errorf("%+v shows the password", c)
		}
	}
}

func mustPassword(u *url.URL) string {
	password, _ := u.User.Password()
	return password
}

func TestDoctorFindsMissingRightsOnRabbitMQ(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	u, err := url.Parse(s.broker.URL)
	if err != nil {
		t.Fatal(err)
	}
	vhost, user := strings.TrimPrefix(u.Path, "/"), s.broker.Name("doctor")
	s.broker.Eval(fmt.Sprintf(`ok = rabbit_auth_backend_internal:add_user(<<%q>>, <<"pw">>, <<"tests">>), ok = `+
		`rabbit_auth_backend_internal:set_permissions(<<%q>>, <<%q>>, <<"^$">>, <<"^$">>, <<"^$">>, <<"tests">>)`, user, user,
		vhost))
	t.Cleanup(func() {
		s.broker.Eval(fmt.Sprintf(`rabbit_auth_backend_internal:delete_user(<<%q>>, <<"tests">>)`, user))
	})
	u.User = url.UserPassword(user, "pw")
	checks, code := s.examine("ROLLBACKD_AMQP_URL=" + u.String())
	wantCheck(t, checks, code, doctor.Warn, s.queue, "unchecked")
	wantCheck(t, checks, code, doctor.Fail, "right to publish", "")
	wantCheck(t, checks, code, doctor.Fail, "right to read "+s.queue, "")
}

func TestDoctorFindsWhatIsWrongWithMySQL(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	dsn := stack.Restricted(t, s.dsn, "SELECT ON consumer_log", "SELECT, INSERT, DELETE ON consumer_log_event",
		"SELECT ON rollbackd_meta", "SELECT ON rollbackd_schema",
		"SELECT, UPDATE ON stock", "SELECT, INSERT, UPDATE ON stock_reservation")
	checks, code := s.examine("ROLLBACKD_MYSQL_DSN="+withParam(dsn, "clientFoundRows=true"),
		"ROLLBACKD_DEAD_LETTER_WEBHOOK=http://127.0.0.1:1/")
	wantCheck(t, checks, code, doctor.Fail, "right", "INSERT on rollbackd_meta:")
	for _, what := range []string{"INSERT", "UPDATE"} {
		wantCheck(t, checks, code, doctor.Fail, "right", what+" on consumer_log:")
	}
	wantCheck(t, checks, code, doctor.Fail, "right", "DELETE on consumer_log:")
	wantCheck(t, checks, code, doctor.Warn, "DSN", "clientFoundRows")
	if slices.ContainsFunc(checks, func(c doctor.Check) bool {
		return c.Level == doctor.Fail && strings.Contains(c.Found, "stock_reservation")
	}) {
		t.Errorf("rights that are there are missed: %+v", checks)
	}
	// rows that wait for somebody
	s.exec("INSERT INTO consumer_log (group_name, msg_tag, msg_key, " +
		"consumer_status, consumer_times, consumer_timestamp, created_at)" +
		" VALUES ('g', 't', 'k', 2, 1, UTC_TIMESTAMP(6) - INTERVAL 3 HOUR, UTC_TIMESTAMP(6)), ('g', 't', 'l', 3, 1, " +
		"UTC_TIMESTAMP(6) - INTERVAL 60 DAY, UTC_TIMESTAMP(6))")
	checks, code = s.examine()
	wantCheck(t, checks, code, doctor.Warn, "oldest failed", "3h")
	wantCheck(t, checks, code, doctor.Warn, "oldest dead letter", "1440h")
	s.exec("DELETE FROM rollbackd_schema WHERE set_name = 'stock'")
	s.wants(doctor.Fail, "schema", "stock/0001_stock.sql is not applied")
	away := stack.Proxy(t, stack.Addr(t, s.dsn))
	away.Refuse(true)
	s.wants(doctor.Fail, "reachable", "refused", "ROLLBACKD_MYSQL_DSN="+away.Through(s.dsn))
}

// Given a table that somebody has locked, then doctor does not advise to grant rights that are there.
func TestDoctorDoesNotTakeALockForAMissingRight(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	other, err := s.db().Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	if _, err := other.ExecContext(t.Context(), "LOCK TABLES stock WRITE"); err != nil {
		t.Fatal(err)
	}
	checks, code := s.examine()
	wantCheck(t, checks, code, doctor.Warn, "right", "those on stock could not be tried")
	if code != exitDone || slices.ContainsFunc(checks,
		func(c doctor.Check) bool { return strings.Contains(c.Do, "GRANT") }) {
		t.Errorf("exit %d: %+v", code, checks)
	}
	if _, err := other.ExecContext(t.Context(), "UNLOCK TABLES"); err != nil {
		t.Fatal(err)
	}
	s.wants(doctor.OK, "rights", "")
}

// Given a transaction that idles with a row for which a daemon waits, then doctor names it and the statement that ends
// it; to an account that may not see that it names the missing right.
func TestDoctorNamesWhoHoldsRowsThatADaemonWaitsFor(t *testing.T) {
	t.Parallel()
	s := migrated(t, "ROLLBACKD_LEASE=3s", "ROLLBACKD_HANDLER_TIMEOUT=2s")
	db := s.db()
	ctx := context.WithoutCancel(t.Context())
	var conns [2]*sql.Conn
	for i := range conns {
		var err error
		if conns[i], err = db.Conn(ctx); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conns[i].Close() }()
		for _, text := range []string{"SET SESSION wait_timeout = 600, innodb_lock_wait_timeout = 600", "BEGIN"} {
			if _, err := conns[i].ExecContext(ctx, text); err != nil {
				t.Fatal(err)
			}
		}
	}
	const insert = "INSERT INTO rollbackd_meta (name, value) VALUES ('held', 'x')"
	if _, err := conns[0].ExecContext(ctx, insert); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { // joined below
		defer close(done)
		_, _ = conns[1].ExecContext(ctx, insert) // a duplicate, or not
	}()
	var checks []doctor.Check
	named := func() bool {
		checks, _ = s.examine()
		return slices.ContainsFunc(checks, func(c doctor.Check) bool {
			return c.Level == doctor.Warn && c.Name == "row locks" && strings.Contains(c.Found, ".rollbackd_meta") &&
				strings.Contains(c.Do, "KILL ")
		})
	}
	if !poll.Within(time.Minute, named) {
		t.Errorf("nobody is named: %+v", checks)
	}
	s.wants(doctor.Note, "row locks", "denied", "ROLLBACKD_MYSQL_DSN="+stack.Restricted(t, s.dsn, "ALL ON *"))
	if _, err := conns[0].ExecContext(ctx, "ROLLBACK"); err != nil {
		t.Error(err)
	}
	<-done
}

func TestDoctorFindsWhatIsWrongWithTheServerOfMySQL(t *testing.T) {
	t.Parallel()
	server := stack.OwnMySQL(t)
	s := newShell(t)
	s.dsn = server.Database(t)
	s.environ = append(s.environ, "ROLLBACKD_MYSQL_DSN="+s.dsn)
	s.run("", "migrate")
	s.exec(
		"SET GLOBAL innodb_flush_log_at_trx_commit = 2", "SET GLOBAL max_connections = 30",
		"SET GLOBAL max_allowed_packet = 524288",
	)
	checks, code := s.examine()
	wantCheck(t, checks, code, doctor.Warn, "durability", "innodb_flush_log_at_trx_commit is 2")
	wantCheck(t, checks, code, doctor.Warn, "connections", "30 allowed, a daemon with these settings may take 24")
	wantCheck(t, checks, code, doctor.Fail, "max_allowed_packet", "524288")
	s.wants(doctor.Fail, "connections", "may take 56", "ROLLBACKD_LANES=20")
	// With pages, persons act over twelve and look over two; with a lock in MySQL, LANES + 4 are the lock's, and two with
	// which pages look at it.
	s.wants(doctor.Fail, "connections", "may take 38", "ROLLBACKD_HTTP_ADDR=127.0.0.1:0")
	s.wants(doctor.Fail, "connections", "may take 32", "ROLLBACKD_LOCK=mysql")
	s.wants(doctor.Fail, "connections", "may take 48", "ROLLBACKD_LOCK=mysql", "ROLLBACKD_HTTP_ADDR=127.0.0.1:0")
	s.exec("SET GLOBAL read_only = 1")
	s.wants(doctor.Fail, "read_only", "read-only")
}

// Given a server whose transactions are read-only by default, when it is migrated and asked, then it is written to all
// the same, and doctor names the default. A binary log of statements it names before anything is tried: it refuses
// every write.
func TestDoctorNamesTheServersDefaultsForWriting(t *testing.T) {
	t.Parallel()
	server := stack.Own(t, stack.Options{
		Only:      []stack.Kind{stack.KindMySQL},
		MySQLArgs: []string{"--log-bin=bin", "--server-id=1", "--binlog-format=STATEMENT"},
	})
	s := newShell(t)
	s.dsn = server.Database(t)
	s.environ = append(s.environ, "ROLLBACKD_MYSQL_DSN="+s.dsn)
	db := s.db()
	if _, err := db.ExecContext(t.Context(), "SET GLOBAL tx_read_only = ON"); err != nil { // MariaDB's name
		s.exec("SET GLOBAL transaction_read_only = ON")
	}
	checks, code := s.examine()
	wantCheck(t, checks, code, doctor.Fail, "binlog_format", "error 1665")
	wantCheck(t, checks, code, doctor.Note, "transaction_read_only", "read-write all the same")
	s.exec("SET GLOBAL binlog_format = 'ROW'")
	if code := s.run("", "migrate"); code != exitDone {
		t.Fatalf("migrate: exit %d", code)
	}
	checks, _ = s.examine()
	if slices.ContainsFunc(checks, func(c doctor.Check) bool { return c.Name == "binlog_format" }) {
		t.Errorf("binlog_format is ROW, and doctor finds fault with it: %+v", checks)
	}
	wantCheck(t, checks, exitDone, doctor.OK, "schema", "")
	for _, name := range []string{"tx_read_only", "transaction_read_only"} { // so that the database can be dropped
		_, _ = db.ExecContext(t.Context(), "SET GLOBAL "+name+" = OFF")
	}
}

func TestDoctorFindsWhatIsWrongWithRedis(t *testing.T) {
	t.Parallel()
	server := stack.OwnRedis(t)
	s := migrated(t)
	o, err := redis.ParseURL(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(o)
	defer func() { _ = client.Close() }()
	ctx := t.Context()
	for _, command := range [][]any{
		{"config", "set", "maxmemory", "100mb"}, {"config", "set", "maxmemory-policy", "allkeys-lru"},
		{"acl", "setuser", "reader", "on", ">pw", "~*", "+@all", "-set"}, {"acl", "setuser", "nokeys", "on", ">pw",
			"~other:*", "+@all"},
	} {
		if err := client.Do(ctx, command...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	checks, code := s.examine("ROLLBACKD_REDIS_URL=" + server.URL())
	wantCheck(t, checks, code, doctor.Warn, "memory", "allkeys-lru")
	wantCheck(t, checks, code, doctor.OK, "lock", "taken and released")
	if n, err := client.DBSize(ctx).Result(); err != nil || n != 0 {
		t.Errorf("doctor has left %d keys, %v", n, err)
	}
	for _, user := range []string{"reader", "nokeys"} {
		s.wants(doctor.Fail, "lock", "NOPERM", "ROLLBACKD_REDIS_URL=redis://"+user+":pw@"+server.Addr())
	}
	checks, code = s.examine("ROLLBACKD_REDIS_URL=off", "ROLLBACKD_LOCK_ON_ERROR=pause")
	wantCheck(t, checks, code, doctor.Note, "lock", "off")
	wantCheck(t, checks, code, doctor.Warn, "ROLLBACKD_LOCK_ON_ERROR", "no effect")
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	s.wants(doctor.Warn, "reachable", "goes on without it", "ROLLBACKD_REDIS_URL="+server.URL())
	s.wants(doctor.Fail, "reachable", "", "ROLLBACKD_REDIS_URL="+server.URL(), "ROLLBACKD_LOCK_ON_ERROR=pause")
}

func TestDoctorSaysWhatARedisIsThatItsURLTakesForAnother(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	plain := stack.OwnRedis(t)
	checks, code := s.examine("ROLLBACKD_REDIS_URL=" + plain.URL() + "?cluster=true")
	wantCheck(t, checks, code, doctor.Warn, "reachable", "cluster support disabled")
	if text := fmt.Sprint(checks); !strings.Contains(text, "leave cluster=true out") {
		t.Errorf("doctor does not say what to do: %s", text)
	}
	client := redis.NewClient(&redis.Options{Addr: plain.Addr()})
	defer func() { _ = client.Close() }()
	if err := client.Do(t.Context(), "replicaof", "127.0.0.1", "1").Err(); err != nil {
		t.Fatal(err)
	}
	checks, code = s.examine("ROLLBACKD_REDIS_URL=" + plain.URL())
	wantCheck(t, checks, code, doctor.Fail, "mode", "a replica")
	wantCheck(t, checks, code, doctor.Fail, "lock", "READONLY")
	node := stack.Own(t, stack.Options{
		Only: []stack.Kind{stack.KindRedis}, RedisArgs: []string{"--cluster-enabled", "yes"},
	})
	s.wants(doctor.Fail, "mode", "a node of a cluster", "ROLLBACKD_REDIS_URL="+node.URL())
}

func TestDoctorLooksAtSentinelsAndTheirMaster(t *testing.T) {
	t.Parallel()
	set := stack.OwnSentinels(t)
	s := migrated(t)
	setting := "ROLLBACKD_REDIS_URL=" + set.URL()
	checks, code := s.examine(setting)
	wantCheck(t, checks, code, doctor.OK, "master", set.Data[0].Addr()+", say 3 of 3")
	wantCheck(t, checks, code, doctor.OK, "failover", "1")
	wantCheck(t, checks, code, doctor.OK, "lock", "taken and released")
	checks, code = s.examine(strings.Replace(setting, "master=", "master=un", 1))
	wantCheck(t, checks, code, doctor.Warn, "sentinel "+set.Sentinels[0].Addr(), "no master of that name")
	s.wants(doctor.Fail, "mode", "a sentinel", "ROLLBACKD_REDIS_URL="+set.Sentinels[0].URL())

	for i, sentinel := range set.Sentinels[:2] {
		if err := sentinel.Kill(); err != nil {
			t.Fatal(err)
		}
		checks, code = s.examine(setting)
		wantCheck(t, checks, code, doctor.Warn, "sentinel "+sentinel.Addr(), "refused")
		wantCheck(t, checks, code, doctor.OK, "master", fmt.Sprintf("say %d of 3", 2-i))
		wantCheck(t, checks, code, doctor.OK, "lock", "taken and released")
	}
	// until the last one knows that it is alone
	for late := time.Now().Add(30 * time.Second); time.Now().Before(late); checks, code = s.examine(setting) {
		if slices.ContainsFunc(checks, func(c doctor.Check) bool { return strings.Contains(c.Found, "NOQUORUM") }) {
			break
		}
	}
	wantCheck(t, checks, code, doctor.Warn, "failover", "NOQUORUM")
}

// Given an account that may do on the sentinels what the list of rights says, then the lock works, doctor sees all, and
// nothing was refused.
func TestAnAccountOnSentinelsNeedsWhatTheListSays(t *testing.T) {
	t.Parallel()
	set := stack.OwnSentinels(t)
	s := migrated(t)
	var admins []*redis.Client
	for _, sentinel := range set.Sentinels {
		admin := redis.NewClient(&redis.Options{Addr: sentinel.Addr()})
		defer func() { _ = admin.Close() }()
		var words []any
		for _, word := range rights.SentinelACL("app", "s3cret") {
			words = append(words, word)
		}
		if err := admin.Do(t.Context(), words...).Err(); err != nil {
			t.Fatal(err)
		}
		admins = append(admins, admin)
	}
	checks, code := s.examine("ROLLBACKD_REDIS_URL=" + set.URL() + "&sentinel_user=app&sentinel_password=s3cret")
	wantCheck(t, checks, code, doctor.OK, "master", "say 3 of 3")
	wantCheck(t, checks, code, doctor.OK, "failover", "1")
	wantCheck(t, checks, code, doctor.OK, "lock", "taken and released")
	for _, admin := range admins {
		if refused, err := admin.Do(t.Context(), "acl", "log").Slice(); err != nil || len(refused) > 0 {
			t.Errorf("a sentinel refused something: %v, %v", refused, err)
		}
	}
	checks, code = s.examine("ROLLBACKD_REDIS_URL=" + set.URL() + "&sentinel_user=app&sentinel_password=wr0ng")
	wantCheck(t, checks, code, doctor.Warn, "sentinel", "WRONGPASS")
	if text := fmt.Sprint(checks); strings.Contains(text, "wr0ng") {
		t.Errorf("doctor shows the password: %s", text)
	}
}

func TestDoctorLooksAtEachMasterOfARedisCluster(t *testing.T) {
	t.Parallel()
	set := stack.OwnRedisCluster(t, false)
	s := migrated(t)
	setting := "ROLLBACKD_REDIS_URL=" + set.URL()
	checks, code := s.examine(setting)
	wantCheck(t, checks, code, doctor.OK, "cluster", "masters: 3, slots that are served: 16384 of 16384")
	wantCheck(t, checks, code, doctor.Note, "failover", set.Data[2].Addr())
	for _, server := range set.Data {
		wantCheck(t, checks, code, doctor.OK, "node "+server.Addr()+": version", "")
	}
	wantCheck(t, checks, code, doctor.OK, "lock", "taken and released")
	s.wants(doctor.Fail, "mode", "a node of a cluster", "ROLLBACKD_REDIS_URL="+set.Data[0].URL())
	if err := set.Data[1].Kill(); err != nil {
		t.Fatal(err)
	}
	s.wants(doctor.Warn, "node "+set.Data[1].Addr()+": reachable", "refused", setting)
}

func TestDoctorLooksAtEachMasterOfARedlock(t *testing.T) {
	t.Parallel()
	var servers []*stack.Server
	var urls []string
	for range 3 {
		servers = append(servers, stack.OwnRedis(t))
		urls = append(urls, servers[len(servers)-1].URL())
	}
	s := migrated(t, "ROLLBACKD_LOCK=redlock", "ROLLBACKD_REDIS_URL="+strings.Join(urls, ","))
	checks, code := s.examine()
	wantCheck(t, checks, code, doctor.OK, "master 3: version", "")
	wantCheck(t, checks, code, doctor.OK, "lock", "taken and released")
	if err := servers[1].Kill(); err != nil {
		t.Fatal(err)
	}
	checks, code = s.examine()
	wantCheck(t, checks, code, doctor.Warn, "master 2: reachable", "")
	wantCheck(t, checks, code, doctor.OK, "lock", "taken and released")
	if err := servers[0].Kill(); err != nil {
		t.Fatal(err)
	}
	s.wants(doctor.Warn, "masters", "1 of 3")
	s.wants(doctor.Fail, "masters", "1 of 3", "ROLLBACKD_LOCK_ON_ERROR=pause")
}

func TestDoctorTakesALockInZooKeeper(t *testing.T) {
	t.Parallel()
	server := stack.OwnZooKeeper(t)
	s := migrated(t, "ROLLBACKD_LOCK=zookeeper", "ROLLBACKD_ZOOKEEPER_URL="+server.URL())
	s.wants(doctor.OK, "lock", "taken and released")
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	s.wants(doctor.Warn, "lock", "goes on without it")
	s.wants(doctor.Fail, "lock", "", "ROLLBACKD_LOCK_ON_ERROR=pause")
}

func TestDoctorFindsSettingsThatDoNotGoTogether(t *testing.T) {
	t.Parallel()
	s := migrated(t)
	checks, code := s.examine("ROLLBACKD_DRAIN_TIMEOUT=5s", "ROLLBACKD_MAX_DEAD_RATE=off", "ROLLBACKD_LEASE=11s",
		"ROLLBACKD_COMPENSATE_AFTER=720h", "ROLLBACKD_MAX_REPLAYS=100")
	for name, found := range map[string]string{
		"ROLLBACKD_DRAIN_TIMEOUT": "5s is shorter", "ROLLBACKD_MAX_DEAD_RATE": "off", "ROLLBACKD_LEASE": "hardly longer",
		"ROLLBACKD_LOG_RETENTION": "720h0m0s is shorter",
	} {
		wantCheck(t, checks, code, doctor.Warn, name, found)
	}
	if code != exitDone {
		t.Errorf("warnings alone: exit %d, want 0", code)
	}
}

func withParam(dsn, param string) string {
	if strings.Contains(dsn, "?") {
		return dsn + "&" + param
	}
	return dsn + "?" + param
}
