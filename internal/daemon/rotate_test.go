package daemon_test

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/outbox"
)

// rotation is a login of the test's own on the three servers, and the files that say it.
type rotation struct {
	w     *world
	user  string
	admin *redis.Client
	files map[string]string // by setting
}

func newRotation(w *world, password string) *rotation {
	w.t.Helper()
	r := &rotation{w: w, user: fmt.Sprintf("r%d", time.Now().UnixNano()), files: map[string]string{}}
	options := require.Get(redis.ParseURL(w.env["REDIS_URL"]))(w.t)
	r.admin = redis.NewClient(options)
	dsn := require.Get(mysql.ParseDSN(w.env["MYSQL_DSN"]))(w.t)
	r.w.exec("CREATE USER '" + r.user + "'@'%' IDENTIFIED BY '" + password + "'")
	r.w.exec("GRANT ALL ON `" + dsn.DBName + "`.* TO '" + r.user + "'@'%'")
	r.erlang(`ok = rabbit_auth_backend_internal:add_user(<<"%s">>, <<"%s">>, <<"test">>), `+
		`rabbit_auth_backend_internal:set_permissions(<<"%s">>, <<"%s">>, <<".*">>, <<".*">>, <<".*">>, <<"test">>)`, r.user,
		password, r.user, strings.TrimPrefix(require.Get(url.Parse(w.broker.URL))(w.t).Path, "/"))
	r.redis("ACL", "SETUSER", r.user, "on", ">"+password, "~*", "&*", "+@all")
	w.t.Cleanup(func() {
		w.exec("DROP USER '" + r.user + "'@'%'")
		r.erlang(`rabbit_auth_backend_internal:delete_user(<<"%s">>, <<"test">>)`, r.user)
		r.redis("ACL", "DELUSER", r.user)
		assert.OK(w.t, r.admin.Close())
	})
	dir := w.t.TempDir()
	for _, setting := range []string{"MYSQL_DSN", "REDIS_URL", "AMQP_URL"} {
		r.files[setting] = filepath.Join(dir, setting)
	}
	r.write(password)
	return r
}

func (r *rotation) erlang(format string, args ...any) { r.w.broker.Eval(fmt.Sprintf(format, args...)) }

func (r *rotation) redis(args ...any) {
	r.w.t.Helper()
	if err := r.admin.Do(r.w.t.Context(), args...).Err(); err != nil && r.w.t.Context().Err() == nil {
		r.w.t.Errorf("redis %v: %v", args[0], err)
	}
}

// write puts a password into the files.
func (r *rotation) write(password string) {
	r.w.t.Helper()
	dsn := require.Get(mysql.ParseDSN(r.w.env["MYSQL_DSN"]))(r.w.t)
	dsn.User, dsn.Passwd = r.user, password
	texts := map[string]string{"MYSQL_DSN": dsn.FormatDSN()}
	for _, setting := range []string{"REDIS_URL", "AMQP_URL"} {
		u := require.Get(url.Parse(r.w.env[setting]))(r.w.t)
		u.User = url.UserPassword(r.user, password)
		texts[setting] = u.String()
	}
	for setting, text := range texts {
		require.OK(r.w.t, os.WriteFile(r.files[setting], []byte(text+"\n"), 0o600))
	}
}

// change gives the login another password on the servers.
func (r *rotation) change(password string) {
	r.w.t.Helper()
	r.w.exec("ALTER USER '" + r.user + "'@'%' IDENTIFIED BY '" + password + "'")
	r.erlang(`rabbit_auth_backend_internal:change_password(<<"%s">>, <<"%s">>, <<"test">>)`, r.user, password)
	r.redis("ACL", "SETUSER", r.user, "resetpass", ">"+password)
}

// cut ends all connections of the login.
func (r *rotation) cut() {
	r.w.t.Helper()
	for id := range r.w.pairs("SELECT id, user FROM " + stack.Processes + " WHERE user = '" + r.user + "'") {
		_, _ = r.w.db.ExecContext(r.w.t.Context(), "KILL "+id) // it may have ended by itself
	}
	_ = r.admin.Do(r.w.t.Context(), "CLIENT", "KILL", "USER", r.user).Err()
	r.erlang(`[rabbit_networking:close_connection(P, "closed by the test") || [{pid, P}, {user, U}] <- `+
		`rabbit_networking:connection_info_all([pid, user]), U =:= <<"%s">>], ok`, r.user)
}

// Given a password that is changed on the servers and in the files, when all connections break, then the daemon, or the
// relay of an outbox, connects with the new one and goes on, without a restart.
func TestAPasswordChangedInItsFileIsUsedForTheNextConnection(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"run", "relay"} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			rotate(newWorld(t), command)
		})
	}
}

func rotate(w *world, command string) {
	orders := w.open(100)
	send, sent, missed := w.publish, w.ended, "rabbitmq: "
	if command == "relay" {
		require.OK(w.t, outbox.Migrate(w.t.Context(), w.store(dedup.OpenOptions{}).DB))
		send, missed = w.putAll, "mysql: " // which it asks first
		sent = func(n int) {
			w.eventually("all are sent", func() bool { return w.waiting() == 0 && w.broker.Depth(w.config().Queue) == n })
		}
	}
	send(w.route.Rollbacks(orders[:50])...)
	r := newRotation(w, "former")
	plain := w.env
	w.env = maps.Clone(plain)
	for setting, file := range r.files {
		delete(w.env, setting)
		w.env[setting+"_FILE"] = file
	}
	daemon := w.command(command)
	w.env = plain
	w.ready(daemon)
	sent(50)

	r.change("next")
	r.cut()
	w.eventually("the daemon has noticed", func() bool {
		status, s := w.readyz(daemon)
		return status != http.StatusOK && slices.ContainsFunc(s.Waiting,
			func(what string) bool { return strings.HasPrefix(what, missed) })
	})
	r.write("next")

	send(w.route.Rollbacks(orders[50:])...)
	w.ready(daemon)
	sent(100)
	w.eventually("nothing is amiss", func() bool { _, s := w.readyz(daemon); return len(s.Degraded) == 0 })
	w.stop(daemon)
	w.judge(oracle.Allowance{Queued: command == "relay"})
}
