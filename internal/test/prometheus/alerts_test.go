package prometheus

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Given the rules with every span a hundredth of what it is, and a daemon for each cause, then each alert fires for it,
// and none for a daemon that works. Rows that are days old, and a worker that takes claims over, are written by
// statements: nobody waits for days.
func TestEachAlertFiresForItsCause(t *testing.T) {
	if os.Getenv("ROLLBACKD_TEST_PROMETHEUS") == "" {
		t.Skip("it takes two minutes and wants a Prometheus: make test-prometheus runs it")
	}
	prom := startServer(t)
	prom.fires(t, "RollbackdNotScraped", "", time.Minute)
	sound := newWorld(t, prom, "sound")
	sound.run()
	sound.steadily(nil)
	t.Run("causes", func(t *testing.T) {
		for job, cause := range causes {
			t.Run(job, func(t *testing.T) {
				t.Parallel()
				cause(newWorld(t, prom, job))
			})
		}
	})
	for _, alert := range alertNames(t) {
		assert.That(t, prom.holds(t, fmt.Sprintf(`max_over_time(ALERTS{alertname=%q,alertstate="firing"}[10m])`, alert)),
			"%s never fired", alert)
	}
	fired := prom.found(t, `max_over_time(ALERTS{job="sound",alertstate="firing"}[10m])`)
	assert.Is(t, len(fired), 0, "alerts of the daemon that works: %v", fired)
	for _, expr := range dashboardExpressions(t) {
		assert.That(t, prom.holds(t, expr), "the dashboard asks for %s, and nothing answers", expr)
	}
}

// causes are what is done to a daemon, by its job.
var causes = map[string]func(w *world){
	"killed": func(w *world) {
		require.OK(w.t, w.run().Kill())
		w.fires("RollbackdDown")
	},
	"servers killed": func(w *world) {
		mysql, redis := stack.OwnMySQL(w.t), stack.OwnRedis(w.t)
		w.set("MYSQL_DSN", mysql.Database(w.t), "REDIS_URL", redis.URL())
		w.run()
		require.OK(w.t, redis.Kill())
		require.OK(w.t, mysql.Kill())
		w.publish(w.queue, 10, nil)
		w.fires("RollbackdLockDown", "RollbackdDependencyDown", "RollbackdNoLeader")
	},
	"all letters": func(w *world) {
		w.set("MAX_DEAD_RATE", "1/60s", "BRAKE_PAUSE", "24h")
		w.run()
		w.service.status.Store(http.StatusUnprocessableEntity)
		w.publish(w.queue, 200, nil)
		w.fires("RollbackdBraked", "RollbackdNobodyConsumes", "RollbackdPaused")
	},
	"webhook refuses": func(w *world) {
		hook := httptest.NewServer(http.NotFoundHandler())
		w.t.Cleanup(hook.Close)
		w.set("DEAD_LETTER_WEBHOOK", hook.URL)
		w.run()
		eventually(w.t, "the bookmark", time.Minute, func() bool {
			return stack.Number(w.t, w.db, "SELECT COUNT(*) FROM rollbackd_meta WHERE name LIKE 'told:%'") == 1
		})
		w.service.status.Store(http.StatusUnprocessableEntity)
		w.publish(w.queue, 1, nil)
		w.fires("RollbackdDeadLetters", "RollbackdWebhookFails")
	},
	"old rows": func(w *world) {
		w.set("COMPENSATE_AFTER", "1s")
		w.run()
		w.rows(1001, dedup.Dead, "exhausted", 4*24*time.Hour)
		w.rows(1, dedup.Failed, "", 2*time.Hour)
		w.fires("RollbackdDeadLettersMany", "RollbackdRowStuck", "RollbackdCompensationFails", "RollbackdDeadLetterForgotten")
	},
	"connections of the backstop cut": func(w *world) {
		cut := w.behindAKiller()
		w.run()
		w.publish(w.queue+".backstop", 1, cut)
		w.publish(w.queue+".backstop", 20, nil)
		w.fires("RollbackdDegraded", "RollbackdBackstop")
	},
	"dead-letter queue full": func(w *world) {
		w.prepare()
		w.broker.Policy("full", w.queue+".dead", map[string]any{"max-length": 1, "overflow": "reject-publish"})
		w.publish(w.queue+".dead", 1, nil)
		w.run()
		w.service.status.Store(http.StatusUnprocessableEntity)
		w.steadily(nil)
		w.fires("RollbackdPublishFails", "RollbackdHeldDeliveries")
	},
	"connections cut": func(w *world) {
		cut := w.behindAKiller()
		w.run()
		w.publish(w.queue, 1, cut)
		w.fires("RollbackdConnectionsEnd", "RollbackdReconnects")
	},
	"table locked": func(w *world) {
		w.run()
		conn := require.Get(w.db.Conn(w.t.Context()))(w.t)
		defer conn.Close()
		require.Get(conn.ExecContext(w.t.Context(), "LOCK TABLES consumer_log WRITE"))(w.t)
		w.steadily(nil)
		w.fires("RollbackdContention", "RollbackdNoProgress")
	},
	"service says later": func(w *world) {
		w.run()
		w.service.status.Store(http.StatusTooManyRequests)
		w.publish(w.queue, 20, nil)
		w.fires("RollbackdServiceSaysLater")
	},
	"tokens tried": func(w *world) {
		w.set("ADMIN_TOKEN", "the-only-one-that-is-right-here")
		w.run()
		w.every(100*time.Millisecond, w.guess)
		w.fires("RollbackdRefusedTokens")
	},
	"published long ago": func(w *world) {
		w.run()
		w.steadily(func(m *stack.Message) { m.Timestamp = time.Now().Add(-2 * time.Minute) })
		w.fires("RollbackdSlow")
	},
	"claims taken over": func(w *world) {
		w.run()
		w.service.delay.Store(int64(300 * time.Millisecond))
		w.every(100*time.Millisecond, func() {
			w.exec("UPDATE consumer_log SET consumer_times = consumer_times + 1 WHERE consumer_status = 0")
		})
		w.steadily(nil)
		w.fires("RollbackdLeasesLost")
	},
	"certificate of a week": func(w *world) {
		ending := stack.Certificate{To: time.Now().Add(7 * 24 * time.Hour)}
		w.set("HTTP_TLS_CA_FILE", stack.NewAuthority(w.t, "ca").Issue(ending).Cert)
		w.run()
		w.fires("RollbackdCertificateEnds")
	},
	"outbox": func(w *world) {
		w.set("OUTBOX", "on")
		w.run()
		w.exec("INSERT INTO rollbackd_outbox (msg_tag, msg_key, body, routing_key, due_at, next_at) VALUES ('', 'k', 'x', " +
			"NULL, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6)), ('t', 'k', 'x', 'nowhere', " +
			"UTC_TIMESTAMP(6) - INTERVAL 1 HOUR, UTC_TIMESTAMP(6))")
		w.fires("RollbackdOutboxStands", "RollbackdOutboxParked")
	},
	"restarted": func(w *world) {
		p := w.run()
		// The rule counts what was scraped within 18 seconds: a machine that starts seven in twenty starts some more.
		for n := range 40 {
			require.OK(w.t, p.Kill())
			p = w.start()
			seen := fmt.Sprintf(`changes(process_start_time_seconds{job=%q}[10m]) > %d`, w.job, n)
			eventually(w.t, "the next process is scraped", 30*time.Second, func() bool { return w.prom.holds(w.t, seen) })
			if w.prom.firing(w.t, "RollbackdRestarts", w.job) {
				break
			}
		}
		w.fires("RollbackdRestarts")
	},
	"nothing may be deleted": func(w *world) {
		w.set("LOG_RETENTION", "24h")
		w.prepare()
		w.exec(`CREATE TRIGGER kept BEFORE DELETE ON consumer_log FOR EACH ROW SIGNAL SQLSTATE '45000'
			SET MESSAGE_TEXT = 'nothing is deleted here'`)
		w.rows(3, dedup.Success, "", 48*time.Hour)
		w.run()
		w.fires("RollbackdRetentionRests")
		assert.That(w.t, w.prom.holds(w.t, fmt.Sprintf(`rollbackd_retention_runs_total{job=%q,result="failed"} > 0`, w.job)),
			"no pass has failed")
	},
}

const (
	folder     = "../../../deploy/prometheus"
	alertsFile = folder + "/alerts.yaml"
	rulesFile  = folder + "/rules.yaml"
	unitTests  = folder + "/alerts_test.yaml"
	dashboard  = "../../../deploy/grafana/rollbackd.json"
)

func promtool(t *testing.T, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed; make test-prometheus installs it: ", err)
	}
	out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput()
	assert.That(t, err == nil, "promtool %v: %v\n%s", args, err, out)
}

func TestPromtoolAcceptsTheRules(t *testing.T) { promtool(t, "check", "rules", alertsFile, rulesFile) }

// fixed are annotations that are the same whatever is wrong: the unit tests would only repeat them.
var fixed = regexp.MustCompile(`(?m)^ {10}(summary|description|runbook_url): [^{\n]*\n`)

// Each alert fires after its time for what it is meant for, with its labels and what its annotations say of these, and
// not for what is sound.
func TestPromtoolRunsTheUnitTestsOfTheAlerts(t *testing.T) {
	text := read(t, unitTests)
	for _, alert := range alertNames(t) {
		assert.Has(t, text, "alertname: "+alert+", exp_alerts: []", "%s has no unit test of %s", unitTests, alert)
	}
	if os.Getenv("ROLLBACKD_TEST_PROMETHEUS") == "" {
		t.Skip("it takes eleven seconds of processor time: make test-prometheus runs it")
	}
	dir := t.TempDir()
	for path, text := range map[string]string{
		alertsFile: fixed.ReplaceAllString(read(t, alertsFile), ""), rulesFile: read(t, rulesFile), unitTests: text,
	} {
		write(t, filepath.Join(dir, filepath.Base(path)), text)
	}
	promtool(t, "test", "rules", filepath.Join(dir, filepath.Base(unitTests)))
}

// A rule is known by no job's name, which is somebody else's choice.
func TestNoRuleKnowsTheNameOfAJob(t *testing.T) {
	for _, file := range []string{alertsFile, rulesFile} {
		assert.Is(t, regexp.MustCompile(`job\s*(=|!=|=~|!~)`).FindString(read(t, file)), "", "%s asks for", file)
	}
}

// Every expression of the dashboard is one that Prometheus understands.
func TestPromtoolAcceptsTheDashboardsExpressions(t *testing.T) {
	var rules strings.Builder
	rules.WriteString("groups:\n  - name: dashboard\n    rules:\n")
	for i, expr := range dashboardExpressions(t) {
		quoted, err := json.Marshal(expr) // a JSON string is one of YAML
		require.OK(t, err)
		fmt.Fprintf(&rules, "      - record: dashboard:expression_%d\n        expr: %s\n", i, quoted)
	}
	path := filepath.Join(t.TempDir(), "dashboard.yaml")
	write(t, path, rules.String())
	promtool(t, "check", "rules", path)
}

func alertNames(t *testing.T) (names []string) {
	t.Helper()
	for _, m := range regexp.MustCompile(`(?m)^ +- alert: (\w+)$`).FindAllStringSubmatch(read(t, alertsFile), -1) {
		names = append(names, m[1])
	}
	require.That(t, len(names) >= 20, "only %d alerts found: the pattern is wrong", len(names))
	return names
}

// dashboardExpressions are those of all panels, with Grafana's variables replaced by what they may stand for.
func dashboardExpressions(t *testing.T) (all []string) {
	t.Helper()
	var board any
	require.OK(t, json.Unmarshal([]byte(read(t, dashboard)), &board))
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if expr, ok := v["expr"].(string); ok {
				all = append(all, strings.NewReplacer("$job", ".+", "$__rate_interval", "5m").Replace(expr))
			}
			for _, inner := range v {
				walk(inner)
			}
		case []any:
			for _, inner := range v {
				walk(inner)
			}
		}
	}
	walk(board)
	require.That(t, len(all) >= 10, "only %d expressions found in %s", len(all), dashboard)
	return all
}

// faster is how much shorter every time span of the rules is in the copy that the test's Prometheus reads.
const faster = 100

var span = regexp.MustCompile(`(for: |\[)(\d+)([smhd])(\n|\])`)

// sped is a file of rules whose spans are all shorter by the same factor, so that their proportions stay.
func sped(t *testing.T, file string) string {
	t.Helper()
	units := map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}
	n := 0
	text := span.ReplaceAllStringFunc(read(t, file), func(found string) string {
		m := span.FindStringSubmatch(found)
		n++
		count := require.Get(strconv.Atoi(m[2]))(t)
		d := time.Duration(count) * units[m[3]] / faster
		return m[1] + strconv.FormatInt(d.Milliseconds(), 10) + "ms" + m[4]
	})
	require.That(t, n >= 5, "only %d time spans found in %s: the pattern is wrong", n, file)
	return text
}

func read(t *testing.T, path string) string {
	t.Helper()
	text := require.Get(os.ReadFile(path))(t)
	return string(text)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	require.OK(t, os.WriteFile(path, []byte(text), 0o600))
}
