package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wire"
)

func TestAnotherBodyUnderATakenKeyIsAConflict(t *testing.T) {
	cases := map[string]bool{"in the same batch": true, "after the row is committed": false}
	each(t, cases, func(t *testing.T, w *world, together bool) {
		w.cfg.Lanes = 1 // in two, the second copy may meet the first one's lock and come back later
		w.publish(`{"a":1}`, "key")
		if !together {
			w.start()
			w.eventually("the first is applied", func() bool { return w.row("key").Status == dedup.Success })
		}
		w.publish(`{"a":2}`, "key")
		w.publish(`{"a":2}`, "key")
		if together {
			w.start()
		}
		w.settled(3)
		w.want("effects", w.effects(), once("key"))
		w.end(map[string]int{"applied": 1, "dead_lettered": 1, "duplicate_of_dead": 1})
		letter, ok := w.broker.Get(w.deadQueue())
		if !ok || letter.Headers["x-rollbackd-reason"] != "conflict" || string(letter.Body) != `{"a":2}` {
			t.Errorf("letter = %v %s, want the second body with reason conflict", letter.Headers, letter.Body)
		}
	})
}

// Given a batch whose messages a handler blames in one way or another, then the innocent are applied, by the fast path,
// which writes no story, and the guilty get their attempts.
func TestTheGuiltyLeaveTheBatchAndInnocentsPayNothing(t *testing.T) {
	type one struct {
		handler func(w *world)
		n, dead int // the first of them
		ends    map[string]int
	}
	permanent := func() error { return consumer.Permanent(errors.New("no such shelf")) }
	guilty := func(w *world, m consumer.Message) error { return w.judge(m) }
	each(t, map[string]one{
		"blamed": {func(w *world) { w.failing(keys("order", 2)...) }, 40, 2,
			map[string]int{"applied": 38, "retried": 4, "dead_lettered": 2}},
		"not blamed, so the batch is halved": {func(w *world) {
			w.failing(keys("order", 2)...)
			w.handler = whole(func(tx *gorm.DB, m consumer.Message) error {
				return errors.Join(insert(tx, m.Key), guilty(w, m))
			})
		}, 40, 2, map[string]int{"applied": 38, "retried": 4, "dead_lettered": 2}},
		// each call blames one: whoever was blamed stays out, and nothing of a call that fails is committed
		"one after the other": {func(w *world) {
			w.doing(func(_ *gorm.DB, m consumer.Message) error {
				if m.Key < "order-0010" {
					return permanent()
				}
				return nil
			})
		}, 40, 10, map[string]int{"applied": 30, "dead_lettered": 10}},
		// nobody is left to go on with: the handler must not be called with nothing
		"all": {func(w *world) {
			w.batch(func(_ *gorm.DB, msgs []consumer.Message) error {
				if len(msgs) == 0 {
					t.Error("the handler was called without messages")
				}
				return blaming(msgs, func(consumer.Message) error { return permanent() })
			})
		}, 16, 16, map[string]int{"dead_lettered": 16}},
		// the second call is of fewer: who is blamed in it is named by its place among all
		"for a statement, in a later call": {func(w *world) {
			w.cfg.MaxAttempts = 1
			w.doing(func(tx *gorm.DB, m consumer.Message) error {
				switch m.Key {
				case "order-0000":
					return errors.New("shelf is locked")
				case "order-0001":
					return tx.Exec("SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no such shelf'").Error
				}
				return nil
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

// Given copies of one failing message in a batch, then all share one attempt and one retry copy.
func TestCopiesInABatchShareTheirLeadersFate(t *testing.T) {
	w := newWorld(t)
	w.oneBatch(8)
	w.failing("bad")
	w.startWith("good", "bad", "good", "bad", "bad", "good", "bad", "bad")
	w.ended(dedup.Dead, "bad")
	w.quiet()
	// The first batch has all five copies of the bad one: one attempt, one retry copy. So it is one message from then on.
	w.end(map[string]int{"applied": 1, "duplicate": 2, "retried": 2, "in_progress": 4, "dead_lettered": 1})
	w.want("publishes", w.counts("rollbackd_publishes_total"), map[string]int{"retry": 2, "letter": 1})
	is(w, "letters", w.dead(), 1)
}

func TestFiveCopiesAtOnceGetTheAttemptsOfOneMessage(t *testing.T) {
	each(t, map[string]bool{"with the lock": true, "without": false}, func(t *testing.T, w *world, redis bool) {
		w.cfg.Lanes, w.cfg.BatchSize, w.cfg.BatchLinger = 5, 1, 0 // no two copies in one batch
		if !redis {
			w.redisURL = ""
		}
		w.failing("bad")
		w.startWith("bad", "bad", "bad", "bad", "bad")
		w.ended(dedup.Dead, "bad")
		w.quiet()
		events := w.events("bad")
		var failures []dedup.Event
		for _, e := range events {
			// a claim that was given back, without an attempt, has no error
			if e.From != dedup.Failed && e.To == dedup.Failed && e.Error != "" {
				failures = append(failures, e)
			}
		}
		if len(failures) != 3 {
			t.Fatalf("%d attempts failed, want 3: %v", len(failures), events)
		}
		for i, least := range w.cfg.RetryDelays {
			// Less the tenth that a copy may be early, and what passes between a row's time and its event's, which on a
			// loaded machine was a third of the delay.
			if gap := failures[i+1].At.Sub(failures[i].At); gap < least/2 {
				t.Errorf("attempt %d came %v after the one before, want about %v", i+2, gap, least)
			}
		}
		if got := w.outcomes(); got["retried"] != 2 || got["applied"] != 0 {
			t.Errorf("outcomes %v, want 2 retried", got)
		}
	})
}

func TestKeysThatDifferInOneByteAreDifferentMessages(t *testing.T) {
	w := newWorld(t)
	alike := []string{"key", "KEY", "kéy", "key ", "ke\u0301y", "key\U0001F600", "key\U0001F601"}
	w.judged(alike, map[string]int{"applied": len(alike)})
}

func TestTwoOtherBodiesInOneBatchAreTwoConflicts(t *testing.T) {
	w := newWorld(t)
	w.oneBatch(5)
	for _, body := range []string{"a", "b", "c", "a", "b"} {
		w.publish(body, "key")
	}
	w.start()
	w.settled(5)
	w.quiet()
	w.want("effects", w.effects(), once("key"))
	w.end(map[string]int{"applied": 1, "duplicate": 1, "dead_lettered": 2, "duplicate_of_dead": 1})
	w.want("letters", w.counts("rollbackd_dead_lettered_total"), map[string]int{"conflict": 2})
}

func TestWhatNobodyCanReadIsDeadLetteredAtOnceAndHasARow(t *testing.T) {
	w := newWorld(t)
	w.handler = validating{w.handler, func(m *consumer.Message) error {
		switch string(m.Body) {
		case "refused":
			return errors.New("no order in it")
		case "panics":
			panic("validator broke")
		}
		return nil
	}}
	w.publish("refused", "refused")
	w.publish("panics", "panics")
	w.publish(strings.Repeat("x", consumer.MaxBody+1), "large")
	w.publish(strings.Repeat("y", consumer.MaxBody), "largest")
	w.publishMessages(rabbit.Message{MessageID: "a\x01b", Body: []byte("{}")})
	w.start()
	w.settled(5)
	w.ended(dedup.Dead, "refused", "panics", "large")
	w.ended(dedup.Success, "largest")
	w.want("letters", w.counts("rollbackd_dead_lettered_total"), map[string]int{"malformed": 3, "unidentified": 1})
	for key, remark := range map[string]string{
		"refused": "no order in it", "panics": "validation panicked: validator broke", "large": "over the limit",
	} {
		row := w.row(key)
		if row.Reason != "malformed" || !strings.Contains(row.Remark, remark) || row.Attempts != 0 {
			t.Errorf("%s: reason %q, remark %q, %d attempts; want malformed, %q, none", key, row.Reason, row.Remark,
				row.Attempts, remark)
		}
		kept, err := w.records.Read(t.Context(), id(key))
		if err != nil || len(kept.Body) == 0 || len(kept.Properties) == 0 {
			t.Errorf("%s: the row keeps %d bytes of body and %d of properties (%v), want both", key, len(kept.Body),
				len(kept.Properties), err)
		}
	}
	is(w, "rows of unidentified messages",
		w.number("SELECT COUNT(*) FROM consumer_log WHERE msg_tag = 'rollbackd.unidentified' AND "+
			"consumer_status = 3"), 1)
}

func TestAThousandMalformedMessagesAreRecordedTogetherAndDoNotBrake(t *testing.T) {
	w := newWorld(t)
	w.cfg.BatchSize, w.cfg.Prefetch = 500, 1000
	w.cfg.MaxDead, w.cfg.MaxDeadWindow, w.cfg.BrakePause = 10, 60_000_000_000, 60_000_000_000
	w.handler = validating{w.handler, func(*consumer.Message) error { return errors.New("no order in it") }}
	all := keys("order", 1000)
	w.publish("{}", all...)
	l := w.proxied()
	commits := 0
	l.mysql.DropReply(func(piece []byte) bool { // counts, never drops
		commits += bytes.Count(piece, commit)
		return false
	})
	r := w.start()
	w.ended(dedup.Dead, all...)
	w.quiet()
	w.end(map[string]int{"dead_lettered": 1000})
	is(w, "letters", w.dead(), 1000)
	w.drains(r)
	assert.AtMost(t, commits, 100, "commits for 1000 rows: not recorded together")
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

// What a handler wrote before it blamed somebody is undone inside the transaction, which then goes on with the others.
//
// It does not run beside others: the view by which it tells transactions apart is stale while others read it too.
func TestTheBlamedLeaveATransactionThatGoesOn(t *testing.T) {
	w := newWorldOn(t, servers{})
	var mu sync.Mutex
	transactions := map[string][]int{} // sizes of the calls, by transaction
	w.failing("order-0003")
	w.hopeless("order-0017")
	w.batch(func(tx *gorm.DB, msgs []consumer.Message) error { // the effect of all, and then the blame
		var id string
		if err := tx.Raw("SELECT CONCAT(conn, ' ', id) FROM " + stack.Transactions +
			" WHERE conn = CONNECTION_ID()").Scan(&id).Error; err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		transactions[id] = append(transactions[id], len(msgs))
		return blaming(msgs, w.judge)
	})
	ends := map[string]int{"applied": 38, "retried": 2, "dead_lettered": 2}
	w.judged(keys("order", 40), ends, "order-0003", "order-0017")
	mu.Lock()
	defer mu.Unlock()
	shared := 0
	for _, sizes := range transactions {
		if len(sizes) > 1 && sizes[0] == 40 && sizes[1] == 38 {
			shared++
		}
	}
	assert.Is(t, shared, 1, "calls by transaction %v", transactions)
}

// A handler that has applied all but those whom it blames is not called again for the others: in few messages as in
// many, in the fast path and among those that failed before.
func TestTheOthersThatAreAppliedAreNotHandledAgain(t *testing.T) {
	each(t, map[string]int{"few": 4, "many": 40}, func(t *testing.T, w *world, n int) {
		w.cfg.MaxAttempts = 2
		var mu sync.Mutex
		calls := map[string]int{}
		guilty := func(m consumer.Message) error {
			switch {
			case m.Key == "order-0000", m.Key == "order-0001" && m.Attempt == 0:
				return errors.New("shelf is locked")
			case m.Key == "order-0002":
				return consumer.Permanent(errors.New("no such shelf"))
			}
			return nil
		}
		w.handler = consumer.HandlerFunc(func(_ context.Context, tx *gorm.DB, msgs []consumer.Message) error {
			mu.Lock()
			defer mu.Unlock()
			var blamed []consumer.BlamedMessage
			for i, m := range msgs {
				calls[m.Key]++
				if err := guilty(m); err != nil {
					blamed = append(blamed, consumer.BlamedMessage{Index: i, Err: err})
				} else if err := insert(tx, m.Key); err != nil {
					return err
				}
			}
			return consumer.Except(blamed...)
		})
		all := keys("order", n)
		ends := map[string]int{"applied": n - 2, "retried": 2, "dead_lettered": 2}
		w.judged(all, ends, "order-0000", "order-0002")
		want := once(all...)
		want["order-0000"], want["order-0001"] = 2, 2
		mu.Lock()
		defer mu.Unlock()
		w.want("calls", calls, want)
	})
}

// Given a handler that sorts the batch which it was given, as one does to lock rows in order, and then blames some of
// it, whether what it wrote is to be undone or not, also in a Mux and behind middleware that sorts, then these fail and
// each of the others has its effect once and pays no attempt.
func TestAHandlerMaySortItsBatch(t *testing.T) {
	sorted := func(msgs []consumer.Message) {
		slices.SortFunc(msgs, func(a, b consumer.Message) int { return strings.Compare(b.Key, a.Key) })
	}
	undone := func(w *world, tx *gorm.DB, msgs []consumer.Message) error {
		return errors.Join(insertAll(tx, msgs), blaming(msgs, w.judge))
	}
	left := func(w *world, tx *gorm.DB, msgs []consumer.Message) error {
		var out []consumer.BlamedMessage
		for i, m := range msgs {
			if err := w.judge(m); err != nil {
				out = append(out, consumer.BlamedMessage{Index: i, Err: err})
			} else if err := insert(tx, m.Key); err != nil {
				return err
			}
		}
		return consumer.Except(out...)
	}
	type ending func(*world, *gorm.DB, []consumer.Message) error
	sorting := func(w *world, end ending) consumer.Handler {
		return consumer.HandlerFunc(func(_ context.Context, tx *gorm.DB, msgs []consumer.Message) error {
			sorted(msgs)
			return end(w, tx, msgs)
		})
	}
	mux := func(w *world, end ending) consumer.Handler {
		return consumer.Mux{"order": sorting(w, end), "other": whole(effectOfKey)}
	}
	each(t, map[string]func(w *world) consumer.Handler{
		"Blame":         func(w *world) consumer.Handler { return sorting(w, undone) },
		"Except":        func(w *world) consumer.Handler { return sorting(w, left) },
		"Blame, a Mux":  func(w *world) consumer.Handler { return mux(w, undone) },
		"Except, a Mux": func(w *world) consumer.Handler { return mux(w, left) },
		"Blame, behind middleware": func(w *world) consumer.Handler {
			return consumer.With(consumer.HandlerFunc(func(_ context.Context, tx *gorm.DB, msgs []consumer.Message) error {
				return undone(w, tx, msgs)
			}), func(next consumer.Handler) consumer.Handler {
				return consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
					sorted(msgs)
					return next.Handle(ctx, tx, msgs)
				})
			})
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
		want := map[string]int{}
		for _, m := range good {
			want[m.MessageID] = 1
		}
		w.want("effects", w.effects(), want)
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
	before := w.looks()
	w.publish("{}", keys("more", 300)...)
	w.settled(len(fresh) + 300)
	is(w, "looks into the log for messages that are all new", w.looks(), before)

	again := append(slices.Clone(fresh[:250]), keys("last", 50)...)
	w.publish("{}", again...)
	w.publish(`{"another":"body"}`, fresh[700])

	w.settled(len(fresh) + 300 + len(again) + 1)
	w.end(map[string]int{"applied": 1850, "duplicate": 250, "dead_lettered": 1})
	w.want("effects", w.effects(), once(slices.Concat(fresh, keys("more", 300), keys("last", 50))...))
}

// looks is how often the engines asked the log for rows in step 3.
func (w *world) looks() int {
	w.t.Helper()
	return w.counts("rollbackd_batch_duration_seconds")["look_up"]
}

// A lane that meets the lock of another lane of its own process waits for that lane's batch.
func TestALaneWaitsForTheBatchThatHoldsItsLock(t *testing.T) {
	w := newWorld(t)
	w.cfg.Lanes, w.cfg.BatchSize, w.cfg.BatchLinger = 2, 1, 0
	inside, proceed := make(chan struct{}), make(chan struct{})
	var first sync.Once
	w.handler = consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
		first.Do(func() {
			close(inside)
			<-proceed
		})
		return w.handle(ctx, tx, msgs)
	})
	w.startWith("twice")
	<-inside
	// given its copy in the other lane's hand, which has seen the lock
	w.publish("{}", "twice", "twice", "twice", "twice")
	w.eventually("the lock was met", func() bool { return w.counts("rollbackd_lock_attempts_total")["held"] >= 1 })
	// longer than a stranger's lock is waited for: without it a copy would go to the retry queue
	timer := time.NewTimer(100 * time.Millisecond)
	defer timer.Stop()
	<-timer.C
	close(proceed)
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
			letter, queue := w.diedOnce("key"), w.cfg.Queue
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
			if row.Status == dedup.Dead && letters == 0 {
				t.Errorf("LOST: the row is %v and there is no letter; outcomes %v", row.Status, w.outcomes())
			}
			if tc.lostReplay && !tc.backstop && (row.Status != dedup.Success || row.Replays != 1) {
				t.Errorf("the row is %v after %d replays, want it applied after one", row.Status, row.Replays)
			}
		})
}

// diedOnce makes a dead message of a key that is applied whenever it is tried again, takes its letter off the
// dead-letter queue and returns it.
func (w *world) diedOnce(key string) stack.Delivery {
	w.t.Helper()
	w.oneBatch(2)
	dead := true
	w.rejecting(key, func() error {
		if dead {
			return consumer.Permanent(errors.New("already shipped"))
		}
		return nil
	})
	w.publish("{}", key)
	r := w.launch()
	w.ended(dedup.Dead, key)
	w.quiet()
	require.OK(w.t, r.drained())
	letter := w.letter()
	dead = false
	return letter
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
		w.publishRaw(func(frame int) string { return string(stack.FillingHeaders(frame, "m", "key", tag)[i].Entries) })
		w.crashAt(points[i])
		w.start()
		w.quiet()
		w.applied("key")
		is(w, "rows", w.number("SELECT COUNT(*) FROM consumer_log"), 1)
		is(w, "letters", w.dead(), 0)
	})
}

// publishRaw publishes a message under the key "key" whose headers are these bytes.
func (w *world) publishRaw(headers func(frame int) string) {
	w.t.Helper()
	w.declare()
	raw := require.Get(stack.DialRaw(w.t.Context(), w.broker.URL))(w.t)
	defer raw.Close()
	require.OK(w.t, raw.Publish(stack.RawMessage{
		Exchange: w.cfg.Exchange, Key: tag, MessageID: "key", Type: tag, Headers: []byte(headers(raw.FrameMax())),
		Body: []byte("{}"),
	}))
}

// Given x-death as no broker writes it, an array of arrays, over which RabbitMQ 3.10 stops moving messages out of a
// queue, when the message fails and waits in a retry queue, then it comes back and is applied: no copy carries it.
func TestAForgedDeathStopsNoRetry(t *testing.T) {
	w := newWorld(t)
	w.flaky("key")
	w.publishRaw(func(int) string { return "\x07x-deathA\x00\x00\x00\x05A\x00\x00\x00\x00" })
	w.start()
	w.quiet()
	w.applied("key")
	w.want("outcomes", w.outcomes(), map[string]int{"applied": 1, "retried": 1})
}
