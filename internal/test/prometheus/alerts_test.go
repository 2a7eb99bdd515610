package prometheus

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
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
	sound := newWorld(t, prom, "sound").on(stack.AMQP(t))
	sound.run()
	sound.steadily(nil)
	t.Run("causes", func(t *testing.T) {
		for job, cause := range causes {
			t.Run(job, func(t *testing.T) {
				t.Parallel()
				cause(t, prom, job)
			})
		}
	})
	for _, alert := range alertNames(t) {
		if !prom.holds(t, fmt.Sprintf(`max_over_time(ALERTS{alertname=%q,alertstate="firing"}[10m])`, alert)) {
			t.Errorf("%s never fired", alert)
		}
	}
	never := `max_over_time(ALERTS{job="sound",alertstate="firing"}[10m])`
	if fired, err := prom.query(t.Context(), never); err != nil || len(fired) > 0 {
		t.Errorf("of the daemon that works these fired: %v, %v", fired, err)
	}
	for _, expr := range dashboardExpressions(t) {
		if !prom.holds(t, expr) {
			t.Errorf("the dashboard asks for %s, and nothing answers", expr)
		}
	}
}

// causes are what is done to a daemon, by its job.
var causes = map[string]func(t *testing.T, prom *server, job string){
	"killed": func(t *testing.T, prom *server, job string) {
		w := newWorld(t, prom, job).on(stack.AMQP(t))
		if err := w.run().Kill(); err != nil {
			t.Fatal(err)
		}
		w.fires("RollbackdDown")
	},
	"servers killed": func(t *testing.T, prom *server, job string) {
		mysql, redis := stack.OwnMySQL(t), stack.OwnRedis(t)
		w := newWorld(t, prom, job, "MYSQL_DSN", mysql.Database(t), "REDIS_URL", redis.URL()).on(stack.AMQP(t))
		w.run()
		for _, s := range []*stack.Server{redis, mysql} {
			if err := s.Kill(); err != nil {
				t.Fatal(err)
			}
		}
		w.publish(w.queue, 10, nil)
		w.fires("RollbackdLockDown", "RollbackdDependencyDown", "RollbackdNoLeader")
	},
	"all letters": func(t *testing.T, prom *server, job string) {
		w := newWorld(t, prom, job, "MAX_DEAD_RATE", "1/60s", "BRAKE_PAUSE", "24h").on(stack.AMQP(t))
		w.run()
		w.service.status.Store(http.StatusUnprocessableEntity)
		w.publish(w.queue, 200, nil)
		w.fires("RollbackdBraked", "RollbackdNobodyConsumes", "RollbackdPaused")
	},
	"webhook refuses": func(t *testing.T, prom *server, job string) {
		hook := httptest.NewServer(http.NotFoundHandler())
		t.Cleanup(hook.Close)
		w := newWorld(t, prom, job, "DEAD_LETTER_WEBHOOK", hook.URL).on(stack.AMQP(t))
		w.run()
		eventually(t, "the bookmark", time.Minute, func() bool {
			var n int
			err := w.db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM rollbackd_meta WHERE name LIKE 'told:%'").Scan(&n)
			return err == nil && n == 1
		})
		w.service.status.Store(http.StatusUnprocessableEntity)
		w.publish(w.queue, 1, nil)
		w.fires("RollbackdDeadLetters", "RollbackdWebhookFails")
	},
	"old rows": func(t *testing.T, prom *server, job string) {
		w := newWorld(t, prom, job, "COMPENSATE_AFTER", "1s").on(stack.AMQP(t))
		w.run()
		w.rows(1001, dedup.Dead, "exhausted", 4*24*time.Hour)
		w.rows(1, dedup.Failed, "", 2*time.Hour)
		w.fires("RollbackdDeadLettersMany", "RollbackdRowStuck", "RollbackdCompensationFails", "RollbackdDeadLetterForgotten")
	},
	"connections of the backstop cut": func(t *testing.T, prom *server, job string) {
		w, cut := newWorld(t, prom, job).on(stack.AMQP(t)).behindAKiller()
		w.run()
		w.publish(w.queue+".backstop", 1, cut)
		w.publish(w.queue+".backstop", 20, nil)
		w.fires("RollbackdDegraded", "RollbackdBackstop")
	},
	"dead-letter queue full": func(t *testing.T, prom *server, job string) {
		w := newWorld(t, prom, job).on(stack.AMQP(t))
		w.broker.Policy("full", w.queue+".dead", map[string]any{"max-length": 1, "overflow": "reject-publish"})
		w.publish(w.queue+".dead", 1, nil)
		w.run()
		w.service.status.Store(http.StatusUnprocessableEntity)
		w.steadily(nil)
		w.fires("RollbackdPublishFails", "RollbackdHeldDeliveries")
	},
	"connections cut": func(t *testing.T, prom *server, job string) {
		w, cut := newWorld(t, prom, job).on(stack.AMQP(t)).behindAKiller()
		w.run()
		w.publish(w.queue, 1, cut)
		w.fires("RollbackdConnectionsEnd", "RollbackdReconnects")
	},
	"table locked": func(t *testing.T, prom *server, job string) {
		w := newWorld(t, prom, job).on(stack.AMQP(t))
		w.run()
		conn, err := w.db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.ExecContext(t.Context(), "LOCK TABLES consumer_log WRITE"); err != nil {
			t.Fatal(err)
		}
		w.steadily(nil)
		w.fires("RollbackdContention", "RollbackdNoProgress")
	},
	"service says later": func(t *testing.T, prom *server, job string) {
		w := newWorld(t, prom, job).on(stack.AMQP(t))
		w.run()
		w.service.status.Store(http.StatusTooManyRequests)
		w.publish(w.queue, 20, nil)
		w.fires("RollbackdServiceSaysLater")
	},
	"tokens tried": func(t *testing.T, prom *server, job string) {
		w := newWorld(t, prom, job, "ADMIN_TOKEN", "the-only-one-that-is-right-here").on(stack.AMQP(t))
		w.run()
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for tick := time.Tick(100 * time.Millisecond); ; {
				select {
				case <-stop:
					return
				case <-tick:
					w.guess()
				}
			}
		}()
		defer func() { close(stop); <-stopped }()
		w.fires("RollbackdRefusedTokens")
	},
	"published long ago": func(t *testing.T, prom *server, job string) {
		w := newWorld(t, prom, job).on(stack.AMQP(t))
		w.run()
		w.steadily(func(m *stack.Message) { m.Timestamp = time.Now().Add(-2 * time.Minute) })
		w.fires("RollbackdSlow")
	},
	"claims taken over": func(t *testing.T, prom *server, job string) {
		w := newWorld(t, prom, job).on(stack.AMQP(t))
		w.run()
		w.service.delay.Store(int64(300 * time.Millisecond))
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for tick := time.Tick(100 * time.Millisecond); ; {
				select {
				case <-stop:
					return
				case <-tick:
					w.exec("UPDATE consumer_log SET consumer_times = consumer_times + 1 WHERE consumer_status = 0")
				}
			}
		}()
		defer func() { close(stop); <-stopped }()
		w.steadily(nil)
		w.fires("RollbackdLeasesLost")
	},
	"restarted": func(t *testing.T, prom *server, job string) {
		w := newWorld(t, prom, job).on(stack.AMQP(t))
		p := w.run()
		for range 7 {
			before := w.processStart()
			if err := p.Kill(); err != nil {
				t.Fatal(err)
			}
			p = w.start()
			eventually(t, "the next process is scraped", 30*time.Second, func() bool { return w.processStart() != before })
		}
		w.fires("RollbackdRestarts")
	},
	"nothing may be deleted": func(t *testing.T, prom *server, job string) {
		w := newWorld(t, prom, job, "LOG_RETENTION", "24h").on(stack.AMQP(t))
		w.exec(`CREATE TRIGGER kept BEFORE DELETE ON consumer_log FOR EACH ROW SIGNAL SQLSTATE '45000'
			SET MESSAGE_TEXT = 'nothing is deleted here'`)
		w.rows(3, dedup.Success, "", 48*time.Hour)
		w.run()
		w.fires("RollbackdRetentionRests")
		if !prom.holds(t, fmt.Sprintf(`rollbackd_retention_runs_total{job=%q,result="failed"} > 0`, job)) {
			t.Error("no pass has failed")
		}
	},
}

// processStart is when the process began that was scraped last; empty: none is.
func (w *world) processStart() string {
	w.t.Helper()
	found, err := w.prom.query(w.t.Context(), fmt.Sprintf(`process_start_time_seconds{job=%q}`, w.job))
	if err != nil || len(found) == 0 {
		return ""
	}
	return fmt.Sprint(found[0].Value[1])
}
