package cli

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/internal/doctor"
	"github.com/rollbackd/rollbackd/internal/lockers"
	"github.com/rollbackd/rollbackd/internal/rights"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/grants"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// account is a user on all three servers with exactly the rights that it was given last.
type account struct {
	s        *shell
	name     string
	password string
	names    rights.Names
	schema   string
	redis    *redis.Client // of an administrator
	environ  []string
}

// account makes one without any right. It uses another database number of Redis than 0.
func (s *shell) account(admin *redis.Client) *account {
	s.t.Helper()
	a := &account{s: s, name: "r_" + strings.ToLower(rand.Text()[:12]), password: rand.Text(), redis: admin}
	a.names = rights.Names{LogTable: consumer.Defaults().LogTable, Exchange: s.broker.Name("stock"), Queue: s.queue,
		Stock: true}
	dsn := require.Get(mysql.ParseDSN(s.dsn))(s.t)
	a.schema, dsn.User, dsn.Passwd = dsn.DBName, a.name, a.password
	amqp := require.Get(url.Parse(s.broker.URL))(s.t)
	amqp.User = url.UserPassword(a.name, a.password)
	a.s.exec("CREATE USER " + a.mysqlName() + " IDENTIFIED BY '" + a.password + "'")
	a.erlang(`ok = rabbit_auth_backend_internal:add_user(<<%q>>, <<%q>>, <<"tests">>)`, a.name, a.password)
	s.t.Cleanup(func() {
		a.erlang(`rabbit_auth_backend_internal:delete_user(<<%q>>, <<"tests">>)`, a.name)
		a.s.exec("DROP USER " + a.mysqlName())
		admin.ACLDelUser(context.WithoutCancel(s.t.Context()), a.name)
	})
	a.environ = append(slices.Clip(s.environ), "ROLLBACKD_MYSQL_DSN="+dsn.FormatDSN(), "ROLLBACKD_AMQP_URL="+amqp.String(),
		"ROLLBACKD_REDIS_URL=redis://"+a.name+":"+a.password+"@"+admin.Options().Addr+"/1")
	return a
}

func (a *account) mysqlName() string { return "'" + a.name + "'@'%'" }

func (a *account) erlang(format string, args ...any) {
	a.s.t.Helper()
	a.s.broker.Eval(fmt.Sprintf(format, args...))
}

// mayMySQL gives these rights in the place of all others.
func (a *account) mayMySQL(list []rights.TableRight) {
	a.s.t.Helper()
	a.s.exec("REVOKE ALL PRIVILEGES, GRANT OPTION FROM " + a.mysqlName())
	a.s.exec(grants.Grants(list, a.schema, a.mysqlName())...)
}

func (a *account) mayRedis(list []rights.Command) {
	rules := grants.ACL(list, a.name, a.password)[3:] // behind the name
	require.OK(a.s.t, a.redis.ACLSetUser(a.s.t.Context(), a.name, rules...).Err())
}

func (a *account) mayRabbitMQ(list []rights.Resource) {
	a.s.t.Helper()
	u := require.Get(url.Parse(a.s.broker.URL))(a.s.t)
	quoted := func(p rights.Permission) string { return fmt.Sprintf("%q", grants.Pattern(list, p)) }
	a.erlang(`ok = rabbit_auth_backend_internal:set_permissions(<<%q>>, <<%q>>, <<%s>>, <<%s>>, <<%s>>, <<"tests">>)`,
		a.name, strings.TrimPrefix(u.Path, "/"), quoted(rights.Configure), quoted(rights.Write), quoted(rights.Read))
}

// may gives the rights of these roles on all servers, and no others.
func (a *account) may(roles ...rights.Role) *account {
	a.s.t.Helper()
	a.mayMySQL(rights.MySQL(a.names, roles...))
	a.mayRedis(rights.Redis(roles...))
	a.mayRabbitMQ(rights.RabbitMQ(a.names, roles...))
	return a
}

// do runs a command, which must succeed in silence.
func (a *account) do(stdin string, args ...string) {
	a.s.t.Helper()
	stdout, stderr, code := runCLI(a.s.t, a.environ, stdin, args...)
	for line := range strings.Lines(stderr) {
		assert.That(a.s.t, strings.Contains(line, "stream_queue") || strings.HasPrefix(line, "consumer: exported"),
			"%v says %q", args, line)
	}
	assert.Is(a.s.t, code, exitDone, "%v: exit %s", args, stdout)
}

// run runs a daemon until stop, which returns what it logged above info, but for letters and what a version cannot do.
func (a *account) run(more ...string) (stop func() (complaints []string)) {
	a.s.t.Helper()
	known := []string{"dead-lettered", "what waits longest in the consumer log"}
	end := a.s.begun(append(slices.Clip(a.environ), more...), "run")
	return func() (complaints []string) {
		stdout, stderr, code := end()
		if code != exitDone {
			complaints = append(complaints, fmt.Sprintf("exit %d", code))
		}
		for line := range strings.Lines(stderr + stdout) {
			var entry struct{ Level, Msg string }
			_ = json.Unmarshal([]byte(line), &entry)
			switch {
			case entry.Level == "INFO", slices.Contains(known, entry.Msg), strings.Contains(entry.Msg, "stream_queue"):
			default:
				complaints = append(complaints, line)
			}
		}
		return complaints
	}
}

func newAdmin(t *testing.T) *redis.Client {
	t.Helper()
	client := redis.NewClient(require.Get(redis.ParseURL(stack.Redis(t)))(t))
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// Given accounts with exactly the rights of the list, when everything that rollbackd can do is switched on and every
// command is run, then all of it works and nobody complains.
func TestEverythingWorksWithExactlyTheRightsOfTheList(t *testing.T) {
	var told atomic.Int32
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // what is cut off has another signature
		assert.OK(t, deadletter.VerifySignature("between us", r.Header.Get(deadletter.SignatureHeader), body, time.Now(),
			time.Minute), "the webhook is told")
		told.Add(1)
	}))
	t.Cleanup(hook.Close)
	s := newShell(t, "ROLLBACKD_HANDLER_TIMEOUT=2s", "ROLLBACKD_LEASE=5s", "ROLLBACKD_LOCK_TTL=1s",
		"ROLLBACKD_LOG_FORMAT=json", "ROLLBACKD_LOG_RETENTION=720h", "ROLLBACKD_COMPENSATE_AFTER=1s",
		"ROLLBACKD_DEAD_LETTER_WEBHOOK="+hook.URL, "ROLLBACKD_DEAD_LETTER_WEBHOOK_SECRET=between us")
	admin := newAdmin(t)
	var accounts []string
	account := func() *account {
		a := s.account(admin)
		accounts = append(accounts, a.name)
		return a
	}
	account().may(rights.Migrate).do("", "migrate")
	account().may(rights.Migrate).do("", "migrate", "--status")
	person := account().may(rights.CLI, rights.Retention) // which log prune needs
	s.exec("INSERT INTO stock (sku_id, amount, version) VALUES (1, 10, 0)")
	s.reserve("A-1", 1, 1)
	s.reserve("A-2", 1, 1)
	s.exec("INSERT INTO consumer_log" +
		" (group_name, msg_tag, msg_key, consumer_status, consumer_times, consumer_timestamp, created_at) VALUES" +
		" ('stock-rollback', 'stock.rollback', 'old', 1, 1, UTC_TIMESTAMP(6) - INTERVAL 60 DAY, UTC_TIMESTAMP(6))")

	// the daemon: a success beside a letter in one batch, a failure that is compensated, the webhook, retention
	stop := account().may(rights.Daemon, rights.Retention, rights.Compensation, rights.Webhook).run()
	s.eventually(1, "SELECT COUNT(*) FROM rollbackd_meta WHERE name LIKE 'told:%'")
	person.do(`{"order_sn":"A-1"}`+"\n"+`{"order_sn":"A-2","items":[{"sku_id":1,"quantity":7}]}`+"\n"+`{"order_sn":"A-3"}`,
		"publish", "--key-field", "order_sn")
	s.eventually(11, "SELECT amount FROM stock WHERE sku_id = 1")
	s.reserve("A-3", 1, 2)
	s.eventually(13, "SELECT amount FROM stock WHERE sku_id = 1")
	s.eventually(0, "SELECT COUNT(*) FROM consumer_log WHERE msg_key = 'old'")
	poll.Until(t, "the webhook to be told", func() bool { return told.Load() > 0 })
	assert.Equal(t, stop(), nil, "complaints of the daemon")

	// the command line, while another daemon refuses what was never reserved
	stop = account().may(rights.Daemon).run("ROLLBACKD_EMPTY_ROLLBACK=refuse", "ROLLBACKD_LOG_RETENTION=0",
		"ROLLBACKD_COMPENSATE_AFTER=off", "ROLLBACKD_DEAD_LETTER_WEBHOOK=", "ROLLBACKD_DEAD_LETTER_WEBHOOK_SECRET=")
	person.do(`{"order_sn":"A-4"}`, "publish", "--key-field", "order_sn")
	s.eventually(1, "SELECT COUNT(*) FROM stock_reservation WHERE order_sn = 'A-4' AND status = 4")
	file := filepath.Join(t.TempDir(), "letters")
	for _, args := range [][]string{
		{"config"}, {"dlq", "list"}, {"dlq", "list", "--by", "reason"}, {"dlq", "show", "A-2"},
		{"dlq", "export", "-o", file}, {"log", "list"}, {"log", "explain", "A-2"}, {"log", "explain", "--order", "A-2"},
		{"log", "prune", "--dry-run"}, {"log", "prune"}, {"acts"}, {"pause"},
		{"pause", "--why", "a test"}, {"resume"},
		{"dlq", "replay", "--key", "A-2", "--dry-run"}, {"dlq", "replay", "--key", "A-2", "--no-wait"},
	} {
		person.do("", args...)
	}
	s.eventually(1, "SELECT COUNT(*) FROM consumer_log WHERE msg_key = 'A-2' AND consumer_status = 3 AND replays = 1")
	s.exec("DELETE FROM consumer_log WHERE msg_key = 'A-1'")
	_, stderr, code := runCLI(t, person.environ, "", "reconcile")
	assert.That(t, code == exitFailed && stderr == "consumer: disagreements: 1\n",
		"reconcile: exit %d, %q; want 1, because a row is gone", code, stderr)
	person.do("", "reconcile", "--adopt")
	s.broker.Purge(s.queue + ".dead")
	person.do("", "reconcile", "--republish")
	s.eventually(1, "SELECT COUNT(*) FROM consumer_log WHERE msg_key = 'A-2' AND consumer_status = 3 AND replays = 2")
	person.do("", "dlq", "discard", "--key", "A-2", "--why", "a test")
	assert.Equal(t, stop(), nil, "complaints of the daemon")

	// a classic table is taken over; without the right on it the command says what is missing
	s.exec(classicTable, "INSERT INTO trade_mq_consumer_log (group_name, msg_tag, msg_key, msg_body, consumer_status) "+
		"VALUES ('cancel_group', 'cancel', 'C-1', '{}', 0)")
	taker := account()
	taker.names.Classic = "trade_mq_consumer_log"
	list := rights.MySQL(taker.names, rights.TakeOver)
	args := []string{"migrate", "--from", "trade_mq_consumer_log", "--map-group", "cancel_group=stock-rollback"}
	taker.mayMySQL(without(list, len(list)-1))
	as := &shell{t: t, environ: taker.environ}
	as.answers(exitFailed, "GRANT SELECT ON trade_mq_consumer_log", "", args...)
	taker.mayMySQL(list)
	taker.do("", args...)
	s.exec("UPDATE trade_mq_consumer_log SET consumer_status = 1")
	taker.do("", args...)
	s.eventually(1, "SELECT COUNT(*) FROM consumer_log WHERE msg_key = 'C-1' AND consumer_status = 1")

	log := require.Get(admin.ACLLog(t.Context(), 1000).Result())(t)
	for _, entry := range log {
		assert.That(t, !slices.Contains(accounts, entry.Username), "redis refused something: %+v", entry)
	}
}

// Given a password that is changed on the servers and in the files, when all connections break, then the daemon, or the
// relay of an outbox, connects with the new one and goes on, without a restart.
func TestAPasswordChangedInItsFileIsUsedForTheNextConnection(t *testing.T) {
	s := migrated(t, "ROLLBACKD_OUTBOX=on", "ROLLBACKD_HTTP_ADDR="+stack.FreeAddr(t))
	a := s.account(newAdmin(t)).may(rights.Daemon, rights.Relay)
	s.exec("GRANT ALL ON `" + a.schema + "`.* TO " + a.mysqlName())
	dir, kept := t.TempDir(), len(a.environ)-3 // the last ones say how the account logs in
	logins := regexp.MustCompile(`^ROLLBACKD_(MYSQL_DSN|AMQP_URL|REDIS_URL)=`)
	environ := slices.DeleteFunc(slices.Clone(a.environ), logins.MatchString)
	for _, setting := range a.environ[kept:] {
		name, _, _ := strings.Cut(setting, "=")
		environ = append(environ, name+"_FILE="+filepath.Join(dir, name))
	}
	changes := func() {
		former := a.password
		a.password = rand.Text()
		s.exec("ALTER USER " + a.mysqlName() + " IDENTIFIED BY '" + a.password + "'")
		a.erlang(`rabbit_auth_backend_internal:change_password(<<%q>>, <<%q>>, <<"tests">>)`, a.name, a.password)
		a.mayRedis(rights.Redis(rights.Daemon))
		for i, setting := range a.environ[kept:] {
			a.environ[kept+i] = strings.Replace(setting, former, a.password, 1)
			name, value, _ := strings.Cut(a.environ[kept+i], "=")
			require.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(value), 0o600))
		}
		s.cut(a.name)
		require.OK(t, a.redis.Do(t.Context(), "CLIENT", "KILL", "USER", a.name).Err())
	}
	changes()
	for _, command := range []string{"run", "relay"} {
		end := s.begun(environ, command)
		for _, when := range []string{"before", "after"} {
			s.put(command+"-"+when, 1, "")
			s.eventually(0, "SELECT COUNT(*) FROM rollbackd_outbox")
			if command == "run" {
				s.eventually(1, "SELECT COUNT(*) FROM consumer_log WHERE msg_key LIKE 'run-"+when+"%'")
				s.until("ok answer = takes deliveries")
				s.until("no warn degraded")
			}
			if when == "before" {
				changes()
			}
		}
		_, stderr, code := end()
		assert.That(t, code == exitDone, "%s: exit %d\n%s", command, code, stderr)
	}
}

// Given an account with exactly the rights of the list, when any one of them is taken away, then doctor says so; with a
// lock in MySQL too.
func TestDoctorNoticesEachRightThatIsTakenAway(t *testing.T) {
	s := newShell(t, "ROLLBACKD_COMPENSATE_AFTER=1h", "ROLLBACKD_DEAD_LETTER_WEBHOOK=http://127.0.0.1:1/",
		"ROLLBACKD_HTTP_ADDR=127.0.0.1:0")
	s.run("", "migrate")
	roles := []rights.Role{rights.Daemon, rights.Retention, rights.Compensation, rights.Webhook, rights.Pages, rights.CLI}
	a, owner := s.account(newAdmin(t)).may(roles...), *s
	s.environ = a.environ
	complaints := func(area string) (found []doctor.Check) {
		t.Helper()
		checks, _ := s.examine()
		for _, c := range checks {
			known := c.Area == "rabbitmq" && (c.Name == "version" || c.Name == "daemon" || c.Name == "bindings and policies")
			if c.Level != doctor.OK && c.Area == area && !known {
				found = append(found, c)
			}
		}
		return found
	}
	tables, commands := rights.MySQL(a.names, roles...), rights.Redis(roles...)
	resources := rights.RabbitMQ(a.names, roles...)
	for _, area := range []string{"mysql", "redis", "rabbitmq"} {
		found := complaints(area)
		if area == "mysql" { // of whose server there is more to say
			found = slices.DeleteFunc(found, func(c doctor.Check) bool { return c.Name != "right" })
		}
		require.Is(t, len(found), 0, "with all rights doctor complains: %+v", found)
	}
	check := func(area, what string, mentioned ...string) {
		t.Helper()
		found := complaints(area)
		for _, c := range found {
			text := c.Name + " " + c.Found + " " + c.Do
			if !slices.ContainsFunc(mentioned, func(word string) bool { return !strings.Contains(text, word) }) {
				return
			}
		}
		t.Errorf("without %s doctor says %+v", what, found)
	}
	for i, r := range tables {
		a.mayMySQL(without(tables, i))
		check("mysql", r.Privilege+" on "+r.Table, r.Privilege, r.Table)
	}
	for i, c := range commands {
		a.mayRedis(without(commands, i))
		check("redis", c.Name, "NOPERM", "'"+c.Name+"'")
	}
	for i, r := range resources {
		a.mayRabbitMQ(without(resources, i))
		check("rabbitmq", string(r.Permission)+" on "+r.Name, strings.TrimSuffix(r.Name, "*"))
	}
	a.mayRabbitMQ(nil)
	s.says("warn " + s.queue + " = unchecked\nfail right to publish\nfail right to read " + s.queue)
	a.may(roles...)
	s.set("LOCK=mysql")
	s.says("fail lock = `migrate` makes it")
	owner.set("LOCK=mysql")
	owner.quietly("", "migrate")
	a.names.Lock = true
	a.may(roles...)
	s.says("ok lock = taken and released")
	for i, r := range rights.MySQL(a.names, roles...) {
		if r.Table == lockers.MySQLTable {
			a.mayMySQL(without(rights.MySQL(a.names, roles...), i))
			check("mysql", r.Privilege+" on "+r.Table, r.Privilege, r.Table)
		}
	}
}

func without[T any](list []T, i int) []T { return slices.Delete(slices.Clone(list), i, i+1) }

// Given three servers as they are installed, when an administrator loads the files of deploy/accounts as they are, but
// for passwords, then one account migrates, the other runs the daemon, and doctor misses nothing.
func theAccountFilesAreAllThatServersNeed(t *testing.T, rabbit *stack.Server) {
	// given
	acl := filepath.Join(t.TempDir(), "users.acl")
	require.OK(t, os.WriteFile(acl, nil, 0o600))
	db := stack.OwnMySQL(t)
	cache := stack.Own(t, stack.Options{Only: []stack.Kind{stack.KindRedis}, RedisArgs: []string{"--aclfile", acl}})
	amqp := require.Get(url.Parse(rabbit.URL()))(t)
	// The test's own account has the name of the daemon's: it is made over, and keeps its password so that the test can
	// still look at the queue.
	daemonPassword, _ := amqp.User.Password()
	passwords := strings.NewReplacer(grants.MigratePassword, "m1", grants.DaemonPassword, daemonPassword,
		grants.AdminPassword, "a1")
	file := func(name string) string {
		return passwords.Replace(string(require.Get(os.ReadFile(filepath.Join("..", "..", "deploy", "accounts", name)))(t)))
	}
	// when: RabbitMQ
	definitions := filepath.Join(t.TempDir(), "definitions.json")
	require.OK(t, os.WriteFile(definitions, []byte(file("rabbitmq-definitions.json")), 0o600))
	require.Get(rabbit.Ctl("import_definitions", definitions))(t)
	// when: Redis
	require.OK(t, os.WriteFile(acl, []byte(file("redis-users.acl")), 0o600))
	client := redis.NewClient(&redis.Options{Addr: cache.Addr()})
	defer client.Close()
	require.OK(t, client.Do(t.Context(), "ACL", "LOAD").Err())
	nameless := redis.NewClient(&redis.Options{Addr: cache.Addr()})
	defer nameless.Close()
	err := nameless.Ping(t.Context()).Err()
	assert.That(t, err != nil, "redis answers whoever names no account")
	// when: MySQL, in two steps
	admin := require.Get(mysql.ParseDSN(db.URL()))(t)
	admin.MultiStatements = true
	root := require.Get(sql.Open("mysql", admin.FormatDSN()))(t)
	defer root.Close()
	environ := func(name, password string) []string {
		server := *amqp
		server.User = url.UserPassword(name, password)
		dsn := *admin
		dsn.User, dsn.Passwd, dsn.DBName, dsn.MultiStatements = name, password, "shop", false
		return []string{"ROLLBACKD_AMQP_URL=" + server.String(), "ROLLBACKD_MYSQL_DSN=" + dsn.FormatDSN(),
			"ROLLBACKD_REDIS_URL=redis://rollbackd:" + daemonPassword + "@" + cache.Addr() + "/0", "ROLLBACKD_HTTP_ADDR=off"}
	}
	stack.Exec(t, root, file("mysql-1-migrate.sql"))
	s := &shell{t: t, broker: rabbit.Broker(t), queue: "stock.rollback", environ: environ("rollbackd_migrate", "m1"),
		pool: root}
	s.quietly("", "migrate")
	stack.Exec(t, root, file("mysql-2-daemon.sql"))
	// then
	s.environ = environ("rollbackd", daemonPassword)
	stop := s.daemon()
	s.exec("INSERT INTO shop.stock (sku_id, amount, version) VALUES (1, 10, 0);" +
		"INSERT INTO shop.stock_reservation (order_sn, sku_id, quantity, status, updated_at)" +
		" VALUES ('A-1', 1, 2, 1, UTC_TIMESTAMP(6))")
	s.quietly(`{"order_sn":"A-1"}`, "publish", "--key-field", "order_sn")
	s.eventually(12, "SELECT amount FROM shop.stock WHERE sku_id = 1")
	s.says("exit 0\nno fail \nno warn right = ")
	assert.Has(t, require.Get(rabbit.Ctl("list_policies"))(t), "rollbackd.stock.rollback", "the policies")
	stop()
}
