package examples_test

import (
	"database/sql"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestMain(m *testing.M) { stack.Main(m) }

const jars = "/usr/share/java/mariadb-java-client.jar:/usr/share/java/gson.jar"

// languages are the examples in each of them: how a database is named there, of {user}, {password}, {host}, {port} and
// {schema}, and the commands that say whether all is installed, put a message, and serve at {addr}.
var languages = map[string]struct{ database, needs, put, serve string }{
	"python": {
		"{user}:{password}@{host}:{port}/{schema}", "/usr/bin/python3 -c import\tpymysql",
		"/usr/bin/python3 outbox/put.py", "/usr/bin/python3 http/rollbacks.py",
	},
	"php": {
		"mysql:host={host};port={port};dbname={schema}", "php -r exit(extension_loaded('pdo_mysql')?0:1);",
		"php outbox/put.php", "php -S {addr} http/rollbacks.php",
	},
	"java": {
		"jdbc:mariadb://{host}:{port}/{schema}?user={user}&password={password}",
		"test -f /usr/share/java/mariadb-java-client.jar -a -f /usr/share/java/gson.jar",
		"java -cp " + jars + " outbox/Put.java", "java -cp " + jars + " http/Rollbacks.java",
	},
	"node": {
		"mysql://{user}:{password}@{host}:{port}/{schema}", "node -e require('mysql')",
		"node outbox/put.js", "node http/rollbacks.js",
	},
}

// Given a service and a producer in another language, when the producer puts its message twice, and one of a paid
// order, and when one key is called for many times at once, then each has its effect once, that of the paid order none,
// and each call is told that all is well.
func TestEachLanguagePutsAMessageAndKnowsACallAgain(t *testing.T) {
	dir, binary := t.TempDir(), ""
	for language, l := range languages {
		t.Run(language, func(t *testing.T) {
			dsn := stack.MySQL(t)
			config := require.Get(mysql.ParseDSN(dsn))(t)
			host, port, _ := strings.Cut(config.Addr, ":")
			addr := stack.FreeAddr(t)
			fill := strings.NewReplacer("{user}", config.User, "{password}", config.Passwd, "{host}", host, "{port}", port,
				"{schema}", config.DBName, "{addr}", addr).Replace
			env := append(os.Environ(), "NODE_PATH=/usr/share/nodejs", "PHP_CLI_SERVER_WORKERS=8", "SHOP_ADDR="+addr)
			for _, of := range []string{"ORDERS", "SHOP"} {
				env = append(env, of+"_DSN="+fill(l.database), of+"_URL="+fill(l.database), of+"_USER="+config.User,
					of+"_PASSWORD="+config.Passwd)
			}
			run := func(command string, args ...string) ([]byte, error) {
				words := append(strings.Split(command, " "), args...)
				cmd := exec.CommandContext(t.Context(), words[0], words[1:]...)
				cmd.Env = env
				return cmd.CombinedOutput()
			}
			if said, err := run(l.needs); err != nil && os.Getenv("ROLLBACKD_TEST_LANGUAGES") == "" {
				t.Skipf("%v: %s: 'make test ONLY=languages' installs what is missing", err, said)
			}
			if binary == "" {
				binary = require.Get(program.Build(t.Context(), dir))(t)
			}
			broker := stack.AMQP(t)
			queue := broker.Name("stock.rollback")
			daemonEnv := []string{
				"ROLLBACKD_AMQP_URL=" + broker.URL, "ROLLBACKD_MYSQL_DSN=" + dsn, "ROLLBACKD_REDIS_URL=off",
				"ROLLBACKD_QUEUE=" + queue, "ROLLBACKD_EXCHANGE=" + broker.Name("stock"), "ROLLBACKD_OUTBOX=on",
				"ROLLBACKD_HANDLER=http", "ROLLBACKD_HTTP_TARGET=http://" + addr + "/rollbacks",
				"ROLLBACKD_HTTP_ADDR=127.0.0.1:0",
			}
			require.Get(program.Run(t.Context(), binary, daemonEnv, "migrate"))(t)
			db := require.Get(sql.Open("mysql", dsn))(t)
			t.Cleanup(func() { _ = db.Close() })
			for _, name := range []string{"http/tables.sql", "orders/orders.sql"} {
				stack.Script(t, db, name)
			}
			stack.Exec(t, db, "INSERT INTO orders (order_sn, status) VALUES ('order-1', 'open'), ('order-2', 'paid')")

			serve := strings.Split(fill(l.serve), " ")
			program.Serve(t, program.Options{Path: serve[0], Args: serve[1:], Env: env})
			poll.Until(t, "the service", func() bool {
				c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addr)
				if err == nil {
					_ = c.Close()
				}
				return err == nil
			})
			require.Get(run(l.put, "order-2", "1001", "2"))(t)
			assert.Is(t, stack.Number(t, db, "SELECT COUNT(*) FROM rollbackd_outbox"), 0, "messages of a paid order")
			daemon := program.Serve(t, program.Options{Path: binary, Args: []string{"run"}, Env: daemonEnv})
			for _, outcome := range []string{"applied", "duplicate"} {
				if said, err := run(l.put, "order-1", "1001", "2"); err != nil {
					t.Fatalf("put: %v\n%s", err, said)
				}
				poll.Until(t, "a message that is "+outcome, func() bool {
					m, err := daemon.Metrics(t.Context())
					return err == nil && m.Deliveries(outcome) == 1
				})
			}
			numbers := func(want map[string]int) {
				t.Helper()
				for query, n := range want {
					assert.Is(t, stack.Number(t, db, query), n, "%s", query)
				}
			}
			numbers(map[string]int{"SELECT amount FROM tb_stock WHERE goods_id = 1001": 7,
				"SELECT COUNT(*) FROM orders WHERE status = 'cancelled'": 1})

			const body = `{"items":[{"sku_id":1001,"quantity":2},{"sku_id":1002,"quantity":1}]}`
			var wg sync.WaitGroup
			for range 20 {
				wg.Go(func() {
					if status := call(t, addr, "key", body); status != http.StatusOK && status != http.StatusNoContent {
						t.Errorf("a call is answered with %d, want 200 or 204", status)
					}
				})
			}
			wg.Wait()
			for key, body := range map[string]string{"": body, "other": `{"items":`, "third": `{"order_sn":"1"}`,
				"half": `{"items":[{"sku_id":1001,"quantity":2.5}]}`, "huge": `{"items":[{"sku_id":1001,"quantity":1e400}]}`} {
				assert.Is(t, call(t, addr, key, body), http.StatusBadRequest, "key %q and body %q are answered with", key, body)
			}
			numbers(map[string]int{"SELECT SUM(amount) FROM tb_stock": 10, "SELECT COUNT(*) FROM rollback_done": 2})
		})
	}
}

func call(t *testing.T, addr, key, body string) int {
	target := "http://" + addr + "/rollbacks"
	r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPost, target, strings.NewReader(body)))
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Error(err)
		return 0
	}
	_ = answer.Body.Close()
	return answer.StatusCode
}
