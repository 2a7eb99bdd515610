package daemon_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/shop"
)

// member is a daemon of a fleet, with its own log.
type member struct {
	*program.Process
	log *program.Log
}

func (w *world) join() member {
	w.t.Helper()
	log := &program.Log{}
	return member{w.startProcess(program.Options{
		Path: program.Shared(w.t), Args: []string{"run"}, Env: w.environ(), Log: io.MultiWriter(log, w.logs),
	}), log}
}

func (m member) elections() int { return strings.Count(m.log.String(), `"msg":"elected"`) }

// leader is the connection of the elected daemon, 0 if there is none.
func (w *world) leader() int64 {
	w.t.Helper()
	return require.Get(w.store(dedup.OpenOptions{}).Records.Leader(w.t.Context(), w.config().Group))(w.t)
}

// row puts a row into the log whose last transition was so long ago.
func (w *world) row(key string, status dedup.Status, age time.Duration) {
	w.t.Helper()
	w.exec(
		`INSERT INTO consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times, reason,
			consumer_timestamp, created_at, dead_at)
		VALUES ('stock-rollback', 't', ?, ?, 1, 'permanent', UTC_TIMESTAMP(6) - INTERVAL ? SECOND, UTC_TIMESTAMP(6),
			UTC_TIMESTAMP(6))`,
		[]byte(key), int(status), int(age.Seconds()))
}

// Given a fleet of two, then one of them is elected and deletes what has outlived its retention; and when its session
// is killed, or its process, the other one takes over and does it.
func TestOneDaemonOfTheFleetKeepsTheLogAndAnotherTakesOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "LOG_RETENTION", "24h")
	const day = 24 * time.Hour
	w.row("young", dedup.Success, day-time.Hour)
	w.row("dead", dedup.Dead, day-time.Hour)
	first := w.join()
	w.eventually("the first is elected", func() bool { return first.elections() == 1 })
	second := w.join()
	w.ready(second.Process)
	works := func(who string) {
		t.Helper()
		w.row("old, while it is the "+who, dedup.Success, day+time.Hour)
		w.eventually("the "+who+" deletes what is old", func() bool { return w.rows(dedup.Success) == 1 })
	}
	works("first")
	assert.Is(t, second.elections(), 0, "the second was elected times beside the first")
	shows := func(m member, want program.Metrics) { // a pass is counted when it has ended, after its commit
		t.Helper()
		w.eventually(fmt.Sprintf("its metrics are %v", want), func() bool {
			got := require.Get(m.Metrics(t.Context()))(t)
			for sample, v := range want {
				if got[sample] != v {
					return false
				}
			}
			return true
		})
	}
	shows(first, program.Metrics{"rollbackd_leader": 1, "rollbackd_retention_deleted_rows_total": 1})
	shows(second, program.Metrics{"rollbackd_leader": 0, "rollbackd_retention_deleted_rows_total": 0})
	const late = "rollbackd_retention_late_seconds"
	w.eventually("it says how late the row went, until the pass is over", func() bool {
		got := require.Get(first.Metrics(t.Context()))(t)
		return got[late] > 0 && got[late] < 60
	})

	// when the session is killed that was elected
	w.exec("KILL ?", w.leader())
	w.eventually("the second is elected", func() bool { return second.elections() == 1 })
	works("second")
	w.eventually("the first says that it is not elected any more", func() bool {
		return strings.Contains(first.log.String(), "no longer elected")
	})
	shows(first, program.Metrics{"rollbackd_leader": 0, `rollbackd_retention_runs_total{result="done"}`: 1, late: 0})
	shows(second, program.Metrics{"rollbackd_leader": 1})

	// when the process is killed that is elected
	w.kill(second.Process)
	w.eventually("the first is elected again", func() bool { return first.elections() == 2 })
	works("first")
	w.stop(first.Process)
	is(w, "dead rows are left", w.rows(dedup.Dead), 1)
	assert.Is(t, w.leader(), 0, "connection holds the lock although nobody runs")
}

// Given a letter that is older than the log remembers successes, then every daemon says so at its start, once; and the
// elected one says what waits longest.
func TestAStartWarnsOfARetentionShorterThanTheOldestLetter(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "LOG_RETENTION", "24h")
	const warning, oldest = "ROLLBACKD_LOG_RETENTION is shorter", "what waits longest"
	quiet := w.join()
	w.ready(quiet.Process)
	w.eventually("elected", func() bool { return quiet.elections() == 1 })
	w.row("letter", dedup.Dead, 25*time.Hour)
	warned := w.join()
	w.eventually("the warning", func() bool { return strings.Contains(warned.log.String(), warning) })
	w.stop(quiet.Process)
	w.eventually("what waits longest", func() bool {
		return strings.Contains(warned.log.String(), oldest)
	})
	w.stop(warned.Process)
	if s := quiet.log.String(); strings.Contains(s, warning) || strings.Contains(s, oldest) {
		t.Errorf("there was nothing to say, but it says\n%s", s)
	}
	is(w, "warnings", strings.Count(warned.log.String(), warning), 1)
	for _, s := range []string{`"key":"letter"`, `"reason":"permanent"`, `"age":"25h`} {
		assert.Has(t, warned.log.String(), s, "the log does not say")
	}
}

// mailbox is a webhook's receiver.
type mailbox struct {
	mu      sync.Mutex
	letters []deadletter.Letter
	bad     []error
}

func (m *mailbox) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = deadletter.VerifySignature("between us", r.Header.Get(deadletter.SignatureHeader), body, time.Now(),
			time.Minute)
	}
	var told struct{ Letters []deadletter.Letter }
	if err == nil {
		err = json.Unmarshal(body, &told)
	}
	if err != nil {
		m.bad = append(m.bad, err)
	}
	m.letters = append(m.letters, told.Letters...)
}

func (m *mailbox) got() []deadletter.Letter {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]deadletter.Letter(nil), m.letters...)
}

// Given rollbacks that fail because their reservations are not there yet, when these come, then the letters come back
// by themselves, and people were told of them.
func TestLettersComeBackByThemselvesAndPeopleAreTold(t *testing.T) {
	t.Parallel()
	box := new(mailbox)
	server := httptest.NewServer(box)
	t.Cleanup(server.Close)
	w := newWorld(t, "MAX_ATTEMPTS", "1", "RETRY_DELAYS", "100ms", "HANDLER_TIMEOUT", "2s", "LEASE", "4s",
		"COMPENSATE_AFTER", "15s",
		"DEAD_LETTER_WEBHOOK", server.URL, "DEAD_LETTER_WEBHOOK_SECRET", "between us")
	const n = 20
	orders := shop.Orders(w.rng, "order", n, skus)
	require.OK(t, shop.Stock(t.Context(), w.db, skus, 1000))
	daemon := w.join()
	w.ready(daemon.Process)
	w.eventually("the bookmark", func() bool {
		return w.count("SELECT COUNT(*) FROM rollbackd_meta WHERE name LIKE 'told:%'") == 1
	})
	w.publish(w.route.Rollbacks(orders)...)
	w.eventually("all are dead", func() bool { return w.rows(dedup.Dead) == n })
	// when the reservations come
	require.OK(t, shop.SeedReserved(t.Context(), w.db, orders))
	w.remember()
	w.eventually("people are told", func() bool { return len(box.got()) >= n })
	w.eventually("all come back and have their effect", func() bool { return w.rows(dedup.Success) == n })
	atLeast := program.Metrics{
		`rollbackd_compensation_runs_total{result="done"}`:          1,
		`rollbackd_compensation_letters_total{result="replayed"}`:   n,
		`rollbackd_notifications_total{result="done"}`:              1,
		`rollbackd_notified_letters_total`:                          n,
		`rollbackd_handler_duration_seconds_count{result="failed"}`: 1,
		`rollbackd_handler_duration_seconds_count{result="done"}`:   1,
		`rollbackd_connections_opened_total{name="rabbitmq"}`:       4, // main queue, backstop, copies, depths
		`rollbackd_connections_opened_total{name="mysql"}`:          2,
		`rollbackd_connections_opened_total{name="redis"}`:          1,
	}
	for sample, least := range atLeast {
		w.eventually(fmt.Sprintf("%s is at least %v", sample, least), func() bool { // counted at its end
			metrics, err := daemon.Metrics(t.Context())
			return err == nil && metrics[sample] >= least
		})
	}
	w.stop(daemon.Process)
	for _, letter := range box.got() {
		if letter.Reason != "exhausted" || letter.Replays != 0 || letter.Tag != "stock.rollback" {
			t.Errorf("told of %+v", letter)
		}
	}
	assert.AtMost(t, len(box.bad), 0, "requests that could not be read: %v", box.bad)
	if strings.Contains(w.logs.String(), "nothing acts on it") || strings.Contains(w.logs.String(), "between us") {
		t.Error("the log says that a setting is not used, or a secret")
	}
	w.judge(oracle.Allowance{})
}

// Given a webhook that never answers and a queue that is gone, when the daemon is stopped, then it stops at once.
func TestAKeeperInTroubleDoesNotHoldADrainUp(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 100)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		asked <- struct{}{}
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	w := newWorld(t, "HANDLER_TIMEOUT", "2s", "LEASE", "4s", "DEAD_LETTER_WEBHOOK", server.URL, "LOG_RETENTION", "24h")
	orders := w.open(10)
	daemon := w.join()
	w.eventually("the bookmark", func() bool {
		return w.count("SELECT COUNT(*) FROM rollbackd_meta WHERE name LIKE 'told:%'") == 1
	})
	w.publish(w.route.Rollbacks(orders)...)
	w.ended(10)
	w.publish(oracle.Sent{Publishing: w.route.Message("no json", []byte("{")), Fate: oracle.ToDie(dedup.ReasonMalformed)})
	select {
	case <-asked:
	case <-time.After(time.Minute):
		t.Fatal("the webhook was never called")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second) // the webhook would wait for ten seconds
	defer cancel()
	if code, err := daemon.Stop(ctx); err != nil || code != 0 {
		t.Errorf("the daemon ended with %d (%v), want 0 at once", code, err)
	}
	w.judge(oracle.Allowance{})
}
