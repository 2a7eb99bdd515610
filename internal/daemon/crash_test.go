package daemon_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/daemon"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/shop"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/stock"
)

// childEnv, set to a key, makes this test binary a daemon that dies whenever its handler gets a message with that key.
const childEnv = "ROLLBACKD_TEST_POISON"

// crashCode is the exit code of such a death.
const crashCode = 66

// poisonedHandler rolls back like the daemon's own, but the message with the key poison kills the process.
type poisonedHandler struct{ poison string }

// Handle is a [consumer.Handler]'s.
func (h poisonedHandler) Handle(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
	requests := make([]stock.Request, len(msgs))
	for i, m := range msgs {
		if m.Key == h.poison {
			os.Exit(crashCode)
		}
		var body struct {
			OrderSN string `json:"order_sn"`
		}
		if err := json.Unmarshal(m.Body, &body); err != nil {
			return fmt.Errorf("the test sent what it cannot read: %w", err)
		}
		requests[i] = stock.Request{OrderSN: body.OrderSN, Tag: m.Tag, Key: m.Key}
	}
	return stock.Rollback(ctx, tx, requests, stock.Options{})
}

// runChild is main of the child process.
func runChild(o daemon.Options) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	cfg, _, err := config.Load(os.Environ())
	if err != nil {
		log.Error("configuration", "err", err)
		return 2
	}
	d, err := daemon.New(ctx, cfg, log, o)
	if err == nil {
		err = d.Run(ctx)
	}
	if err != nil {
		log.Error("run", "err", err)
		return 1
	}
	return 0
}

// Given a message that kills whatever process handles it, among more innocents than prefetch holds, when a supervisor
// starts the daemon again each time, then after at most MAX_ATTEMPTS + 2 crashes the message is a dead letter with
// reason crashed, and every innocent is applied.
func TestPoisonThatKillsTheProcessDiesAlone(t *testing.T) {
	const attempts, lanes, prefetch = 3, 2, 200
	w := newWorld(t, "MAX_ATTEMPTS", fmt.Sprint(attempts), "RETRY_DELAYS", "200ms,400ms", "LANES", fmt.Sprint(lanes),
		"BATCH_SIZE", "100", "PREFETCH", fmt.Sprint(prefetch), "HANDLER_TIMEOUT", "2s", "LEASE", "4s", "LOCK_TTL", "1s")
	orders := w.open(3 * lanes * prefetch)
	poison := orders[lanes*prefetch/2]
	sent := w.route.Rollbacks(orders)
	sent[lanes*prefetch/2].Fate = oracle.ToDie(dedup.ReasonCrashed)
	w.publish(sent...)

	daemon := w.child(childEnv + "=" + poison.Key())
	crashes := 0
	w.eventually("all messages ended", func() bool {
		select {
		case <-daemon.Exited():
			code, _ := daemon.Wait(context.Background())
			require.That(t, code == crashCode, "the daemon exited with %d, want %d, the code of the poison", code, crashCode)
			crashes++
			t.Logf("crash %d: %d of %d applied", crashes, w.rows(dedup.Success), len(orders))
			daemon = w.child(childEnv + "=" + poison.Key())
		default:
		}
		return w.rows(dedup.Success)+w.rows(dedup.Dead) == len(orders)
	})
	w.ended(len(orders))
	w.stop(daemon)
	assert.That(t, crashes >= attempts && crashes <= attempts+2, "%d crashes, not %d to %d", crashes, attempts, attempts+2)
	// The first claim of the poison shares its process with one claim of each other lane: these may lose an attempt, once.
	report := w.judged(len(orders)-1, 1, oracle.Allowance{Attempts: 2})
	assert.AtMost(t, report.AttemptsSpent, lanes-1, "the crashes cost innocents attempts, at most were to be expected")
}

// Given a daemon that stands still inside a transaction, or of which nothing arrives any more, when another one needs
// its rows, then that one goes on with all that the first had not in hand within HANDLER_TIMEOUT + 10 s, and all is
// applied within 90 s; and when the first goes on, it finds its session ended: nothing is applied twice, and no message
// has lost an attempt.
//
// An ordinary run tries one of the ways, with times and numbers made smaller in proportion; make test-big tries all of
// them one by one, with the defaults.
func TestADaemonThatVanishesInsideATransactionHoldsNobodyUpForLong(t *testing.T) {
	t.Parallel()
	const patience = 90 * time.Second
	smaller := []string{"HANDLER_TIMEOUT", "4s", "LEASE", "12s", "LOCK_TTL", "4s", "BATCH_SIZE", "250"}
	big := os.Getenv(bigEnv) != ""
	for _, name := range []string{"sql", "stock"} {
		for _, vanish := range vanishings {
			t.Run(name+", "+vanish.name, func(t *testing.T) {
				messages := sized(5_000, 40_000) // more than the one that vanishes may hold
				w := aloneWorld(t, onStock(t)[name]...)
				if !big {
					w.set(smaller...)
				}
				w.publish(w.route.Rollbacks(w.open(messages))...)
				a, back := w.vanished(vanish.start(w))
				began := time.Now()
				b := w.start()
				before := w.rows(dedup.Success)
				w.within(patience, "the other one is past the locks",
					func() bool { return w.rows(dedup.Success) > before+messages/20 })
				took := time.Since(began).Round(time.Millisecond)
				t.Logf("the other one goes on after %v, with %d messages applied before", took, before)
				assert.AtMost(t, took, w.config().HandlerTimeout+10*time.Second, "the other one goes on after")
				w.within(patience-time.Since(began), "all is applied", func() bool { return w.rows(dedup.Success) == messages })
				t.Logf("all is applied after %v", time.Since(began).Round(time.Millisecond))
				back()
				w.ended(messages)
				w.stop(b, a)
				is(w, "attempts were lost", w.judged(messages, 0, oracle.Allowance{}).AttemptsSpent, 0)
			})
			if !big {
				return
			}
		}
	}
}

// victim is a daemon with an account of its own in MySQL, which can be made to vanish, again and again.
type victim struct {
	process      *program.Process
	user         string
	vanish, back func()
}

var vanishings = []struct {
	name  string
	start func(*world) victim
}{
	{"SIGSTOP", func(w *world) victim {
		v := w.startVictim(nil)
		v.vanish = func() { w.signal(v.process, syscall.SIGSTOP) }
		v.back = func() { w.signal(v.process, syscall.SIGCONT) }
		return v
	}},
	{"link that drops everything", func(w *world) victim {
		proxy := stack.Proxy(w.t, stack.Addr(w.t, w.env["MYSQL_DSN"]))
		v := w.startVictim(nil, "MYSQL_DSN", proxy.Through(w.env["MYSQL_DSN"]))
		v.vanish, v.back = func() { proxy.Hold(true) }, func() { proxy.Hold(false) }
		return v
	}},
	{"network taken down", func(w *world) victim {
		apart := stack.NewApart(w.t)
		var through []string
		for _, server := range []string{"AMQP_URL", "MYSQL_DSN", "REDIS_URL"} {
			through = append(through, server, apart.Through(w.env[server], stack.Addr(w.t, w.env[server])))
		}
		v := w.startVictim(apart, through...)
		v.vanish, v.back = func() { apart.Cut(true) }, func() { apart.Cut(false) }
		return v
	}},
}

// startVictim starts a daemon with an account of its own and some other settings, apart or not.
func (w *world) startVictim(apart *stack.Apart, pairs ...string) victim {
	w.t.Helper()
	ours := maps.Clone(w.env)
	defer func() { w.env = ours }()
	w.env = maps.Clone(ours)
	w.set(pairs...)
	account := require.Get(mysql.ParseDSN(stack.Restricted(w.t, ours["MYSQL_DSN"], "ALL PRIVILEGES ON *")))(w.t)
	account.Addr = stack.Addr(w.t, w.env["MYSQL_DSN"])
	w.set("MYSQL_DSN", account.FormatDSN())
	path, args := program.Shared(w.t), []string{"run"}
	if apart != nil {
		path, args = apart.Command(path, args...)
	}
	process := w.startProcess(program.Options{Path: path, Args: args, Env: w.environ(), Log: w.logs})
	return victim{process: process, user: account.User}
}

// vanished makes the victim vanish inside a transaction that has what others need: a row is locked until one of its
// statements waits for it.
func (w *world) vanished(v victim) (p *program.Process, back func()) {
	is := func(what string) bool {
		w.count("SELECT SLEEP(0.2)") // MariaDB's picture of the transactions, a tenth of a second old, is made anew
		return w.count("SELECT COUNT(*) FROM "+stack.Transactions+" JOIN "+stack.Processes+" p ON p.id = conn "+
			"WHERE p.user = ? AND "+what, v.user) > 0
	}
	w.eventually("the daemon has vanished inside a transaction", func() bool {
		lock := require.Get(w.db.BeginTx(context.WithoutCancel(w.t.Context()), nil))(w.t)
		defer lock.Rollback() // it changes nothing
		for _, text := range []string{
			"SET SESSION wait_timeout = 600", "UPDATE stock SET version = version WHERE sku_id = 1",
		} {
			if _, err := lock.Exec(text); err != nil {
				return false // it has to wait for the daemon itself
			}
		}
		w.eventually("the daemon waits", func() bool { return is("waits") })
		v.vanish()
		require.OK(w.t, lock.Rollback())
		if poll.Within(4*time.Second, func() bool { return is("p.command = 'Sleep' AND p.time > 0") }) {
			return true
		}
		v.back()
		return false
	})
	return v.process, v.back
}

// Given MySQL's clock jumps 40 days ahead, over the retention, and comes back: then no row is deleted that is seconds
// old, so what is sent again is a duplicate; what failed meanwhile, and what died, goes on when it would have anyhow;
// and /readyz says that the clocks differ for as long as they do.
func TestTheClockOfMySQLJumpsAndComesBack(t *testing.T) {
	if os.Getenv("ROLLBACKD_TEST_CLOCK") == "" {
		t.Skip("make test ONLY=clock runs this: a server asks for the time so often that a false clock costs a processor")
	}
	const jump = 40 * 24 * time.Hour
	server := stack.Own(t, stack.Options{Only: []stack.Kind{stack.KindMySQL}, MySQLClock: true})
	setClock := func(offset time.Duration) { t.Helper(); require.OK(t, server.SetClock(offset)) }
	w := newWorld(t, "MYSQL_DSN", server.Database(t), "LANES", "1", "MAX_ATTEMPTS", "3", "RETRY_DELAYS", "1s,3s",
		"COMPENSATE_AFTER", "2s", "MAX_DEAD_RATE", "100/60s", "OUTBOX", "on")
	w.exec("INSERT INTO rollbackd_outbox (msg_tag, msg_key, body, next_at, parked_at) " +
		"VALUES ('t', 'k', '', '9999-12-31', UTC_TIMESTAMP(6))")
	orders := w.open(10)
	late := shop.Orders(w.rng, "late", 2, skus) // whose reservations come later
	w.remember()
	applied := w.route.Rollbacks(orders)
	w.publish(applied...)
	first := w.start()
	w.eventually("the first are applied", func() bool { return w.rows(dedup.Success) == len(orders) })
	w.stop(first)

	setClock(jump)
	daemon := w.start() // which looks for old rows within ten seconds
	clocks := func() bool {
		_, r := w.readyz(daemon)
		return strings.Contains(strings.Join(r.Degraded, "; "), "clocks do not agree")
	}
	w.eventually("/readyz says that the clocks differ", clocks)
	w.eventually("retention says that it does nothing", func() bool {
		said := w.logs.Tail(1000)
		return strings.Contains(said, "old rows of the consumer log could not be deleted") &&
			strings.Contains(said, "old messages of the outbox could not be deleted")
	})
	w.publish(w.route.Rollback(late[0]))
	w.eventually("it has died in the future", func() bool { return w.rows(dedup.Dead) == 1 })
	w.publish(w.route.Rollback(late[1]))
	w.eventually("it has failed in the future", func() bool { return w.rows(dedup.Failed) == 1 })
	setClock(0)
	const ahead = "SELECT COUNT(*) FROM consumer_log WHERE consumer_timestamp > UTC_TIMESTAMP(6) + INTERVAL 30 DAY"
	require.Is(t, w.count(ahead), 2, "rows are ahead of the clock")
	assert.Is(t, w.rows(dedup.Success), len(orders), "rows in success are left")
	is(w, "parked messages of the outbox", w.waiting(), 1)
	require.OK(t, shop.SeedReserved(t.Context(), w.db, late))
	w.publish(applied...) // a re-send
	w.eventually("all are applied", func() bool { return w.rows(dedup.Success) == len(orders)+len(late) })
	w.eventually("/readyz says no more that the clocks differ", func() bool { return !clocks() })
	w.ended(len(orders) + len(late))
	w.stop(daemon)
	w.judge(oracle.Allowance{Attempts: 3}) // those that had no reservation yet
}
