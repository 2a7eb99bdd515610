package consumer_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/redis/go-redis/v9"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wire"
	"github.com/rollbackd/rollbackd/lock"
)

// Given a batch whose messages a handler blames in one way or another, then the innocent are applied, by the fast path,
// which writes no story, and the guilty get their attempts.
func TestTheGuiltyLeaveTheBatchAndInnocentsPayNothing(t *testing.T) {
	type one struct {
		handler func(w *world)
		n, dead int // the first of them
		ends    map[string]int
	}
	two, guilty := keys("order", 2), map[string]int{"applied": 38, "retried": 4, "dead_lettered": 2}
	each(t, map[string]one{
		"blamed": {func(w *world) { w.failing(two...) }, 40, 2, guilty},
		"not blamed, so the batch is halved": {func(w *world) {
			w.failing(two...)
			w.handler = whole(w.writes)
		}, 40, 2, guilty},
		// each call blames one: whoever was blamed stays out, and nothing of a call that fails is committed
		"one after the other": {func(w *world) {
			w.hopeless(keys("order", 10)...)
			w.handler = by(false, w.writes)
		}, 40, 10, map[string]int{"applied": 30, "dead_lettered": 10}},
		// nobody is left to go on with: the handler must not be called with nothing
		"all": {func(w *world) {
			w.hopeless(keys("order", 16)...)
			w.batch(func(_ *gorm.DB, msgs []consumer.Message) error {
				assert.AtLeast(w.t, len(msgs), 1, "messages of a call")
				return blaming(msgs, w.judge)
			})
		}, 16, 16, map[string]int{"dead_lettered": 16}},
		// the second call is of fewer: who is blamed in it is named by its place among all
		"for a statement, in a later call": {func(w *world) {
			w.cfg.MaxAttempts = 1
			w.failing("order-0000")
			w.doing(func(tx *gorm.DB, m consumer.Message) error {
				if m.Key == "order-0001" {
					return tx.Exec("SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no such shelf'").Error
				}
				return w.judge(m)
			})
		}, 40, 2, map[string]int{"applied": 38, "dead_lettered": 2}},
		// trouble that a handler made of one message into blame is trouble all the same
		"for the database's error": {func(w *world) {
			calls := 0
			w.doing(func(*gorm.DB, consumer.Message) error {
				if calls++; calls <= 2 {
					return &mysql.MySQLError{Number: 1213, Message: "Deadlock found when trying to get lock"}
				}
				return nil
			})
		}, 1, 0, map[string]int{"applied": 1}},
	}, func(t *testing.T, w *world, tc one) {
		tc.handler(w)
		all := keys("order", tc.n)
		innocent := w.judged(all, tc.ends, all[:tc.dead]...)
		if w.want("attempts", w.attempts(innocent...), once(innocent...)); tc.n > 1 { // else it is alone
			w.wantStory("", innocent...)
		}
	})
}

func TestFiveCopiesAtOnceGetTheAttemptsOfOneMessage(t *testing.T) {
	each(t, map[string]bool{"with the lock": true, "without": false}, func(t *testing.T, w *world, redis bool) {
		w.cfg.Lanes, w.cfg.BatchSize, w.cfg.BatchLinger = 5, 1, 0 // no two copies in one batch
		if !redis {
			w.redisURL = ""
		}
		w.failing("bad")
		w.startWith("bad", "bad", "bad", "bad", "bad")
		w.ended(dedup.Dead, "bad") // without the lock there may be two letters
		w.quiet()
		events := w.events("bad")
		failures := slices.DeleteFunc(slices.Clone(events), func(e dedup.Event) bool {
			// a claim that was given back, without an attempt, has no error
			return e.From == dedup.Failed || e.To != dedup.Failed || e.Error == ""
		})
		require.Is(t, len(failures), 3, "failures: %v", events)
		for i, least := range w.cfg.RetryDelays {
			// Less the tenth that a copy may be early, and what passes between a row's time and its event's, which on a
			// loaded machine was a third of the delay.
			assert.AtLeast(t, failures[i+1].At.Sub(failures[i].At), least/2, "attempt %d came after the one before by", i+2)
		}
		is(w, "retried", w.outcomes()["retried"], 2)
		is(w, "applied", w.outcomes()["applied"], 0)
	})
}

func TestKeysThatDifferInOneByteAreDifferentMessages(t *testing.T) {
	alike := []string{"key", "KEY", "kéy", "key ", "ke\u0301y", "key\U0001F600", "key\U0001F601"}
	newWorld(t).judged(alike, map[string]int{"applied": len(alike)})
}

func TestWhatNobodyCanReadIsDeadLetteredAtOnceAndHasARow(t *testing.T) {
	w := newWorld(t)
	w.cfg.MaxDead, w.cfg.MaxDeadWindow, w.cfg.BrakePause = 1, time.Hour, time.Hour // nothing of it brakes
	w.handler = validating{w.handler, func(m *consumer.Message) error {
		switch string(m.Body) {
		case "refused":
			return errors.New("no order in it")
		case "panics":
			panic("validator broke")
		case "nil":
			return (*fs.PathError)(nil)
		}
		return nil
	}}
	w.publish("refused", "refused")
	w.publish("panics", "panics")
	w.publish("nil", "nil")
	w.publish(strings.Repeat("x", consumer.MaxBody+1), "large")
	w.publish(strings.Repeat("y", consumer.MaxBody), "largest")
	w.publishMessages(rabbit.Message{MessageID: "a\x01b", Body: []byte("{}")})
	w.start()
	w.settled(6)
	w.ended(dedup.Dead, "refused", "panics", "nil", "large")
	w.ended(dedup.Success, "largest")
	w.want("letters", w.counts("rollbackd_dead_lettered_total"), map[string]int{"malformed": 4, "unidentified": 1})
	for key, remark := range map[string]string{
		"refused": "no order in it", "panics": "validation panicked: validator broke", "large": "over the limit",
		"nil": "panicked: runtime error",
	} {
		w.wantRow(key, wanted{Reason: "malformed", Says: remark})
		kept := require.Get(w.records.Read(t.Context(), id(key)))(t)
		assert.That(t, len(kept.Body) != 0 && len(kept.Properties) != 0 && kept.Attempts == 0,
			"%s: the row keeps %+v, want its body and its properties, and no attempt", key, kept)
	}
	is(w, "rows of unidentified messages",
		w.number("SELECT COUNT(*) FROM consumer_log WHERE msg_tag = 'rollbackd.unidentified' AND consumer_status = 3"), 1)
}

func TestALetterWhoseRowAppearsMeanwhileIsNotRecordedTwice(t *testing.T) {
	w := newWorld(t)
	w.hasty()
	w.oneBatch(3)
	w.handler = validating{w.handler, func(*consumer.Message) error { return errors.New("no order in it") }}
	w.publish("{}", "one", "two", "three")
	_, release := w.into(consumer.PointLetter, w.start)
	w.claim("two")
	release()
	// then the other rows are written, and its own worker's row is left alone until its lease is over
	w.ended(dedup.Dead, "one", "three")
	w.eventually("a copy of it waits", func() bool { return w.outcomes()["lease_lost"] == 1 })
	w.ended(dedup.Dead, "two")
	w.quiet()
}

// Given a handler that sorts the batch which it was given, as one does to lock rows in order, and then blames some of
// it, whether what it wrote is to be undone or not, also in a Mux, then these fail and each of the others has its
// effect once and pays no attempt.
func TestAHandlerMaySortItsBatch(t *testing.T) {
	type ending func(*gorm.DB, []consumer.Message, func(consumer.Message) error) error
	sorting := func(w *world, end ending) consumer.Handler {
		return handling(func(tx *gorm.DB, msgs []consumer.Message) error {
			slices.SortFunc(msgs, func(a, b consumer.Message) int { return strings.Compare(b.Key, a.Key) })
			return end(tx, msgs, w.judge)
		})
	}
	each(t, map[string]func(w *world) consumer.Handler{
		"Blame": func(w *world) consumer.Handler { return sorting(w, writingAndBlaming) },
		"Except, a Mux": func(w *world) consumer.Handler {
			return consumer.Mux{"order": sorting(w, excepting), "other": whole(effectOfKey)}
		},
	}, func(t *testing.T, w *world, kind func(*world) consumer.Handler) {
		w.handler = kind(w)
		w.cfg.MaxAttempts = 2
		all := append(ofTag("order", 20), ofTag("other", 3)...)
		bad := all[2:4:4]
		w.failing(bad[0].MessageID, bad[1].MessageID)
		w.oneBatch(len(all))
		w.publishMessages(all...)
		w.start()
		w.endedAs(dedup.Dead, bad...)
		good := slices.Concat(all[:2], all[4:])
		w.endedAs(dedup.Success, good...)
		w.quiet()
		w.want("effects", w.effects(), once(keysOf(good)...))
		is(w, "rows with more than one attempt", w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_times > 1"), 2)
	})
}

// Without Redis nobody but the log knows what was done. Once a thousand messages had no row, it is not asked before the
// insert: that must find every duplicate all the same, and another body too.
func TestDuplicatesThatNobodyLookedForMeetTheInsert(t *testing.T) {
	w := newWorld(t)
	w.redisURL = ""
	w.cfg.Lanes, w.cfg.BatchSize, w.cfg.Prefetch = 1, 100, 200
	fresh := keys("fresh", 1500)
	w.startWith(fresh...)
	w.settled(len(fresh))
	looks := func() int { return w.counts("rollbackd_batch_duration_seconds")["look_up"] }
	before := looks()
	w.publish("{}", keys("more", 300)...)
	w.settled(len(fresh) + 300)
	is(w, "looks into the log for messages that are all new", looks(), before)

	again := append(slices.Clone(fresh[:250]), keys("last", 50)...)
	w.publish("{}", again...)
	w.publish(`{"another":"body"}`, fresh[700])

	w.settled(len(fresh) + 300 + len(again) + 1)
	w.end(map[string]int{"applied": 1850, "duplicate": 250, "dead_lettered": 1})
	w.want("effects", w.effects(), once(slices.Concat(fresh, keys("more", 300), keys("last", 50))...))
}

// A lane that meets the lock of another lane of its own process waits for that lane's batch.
func TestALaneWaitsForTheBatchThatHoldsItsLock(t *testing.T) {
	w := newWorld(t)
	w.cfg.Lanes, w.cfg.BatchSize, w.cfg.BatchLinger = 2, 1, 0
	w.publish("{}", "twice")
	_, proceed := w.into(consumer.PointEffect, w.start)
	// given its copy in the other lane's hand, which has seen the lock
	w.publish("{}", "twice", "twice", "twice", "twice")
	w.eventually("the lock was met", func() bool { return w.counts("rollbackd_lock_attempts_total")["held"] >= 1 })
	// longer than a stranger's lock is waited for: without it a copy would go to the retry queue
	<-time.After(100 * time.Millisecond)
	proceed()
	w.settled(5)
	w.end(map[string]int{"applied": 1, "duplicate": 4})
	w.want("publishes", w.counts("rollbackd_publishes_total"), map[string]int{})
}

// What is finished is acked before a slow attempt begins: an outage during that attempt gives nothing finished back.
func TestWhatIsFinishedIsAckedBeforeASlowAttempt(t *testing.T) {
	w := newWorld(t)
	w.oneBatch(40)
	inside, goOn := make(chan struct{}), make(chan struct{})
	w.handler = consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
		if msgs[0].Attempt > 0 {
			close(inside)
			<-goOn
			return nil
		}
		if msgs[0].Key == "order-0000" {
			return consumer.Blame(consumer.BlamedMessage{Index: 0, Err: errors.New("shelf is locked")})
		}
		return nil
	})
	w.startWith(keys("order", 40)...)
	await(t, inside, "the slow attempt")
	defer close(goOn)
	w.eventually("only the one in hand is unacked", func() bool { return w.broker.Unacked(w.cfg.Queue) == 1 })
}

// Given a dead message, and behind a plain re-send its letter that somebody moved back, or a copy of a replay that the
// database has lost in a failover, so that its row says dead and its letter is gone, then the message is applied, or
// its letter is back.
func TestALetterMovedByHandIsNotSwallowedByACopyInItsBatch(t *testing.T) {
	type one struct{ backstop, lostReplay bool }
	each(t, named(one{false, false}, one{true, false}, one{false, true}, one{true, true}),
		func(t *testing.T, w *world, tc one) {
			w.oneBatch(2)
			w.hopeless("key")
			w.publish("{}", "key")
			r := w.launch()
			w.ended(dedup.Dead, "key")
			w.quiet()
			require.OK(t, r.drained())
			w.rejecting("key", nil)
			letter, queue := w.letter(), w.cfg.Queue
			if tc.backstop {
				queue = w.backstop()
			}
			if tc.lostReplay {
				letter.Headers = map[string]any{wire.HeaderReplays: int64(1)}
			}
			w.publishInto(queue, "key")
			w.move(letter, queue)
			w.start()
			w.settled(3)
			w.quiet()
			row, letters := w.row("key"), w.dead()
			assert.That(t, row.Status != dedup.Dead || letters != 0,
				"LOST: the row is %v and there is no letter; outcomes %v", row.Status, w.outcomes())
			assert.That(t, !tc.lostReplay || tc.backstop || row.Status == dedup.Success && row.Replays == 1,
				"the row is %v after %d replays, want it applied after one", row.Status, row.Replays)
		})
}

func TestAnInsertThatMeetsNobodysRowIsTroubleAndNotALoop(t *testing.T) {
	w := newWorld(t)
	// given a trigger that makes every insert into the log fail with a duplicate that is not the log's
	w.exec("CREATE TABLE other (id INT PRIMARY KEY) ENGINE=InnoDB")
	w.exec("INSERT INTO other VALUES (1)")
	if _, err := w.db.ExecContext(t.Context(), "CREATE TRIGGER other_first BEFORE INSERT ON consumer_log FOR EACH ROW "+
		"INSERT INTO other VALUES (1)"); err != nil {
		t.Skipf("this server lets nobody make triggers: %v", err)
	}
	r := w.startWith("key")
	// then the engine says that it waits for MySQL
	w.paused(r, consumer.DependencyMySQL)
	assert.Is(t, len(w.effects()), 0, "effects")
	// and goes on when that is mended
	w.exec("DROP TRIGGER other_first")
	w.recovered(r)
	w.settled(1)
	w.want("effects", w.effects(), once("key"))
}

// Given headers that are as large, or as many, as the client library reads, so that RabbitMQ's count of deliveries
// makes them more, and an engine that dies over the message, when another engine gets it again, then it is the same
// message: applied once, under its key, and without a letter.
func TestHeadersThatFillAFrameKeepTheirIdentityAtARedelivery(t *testing.T) {
	points := []consumer.Point{consumer.PointClaimed, consumer.PointCommitted, consumer.PointRetryCopy}
	each(t, map[string]int{"one entry": 0, "many entries": 1, "8,192 entries": 2}, func(t *testing.T, w *world, i int) {
		w.hasty()
		if i != 1 {
			w.flaky("key") // so that it is claimed and attempted again
		}
		w.publishOdd(stack.FillingHeaders("m", "key", tag)[i].Table)
		w.crashAt(points[i])
		w.start()
		w.quiet()
		w.applied("key")
		is(w, "rows", w.number("SELECT COUNT(*) FROM consumer_log"), 1)
		is(w, "letters", w.dead(), 0)
	})
}

// publishOdd publishes a message under the key "key" with headers that ours would not send.
func (w *world) publishOdd(headers rabbit.Table) {
	w.t.Helper()
	w.declare()
	w.broker.Publish(w.cfg.Exchange, tag, stack.Message{
		MessageId: "key", Type: tag, DeliveryMode: rabbit.Persistent, Headers: headers, Body: []byte("{}"),
	})
}

// Given x-death as no broker writes it, an array of arrays, over which RabbitMQ 3.10 stops moving messages out of a
// queue, when the message fails and waits in a retry queue, then it comes back and is applied: no copy carries it.
func TestAForgedDeathStopsNoRetry(t *testing.T) {
	w := newWorld(t)
	w.flaky("key")
	w.publishOdd(rabbit.Table{"x-death": []any{[]any{}}})
	w.start()
	w.quiet()
	w.applied("key")
	w.end(map[string]int{"applied": 1, "retried": 1})
}

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
	right := require.Get(locker.Show(t.Context(), names[4]))(t)
	assert.AtMost(t, right.TTL, w.cfg.DoneTTL/2, "a marker that was right, and not written again, stands for")
}

// Given a Redis that holds wrong values of every kind under every key, when messages come, then all have their one
// effect within two lifetimes of a lock, the failing one its attempts, and what stands in Redis is right again.
func TestARedisFullOfWrongValuesOnlyDelays(t *testing.T) {
	t.Parallel()
	const hour = 3600
	right, hash := sha256.Sum256([]byte("{}")), strings.Repeat("h", sha256.Size)
	kinds := map[string][]any{ // commands without their key
		"lock":                 {"SET", "lock:host/1/x/0/7", "EX", 5},
		"lock-for-ever":        {"SET", "lock:host/1/x/0/7"},
		"lock-of-an-hour":      {"SET", "lock:host/1/x/0/7", "EX", hour},
		"lock-of-nobody":       {"SET", "lock:"},
		"marker":               {"SET", "done:" + string(right[:]), "EX", hour},
		"marker-for-ever":      {"SET", "done:" + string(right[:])},
		"marker-of-another":    {"SET", "done:" + hash, "EX", hour},
		"marker-short":         {"SET", "done:" + hash[1:]},
		"marker-long":          {"SET", "done:" + hash + "h"},
		"marker-of-upper-case": {"SET", "DONE:" + hash},
		"empty":                {"SET", ""},
		"number":               {"SET", "1", "EX", hour},
		"large":                {"SET", strings.Repeat("x", 1<<20)},
		"bit":                  {"SETBIT", 7, 1},
		"list":                 {"LPUSH", "x"},
		"set":                  {"SADD", "x"},
		"sorted-set":           {"ZADD", 1, "x"},
		"hash":                 {"HSET", "x", "y"},
		"stream":               {"XADD", "*", "x", "y"},
	}
	for _, policy := range []lock.Policy{lock.Proceed, lock.Pause} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			w := newWorldOn(t, servers{redis: stack.OwnRedis(t)})
			w.cfg.LockTTL, w.cfg.LockOnError = 5*time.Second, policy
			client, locker := w.redisOf()
			var all []string
			for kind, fill := range kinds {
				some := keys(kind, 3)
				for _, k := range locker.names(some...) {
					require.OK(t, client.Do(t.Context(), slices.Insert(slices.Clone(fill), 1, any(k.String()))...).Err())
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
	assert.AtLeast(t, known, 1, "batches in which messages were looked up")
	is(w, "with new messages", publish(keys("new", 10)...), known)
	w.marked(locker, "{}", first...)
	among := publish(append(keys("newer", 10), first...)...)
	assert.AtLeast(t, among, known+1, "with marked copies")
	is(w, "with new messages after those", publish(keys("newest", 10)...), among)
	is(w, "duplicates", w.outcomes()["duplicate"], 10)
}
