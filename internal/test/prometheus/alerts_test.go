package prometheus

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
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
