package consumer_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// TestRabbitMQAway kills, freezes and restarts one server under an engine.
func TestRabbitMQAway(t *testing.T) {
	t.Parallel()
	server := stack.OwnRabbit(t)
	for _, tc := range []struct {
		name     string
		takeAway func()
		giveBack func()
	}{
		{"killed", func() { _ = server.Kill() }, func() { _ = server.Start() }},
		{"frozen", func() { _ = server.Freeze() }, func() { _ = server.Thaw() }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorldOn(t, servers{rabbit: server})
			w.cfg.BatchSize = 10
			w.amqpURL += "?heartbeat=1" // so that a frozen server is noticed after 1.5 s
			w.rejecting("bad", func() error { return errors.New("shelf is locked") })
			all := keys("order", 200)
			w.publish("{}", append(all, "bad")...)
			// given an engine with messages in hand, committed and not acked
			reached, release := w.blockAt(consumer.PointCommitted)
			r := w.start()
			await(t, reached, "a batch is committed")
			tc.takeAway()
			release()
			w.paused(r, "rabbitmq")
			if up := w.counts("rollbackd_dependency_up"); up["rabbitmq"] != 0 || up["mysql"] != 1 {
				t.Errorf("dependencies up: %v, want mysql and not rabbitmq", up)
			}
			tc.giveBack()
			w.ended(dedup.Success, all...)
			w.ended(dedup.Dead, "bad")
			w.recovered(r)
			w.quiet()
			w.want("effects", w.effects(), once(all...))
			if row := w.row("bad"); row.Attempts != 3 {
				t.Errorf("%d attempts, want 3", row.Attempts)
			}
			if n := w.dead(); n < 1 || n > 2 {
				t.Errorf("%d letters, want 1, or 2 when the first one's confirmation was lost", n)
			}
		})
	}
}

// Given an engine that has nothing to publish, when RabbitMQ raises an alarm, then State names it with what to do; and
// when that is over, no more.
func TestAnAlarmOfRabbitMQIsNamedWhileNothingIsPublished(t *testing.T) {
	t.Parallel()
	server := stack.OwnRabbit(t)
	for alarm, set := range map[string][2]string{
		"low on memory": {
			"rabbit_alarm:set_alarm({{resource_limit, memory, node()}, []})",
			"rabbit_alarm:clear_alarm({resource_limit, memory, node()})",
		},
		"low on disk": {
			"rabbit_alarm:set_alarm({{resource_limit, disk, node()}, []})",
			"rabbit_alarm:clear_alarm({resource_limit, disk, node()})",
		},
	} {
		t.Run(alarm, func(t *testing.T) {
			w := newWorldOn(t, servers{rabbit: server})
			r := w.start()
			w.publish("{}", "order")
			w.ended(dedup.Success, "order")
			names := func() bool {
				all := strings.Join(r.State().Degraded, "; ")
				return strings.Contains(all, alarm) && strings.Contains(all, "free memory or disk")
			}
			if names() {
				t.Fatalf("%s before it is", alarm)
			}
			if _, err := server.Eval(t.Context(), set[0]); err != nil {
				t.Fatal(err)
			}
			w.eventually(alarm+" is named", names)
			if _, err := server.Eval(t.Context(), set[1]); err != nil {
				t.Fatal(err)
			}
			w.eventually(alarm+" is named no more", func() bool { return !names() })
		})
	}
}

func TestAcksOfAClosedConnectionAckNothingElse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.broker.Eval("ok") // skips on a server that is not ours, before the engine is held up
	w.oneBatch(10)
	w.cfg.Prefetch = 20
	all := keys("order", 50)
	w.publish("{}", all...)
	// given ten messages committed, and the connection closed by force before their ack
	reached, release := w.blockAt(consumer.PointCommitted)
	r := w.start()
	await(t, reached, "a batch is committed")
	w.broker.CloseConnections()
	w.eventually("the broker has all messages back", func() bool { return w.broker.Depth(w.cfg.Queue) == 50 })
	// when it goes on
	release()
	// then every message is applied, and the ten come again as duplicates
	w.ended(dedup.Success, all...)
	w.recovered(r)
	w.want("effects", w.effects(), once(all...))
	w.end(map[string]int{"applied": 50, "duplicate": 10})
	w.quiet()
}

func TestAnAbandonedBatchLeavesNoLock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.broker.Eval("ok") // skips on a server that is not ours, before the engine is held up
	w.oneBatch(6)
	w.cfg.LockTTL = time.Minute
	w.cfg.RetryDelays = []time.Duration{100 * time.Millisecond, 5 * time.Second}
	w.rejecting("flaky", func() error {
		if w.timesLocked("flaky") < 1 {
			return errors.New("try again")
		}
		return nil
	})
	w.publish("{}", append(keys("order", 5), "flaky")...)
	// given a session that is lost while one message of the batch is still to be attempted
	reached, release := w.blockAt(consumer.PointAcked)
	w.start()
	await(t, reached, "the fast path is acked")
	w.broker.CloseConnections()
	w.eventually("the broker has the message back", func() bool { return w.broker.Depth(w.cfg.Queue) == 1 })
	release()
	w.ended(dedup.Success, "flaky")
	w.quiet()
	if n := w.outcomes()["in_progress"]; n != 0 {
		t.Errorf("%d deliveries met a lock that nobody holds any more", n)
	}
}

func TestAQueueThatIsGoneLosesNothing(t *testing.T) {
	t.Parallel()
	for name, giveBack := range map[string]time.Duration{"made again by the operator": time.Minute,
		"made again by the engine": 300 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.cfg.GiveBackAfter = giveBack
			w.rejecting("bad", func() error { return errors.New("shelf is locked") })
			w.rejecting("hopeless", func() error { return consumer.Permanent(errors.New("shipped")) })
			w.publish("{}", "warm up")
			r := w.start()
			w.ended(dedup.Success, "warm up")
			w.broker.Delete(rabbit.DeadQueue(w.cfg.Queue), rabbit.RetryQueue(w.cfg.Queue, w.cfg.RetryDelays[0]))
			w.publishInto(w.cfg.Queue, "bad", "hopeless", "good") // without declaring them again
			if giveBack == time.Minute {
				w.eventually("both are held, and nothing else", func() bool { return w.held() == 2 })
				w.ended(dedup.Success, "good")
				if n := w.outcomes(); n["dead_lettered"]+n["retried"] != 0 {
					t.Errorf("outcomes %v while the queues are gone", n)
				}
				w.declare()
			}
			w.ended(dedup.Dead, "bad", "hopeless")
			w.ended(dedup.Success, "good")
			w.recovered(r)
			w.quiet()
			if n := w.dead(); n != 2 {
				t.Errorf("%d letters, want 2", n)
			}
			w.want("effects", w.effects(), once("warm up", "good"))
			if row := w.row("bad"); row.Attempts != 3 {
				t.Errorf("%d attempts, want 3", row.Attempts)
			}
		})
	}
}

func TestAShortRetryDoesNotWaitBehindALongOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.RetryDelays = []time.Duration{200 * time.Millisecond, time.Hour}
	fails := errors.New("try again")
	w.rejecting("long", func() error { return fails })
	w.publish("{}", "long")
	w.start()
	w.eventually("the long one waits its hour", func() bool {
		return w.row("long").Attempts == 2 && w.outcomes()["retried"] == 2
	})
	w.rejecting("short", func() error {
		if w.timesLocked("short") < 1 {
			return fails
		}
		return nil
	})
	began := time.Now()
	w.publish("{}", "short")
	w.ended(dedup.Success, "short")
	if took := time.Since(began); took < 180*time.Millisecond || took > 1700*time.Millisecond {
		t.Errorf("it came back after %v, want its delay of 200ms and no more than 1.5 s", took)
	}
}
