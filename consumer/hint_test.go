package consumer_test

import (
	"context"
	"crypto/sha256"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/lock"
)

// locks is a lock with the names of a schema.
type locks struct {
	*lock.Redis
	schemaID string
}

// redisOf is the world's Redis, and a lock with the schema's names there.
func (w *world) redisOf() (redis.UniversalClient, locks) {
	w.t.Helper()
	client := require.Get(lock.OpenRedis(w.redisURL, lock.RedisOptions{}))(w.t)
	w.t.Cleanup(func() { _ = client.Close() })
	id := require.Get(w.records.SchemaID(w.t.Context()))(w.t)
	locker := require.Get(lock.NewRedis(client, lock.Options{DoneTTL: w.cfg.DoneTTL}))(w.t)
	return client, locks{locker, id}
}

func (l locks) names(keys ...string) []lock.Name {
	names := make([]lock.Name, len(keys))
	for i, k := range keys {
		names[i] = lock.NameOf(l.schemaID, group, tag, k)
	}
	return names
}

// marked waits until the done markers of all keys stand in Redis, with this body's hash.
func (w *world) marked(l locks, body string, keys ...string) {
	w.t.Helper()
	hash := sha256.Sum256([]byte(body))
	for i, name := range l.names(keys...) {
		w.eventually(keys[i]+" is marked done", func() bool {
			s, err := l.Show(w.t.Context(), name)
			return err == nil && s.Hold == lock.DoneMarker && string(s.Hash) == string(hash[:]) && s.TTL > 0
		})
	}
}

// Given done markers of messages whose rows MySQL does not have, as after a restore, in a clone, or by forgery, when
// these messages come, then each is applied: a marker may save work, but only a row ends a message.
func TestAMarkerWithoutARowSwallowsNothing(t *testing.T) {
	w := newWorld(t)
	_, locker := w.redisOf()
	all := keys("order", 30)
	var marks []lock.Mark
	for i, k := range locker.names(all...) {
		marks = append(marks, lock.Mark{Name: k, BodyHash: sha256.Sum256([]byte([]string{"{}", "another body"}[i%2]))})
	}
	require.OK(t, locker.Done(t.Context(), marks))
	w.startWith(all...)
	w.quiet()
	w.applied(all...)
	w.want("outcomes", w.outcomes(), map[string]int{"applied": 30})
	w.marked(locker, "{}", all...)
}

// Given rows in success, when copies come whose done marker is right, wrong or gone, then the row alone says which are
// duplicates and which are conflicts, and the markers are right again.
func TestAMarkerDecidesNoConflict(t *testing.T) {
	w := newWorld(t)
	client, locker := w.redisOf()
	all := keys("order", 6)
	names := locker.names(all...)
	w.start()
	w.publish("{}", all...)
	w.ended(dedup.Success, all...)
	w.marked(locker, "{}", all...)
	w.quiet()

	lie := sha256.Sum256([]byte("other"))
	lies := []lock.Mark{{Name: names[0], BodyHash: lie}, {Name: names[1], BodyHash: lie}}
	require.OK(t, locker.Done(t.Context(), lies))
	require.OK(t, client.Del(t.Context(), names[2].String(), names[3].String()).Err())
	require.OK(t, client.PExpire(t.Context(), names[4].String(), w.cfg.DoneTTL/2).Err())
	w.publish("{}", all[0], all[2], all[4])
	w.publish("other", all[1], all[3], all[5]) // the marker of the first of them agrees with it
	w.end(map[string]int{"applied": 6, "duplicate": 3, "dead_lettered": 3})
	w.want("letters", w.counts("rollbackd_dead_lettered_total"), map[string]int{"conflict": 3})
	w.want("effects", w.effects(), once(all...))
	w.marked(locker, "{}", all[0], all[2], all[4], all[5])
	if s, err := locker.Show(t.Context(), names[4]); err != nil || s.TTL > w.cfg.DoneTTL/2 {
		t.Errorf("a marker that was right stands for %v (%v): it was written again for nothing", s.TTL, err)
	}
}

// Given a Redis that holds wrong values of every kind under every key, when messages come, then all have their one
// effect within two lifetimes of a lock, the failing one its attempts, and what stands in Redis is right again.
func TestARedisFullOfWrongValuesOnlyDelays(t *testing.T) {
	t.Parallel()
	const (
		lockTTL = 5 * time.Second
		right   = "done:right hash" // stands for it below
		long    = time.Hour
	)
	str := func(value string, ttl time.Duration) func(context.Context, redis.UniversalClient, string) error {
		return func(ctx context.Context, c redis.UniversalClient, key string) error {
			if value == right {
				hash := sha256.Sum256([]byte("{}"))
				value = "done:" + string(hash[:])
			}
			return c.Set(ctx, key, value, ttl).Err()
		}
	}
	hash := strings.Repeat("h", sha256.Size)
	kinds := map[string]func(context.Context, redis.UniversalClient, string) error{
		"lock":                 str("lock:host/1/x/0/7", lockTTL),
		"lock-for-ever":        str("lock:host/1/x/0/7", 0),
		"lock-of-an-hour":      str("lock:host/1/x/0/7", long),
		"lock-of-nobody":       str("lock:", 0),
		"marker":               str(right, long),
		"marker-for-ever":      str(right, 0),
		"marker-of-another":    str("done:"+hash, long),
		"marker-short":         str("done:"+hash[1:], 0),
		"marker-long":          str("done:"+hash+"h", 0),
		"marker-of-upper-case": str("DONE:"+hash, 0),
		"empty":                str("", 0),
		"number":               str("1", long),
		"large":                str(strings.Repeat("x", 1<<20), 0),
		"bit": func(ctx context.Context, c redis.UniversalClient, k string) error {
			return c.SetBit(ctx, k, 7, 1).Err()
		},
		"list": func(ctx context.Context, c redis.UniversalClient, k string) error { return c.LPush(ctx, k, "x").Err() },
		"set":  func(ctx context.Context, c redis.UniversalClient, k string) error { return c.SAdd(ctx, k, "x").Err() },
		"sorted-set": func(ctx context.Context, c redis.UniversalClient, k string) error {
			return c.ZAdd(ctx, k, redis.Z{Score: 1, Member: "x"}).Err()
		},
		"hash": func(ctx context.Context, c redis.UniversalClient, k string) error {
			return c.HSet(ctx, k, "x", "y").Err()
		},
		"stream": func(ctx context.Context, c redis.UniversalClient, k string) error {
			return c.XAdd(ctx, &redis.XAddArgs{Stream: k, Values: []string{"x", "y"}}).Err()
		},
	}
	for _, policy := range []lock.Policy{lock.Proceed, lock.Pause} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			w := newWorldOn(t, servers{redis: stack.OwnRedis(t)})
			w.cfg.LockTTL, w.cfg.LockOnError = lockTTL, policy
			client, locker := w.redisOf()
			var all []string
			for kind, fill := range kinds {
				some := keys(kind, 3)
				for _, k := range locker.names(some...) {
					if err := fill(t.Context(), client, k.String()); err != nil {
						t.Fatalf("fill with a %s: %v", kind, err)
					}
				}
				all = append(all, some...)
				w.flaky(some[2]) // so that each kind is also met by a claim
			}
			require.OK(t, client.LPush(t.Context(), "rollbackd:probe", "x").Err())
			w.declare()
			r := w.start()
			w.start()
			w.recovered(r)
			w.publish("{}", all...)
			w.ended(dedup.Success, all...) // nobody waits for what is there for an hour
			w.quiet()
			w.want("effects", w.effects(), once(all...))
			w.marked(locker, "{}", all...)
			for kind := range kinds {
				w.wantRow(keys(kind, 3)[2], wanted{Attempts: 2})
			}
			is(w, "rollbackd_dependency_up", w.counts("rollbackd_dependency_up")["redis"], 2)
			is(w, "letters", w.broker.Depth(w.deadQueue()), 0)
		})
	}
}

// Given messages that look new and never had a row, so that they are not looked up any more, when marked copies come
// among them, then only these are looked up, and what they find sends no new message to the look-up again.
func TestMarkedCopiesSendNoNewMessageToTheLookUp(t *testing.T) {
	w := newWorld(t)
	_, locker := w.redisOf()
	w.oneBatch(1000)
	w.cfg.Prefetch = 1000
	w.declare()
	w.start()
	done := 0
	publish := func(keys ...string) (looks int) {
		t.Helper()
		w.publish("{}", keys...)
		done += len(keys)
		w.settled(done)
		return w.counts("rollbackd_batch_duration_seconds")["look_up"]
	}
	first := keys("first", 10)
	known := publish(append(keys("known", 1000), first...)...)
	if known == 0 {
		t.Fatal("nothing was ever looked up: the metric has another name")
	}
	if now := publish(keys("new", 10)...); now != known {
		t.Fatalf("new messages were looked up in %d batches although none of their kind had a row", now-known)
	}
	w.marked(locker, "{}", first...)
	among := publish(append(keys("newer", 10), first...)...)
	if among == known {
		t.Error("marked copies were not looked up")
	}
	if now := publish(keys("newest", 10)...); now != among {
		t.Errorf("new messages are looked up again, in %d batches, after marked copies were", now-among)
	}
	if got := w.outcomes(); got["duplicate"] != 10 {
		t.Errorf("outcomes %v, want 10 duplicates", got)
	}
}
