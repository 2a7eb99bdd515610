package consumer_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/lock"
)

// TestRedisAway takes one server away in every way, under both policies, while messages come five times each.
func TestRedisAway(t *testing.T) {
	t.Parallel()
	server := stack.OwnRedis(t)
	for _, tc := range []struct {
		name     string
		takeAway func()
		giveBack func()
		absent   bool // from the start
	}{
		{"killed", func() { _ = server.Kill() }, func() { _ = server.Start() }, false},
		{"frozen", func() { _ = server.Freeze() }, func() { _ = server.Thaw() }, false},
		{"absent at the start", func() { _ = server.Kill() }, func() { _ = server.Start() }, true},
	} {
		for _, policy := range []lock.Policy{lock.Proceed, lock.Pause} {
			t.Run(tc.name+", policy "+string(policy), func(t *testing.T) {
				w := newWorldOn(t, servers{redis: server})
				w.cfg.LockOnError, w.cfg.BatchSize, w.cfg.GiveBackAfter = policy, 10, 500*time.Millisecond
				w.rejecting("bad", func() error { return errors.New("shelf is locked") })
				before, after := keys("before", 50), keys("after", 50)
				var r *running
				if tc.absent {
					tc.takeAway()
				}
				r = w.start()
				if !tc.absent {
					w.publish("{}", before...)
					w.ended(dedup.Success, before...)
					tc.takeAway()
				}
				for range 5 {
					w.publish("{}", after...)
					w.publish("{}", "bad")
				}
				if policy == lock.Pause {
					w.paused(r, "redis")
				} else {
					w.eventually("degraded because of redis", func() bool { return degraded(r, "redis") })
				}
				if s := r.State(); len(s.Paused)+len(s.Degraded) != 1 {
					t.Errorf("paused because of %q, degraded because of %q, want redis alone", s.Paused, s.Degraded)
				}
				if policy == lock.Proceed { // everything holds without it
					w.ended(dedup.Success, after...)
				} else {
					w.eventually("the deliveries are given back", func() bool {
						return w.outcomes()["abandoned"] > 0 && !r.State().Consuming
					})
					before := w.outcomes()["abandoned"]
					<-time.After(3 * w.cfg.GiveBackAfter)
					if n := w.outcomes()["abandoned"]; n != before {
						t.Errorf("%d more deliveries were taken and given back while redis was away", n-before)
					}
					if rows := w.number("SELECT COUNT(*) FROM consumer_log WHERE msg_key LIKE 'after%'"); rows != 0 {
						t.Errorf("%d messages were worked on without the lock", rows)
					}
				}
				if up := w.counts("rollbackd_dependency_up"); up["redis"] != 0 {
					t.Errorf("dependencies up: %v, want no redis", up)
				}
				tc.giveBack()
				w.ended(dedup.Success, after...)
				w.ended(dedup.Dead, "bad")
				w.recovered(r)
				// with proceed nobody waits for it
				w.eventually("nothing is degraded", func() bool { return len(r.State().Degraded) == 0 })
				w.quiet()
				if up := w.counts("rollbackd_dependency_up"); up["redis"] != 1 {
					t.Errorf("dependencies up: %v, want redis", up)
				}
				all := once(after...)
				if !tc.absent {
					all = once(append(before, after...)...)
				}
				w.want("effects", w.effects(), all)
				if row := w.row("bad"); row.Attempts != 3 {
					t.Errorf("%d attempts, want 3", row.Attempts)
				}
			})
		}
	}
	t.Run("flushed under load", func(t *testing.T) {
		w := newWorldOn(t, servers{redis: server})
		w.cfg.BatchSize, w.cfg.BatchLinger = 5, 0
		client, err := lock.OpenRedis(w.redisURL, lock.RedisOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		all := keys("order", 200)
		w.start()
		w.start()
		for range 5 {
			w.publish("{}", all...)
			if err := client.FlushAll(context.Background()).Err(); err != nil {
				t.Fatal(err)
			}
			if err := client.ScriptFlush(context.Background()).Err(); err != nil {
				t.Fatal(err)
			}
		}
		w.ended(dedup.Success, all...)
		w.quiet()
		w.want("effects", w.effects(), once(all...))
		if got := w.outcomes(); got["applied"] != 200 {
			t.Errorf("outcomes %v, want 200 applied", got)
		}
	})
}
