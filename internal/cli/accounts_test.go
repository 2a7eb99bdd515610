package cli

import (
	"context"
	"database/sql"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/internal/test/grants"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// accountFile is a file of deploy/accounts with passwords in it.
func accountFile(t *testing.T, name, password string) string {
	t.Helper()
	text := require.Get(os.ReadFile(filepath.Join("..", "..", "deploy", "accounts", name)))(t)
	return strings.NewReplacer(grants.MigratePassword, "m1", grants.DaemonPassword, password, grants.AdminPassword, "a1").
		Replace(string(text))
}

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
	// when: RabbitMQ
	definitions := filepath.Join(t.TempDir(), "definitions.json")
	text := accountFile(t, "rabbitmq-definitions.json", daemonPassword)
	require.OK(t, os.WriteFile(definitions, []byte(text), 0o600))
	if out, err := rabbit.Ctl("import_definitions", definitions); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// when: Redis
	require.OK(t, os.WriteFile(acl, []byte(accountFile(t, "redis-users.acl", daemonPassword)), 0o600))
	client := redis.NewClient(&redis.Options{Addr: cache.Addr()})
	defer client.Close()
	require.OK(t, client.Do(t.Context(), "ACL", "LOAD").Err())
	nameless := redis.NewClient(&redis.Options{Addr: cache.Addr()})
	defer nameless.Close()
	if err := nameless.Ping(t.Context()).Err(); err == nil {
		t.Error("redis answers whoever names no account")
	}
	// when: MySQL, in two steps
	admin := require.Get(mysql.ParseDSN(db.URL()))(t)
	admin.MultiStatements = true
	root := require.Get(sql.Open("mysql", admin.FormatDSN()))(t)
	defer root.Close()
	load := func(name string) {
		t.Helper()
		if _, err := root.ExecContext(context.WithoutCancel(t.Context()), accountFile(t, name, daemonPassword)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	environ := func(name, password string) []string {
		server := *amqp
		server.User = url.UserPassword(name, password)
		dsn := *admin
		dsn.User, dsn.Passwd, dsn.DBName, dsn.MultiStatements = name, password, "shop", false
		return []string{"ROLLBACKD_AMQP_URL=" + server.String(), "ROLLBACKD_MYSQL_DSN=" + dsn.FormatDSN(),
			"ROLLBACKD_REDIS_URL=redis://rollbackd:" + daemonPassword + "@" + cache.Addr() + "/0", "ROLLBACKD_HTTP_ADDR=off"}
	}
	load("mysql-1-migrate.sql")
	if _, stderr, code := runCLI(t, environ("rollbackd_migrate", "m1"), "", "migrate"); code != exitDone {
		t.Fatalf("migrate: exit %d\n%s", code, stderr)
	}
	load("mysql-2-daemon.sql")
	// then
	s := &shell{t: t, broker: rabbit.Broker(t), queue: "stock.rollback", environ: environ("rollbackd", daemonPassword),
		pool: root}
	stop := s.daemon()
	s.exec("INSERT INTO shop.stock (sku_id, amount, version) VALUES (1, 10, 0);" +
		"INSERT INTO shop.stock_reservation (order_sn, sku_id, quantity, status, updated_at)" +
		" VALUES ('A-1', 1, 2, 1, UTC_TIMESTAMP(6))")
	_, stderr, code := runCLI(t, s.environ, `{"order_sn":"A-1"}`, "publish", "--key-field", "order_sn")
	require.Is(t, code, exitDone, "publish: exit %s", stderr)
	s.eventually(12, "SELECT amount FROM shop.stock WHERE sku_id = 1")
	s.says("exit 0\nno fail \nno warn right = ")
	policies, err := rabbit.Ctl("list_policies")
	if err != nil || !strings.Contains(policies, "rollbackd.stock.rollback") {
		t.Errorf("the policies are %q, %v", policies, err)
	}
	stop()
}
