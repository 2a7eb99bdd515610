package consumer_test

import (
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
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// What a handler wrote before it blamed somebody is undone inside the transaction, which then goes on with the others.
//
// It does not run beside others: the view by which it tells transactions apart is stale while others read it too.
func TestTheBlamedLeaveATransactionThatGoesOn(t *testing.T) {
	w := newWorld(t)
	w.oneBatch(40)
	var mu sync.Mutex
	transactions := map[string][]int{} // sizes of the calls, by transaction
	w.handler = consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
		var blamed []consumer.BlamedMessage
		for i, m := range msgs { // the effect of the guilty and of the innocent alike, and then the blame
			if err := tx.WithContext(ctx).Exec("INSERT INTO effect (k, body) VALUES (?, '')", m.Key).Error; err != nil {
				return err
			}
			switch m.Key {
			case "order-0003":
				blamed = append(blamed, consumer.BlamedMessage{Index: i, Err: errors.New("shelf is locked")})
			case "order-0017":
				blamed = append(blamed, consumer.BlamedMessage{Index: i, Err: consumer.Permanent(errors.New("no such shelf"))})
			}
		}
		var id string
		if err := tx.WithContext(ctx).Raw("SELECT CONCAT(conn, ' ', id) FROM " + stack.Transactions +
			" WHERE conn = CONNECTION_ID()").Scan(&id).Error; err != nil {
			return err
		}
		mu.Lock()
		transactions[id] = append(transactions[id], len(msgs))
		mu.Unlock()
		return consumer.Blame(blamed...)
	})
	all := keys("order", 40)
	w.publish("{}", all...)
	w.start()

	w.ended(dedup.Dead, "order-0003", "order-0017")
	w.ended(dedup.Success, all[0], all[39])
	w.end(map[string]int{"applied": 38, "retried": 2, "dead_lettered": 2})
	w.want("effects", w.effects(), once(slices.DeleteFunc(slices.Clone(all), func(k string) bool {
		return k == all[3] || k == all[17]
	})...))
	mu.Lock()
	defer mu.Unlock()
	shared := 0
	for _, sizes := range transactions {
		if len(sizes) > 1 && sizes[0] == 40 && sizes[1] == 38 {
			shared++
		}
	}
	if shared != 1 {
		t.Errorf("calls by transaction %v, want one with 40 and then 38 messages", transactions)
	}
}

// A handler that has applied all but those whom it blames is not called again for the others: in few messages as in
// many, in the fast path and among those that failed before.
func TestTheOthersThatAreAppliedAreNotHandledAgain(t *testing.T) {
	for name, n := range map[string]int{"few": 4, "many": 40} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.oneBatch(n)
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
			w.handler = consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
				var blamed []consumer.BlamedMessage
				for i, m := range msgs {
					mu.Lock()
					calls[m.Key]++
					mu.Unlock()
					if err := guilty(m); err != nil {
						blamed = append(blamed, consumer.BlamedMessage{Index: i, Err: err})
					} else if err := insert(tx, m.Key); err != nil {
						return err
					}
				}
				return consumer.Except(blamed...)
			})
			all := keys("order", n)
			w.publish("{}", all...)
			w.start()

			w.ended(dedup.Dead, "order-0000", "order-0002")
			w.ended(dedup.Success, slices.Concat(all[1:2], all[3:])...)
			w.end(map[string]int{"applied": n - 2, "retried": 2, "dead_lettered": 2})
			w.want("effects", w.effects(), once(slices.Concat(all[1:2], all[3:])...))
			want := once(all...)
			want["order-0000"], want["order-0001"] = 2, 2
			mu.Lock()
			defer mu.Unlock()
			w.want("calls", calls, want)
		})
	}
}

// A second call that fails too must not commit anything of the first.
func TestABlameThatNeverEndsIsSplitUntilTheInnocentAreApplied(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.oneBatch(40)
	w.handler = consumer.Each(func(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
		if err := tx.WithContext(ctx).Exec("INSERT INTO effect (k, body) VALUES (?, '')", m.Key).Error; err != nil {
			return err
		}
		if m.Key < "order-0010" { // ten guilty, and each call blames one
			return consumer.Permanent(errors.New("no such shelf"))
		}
		return nil
	})
	all := keys("order", 40)
	w.publish("{}", all...)
	w.start()
	w.ended(dedup.Success, all[10:]...)
	w.ended(dedup.Dead, all[:10]...)
	w.end(map[string]int{"applied": 30, "dead_lettered": 10})
	w.want("effects", w.effects(), once(all[10:]...))
}

// Without Redis nobody but the log knows what was done. Once a thousand messages had no row, it is not asked before the
// insert: that must find every duplicate all the same, and another body too.
func TestDuplicatesThatNobodyLookedForMeetTheInsert(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.redisURL = ""
	w.cfg.Lanes, w.cfg.BatchSize, w.cfg.Prefetch = 1, 100, 200
	fresh := keys("fresh", 1500)
	w.publish("{}", fresh...)
	w.start()
	w.settled(len(fresh))
	before := w.looks()
	w.publish("{}", keys("more", 300)...)
	w.settled(len(fresh) + 300)
	if looks := w.looks(); looks != before {
		t.Errorf("%d looks into the log for messages that are all new, want none", looks-before)
	}

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
	t.Parallel()
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
	w.publish("{}", "twice")
	w.start()
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

// Nobody is left to go on with when all are blamed: the handler must not be called with nothing.
func TestABatchInWhichAllAreBlamedIsNotHandledAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.oneBatch(16)
	w.handler = consumer.HandlerFunc(func(_ context.Context, _ *gorm.DB, msgs []consumer.Message) error {
		if len(msgs) == 0 {
			t.Error("the handler was called without messages")
		}
		var blamed []consumer.BlamedMessage
		for i := range msgs {
			blamed = append(blamed, consumer.BlamedMessage{Index: i, Err: consumer.Permanent(errors.New("no such shelf"))})
		}
		return consumer.Blame(blamed...)
	})
	all := keys("order", 16)
	w.publish("{}", all...)
	w.start()
	w.ended(dedup.Dead, all...)
	w.end(map[string]int{"dead_lettered": 16})
}

// What is finished is acked before a slow attempt begins: an outage during that attempt gives nothing finished back.
func TestWhatIsFinishedIsAckedBeforeASlowAttempt(t *testing.T) {
	t.Parallel()
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
	w.publish("{}", keys("order", 40)...)
	w.start()
	await(t, inside, "the slow attempt")
	defer close(goOn)
	w.eventually("only the one in hand is unacked", func() bool { return w.broker.Unacked(w.cfg.Queue) == 1 })
}

// The blame of a COMMIT whose answer was lost still holds when the next try finds the rows there.
func TestALostCommitWithBlamedMessagesIsTheirsWhoWereApplied(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.redisURL = ""
	w.oneBatch(40)
	w.rejecting("order-0003", func() error { return consumer.Permanent(errors.New("no such shelf")) })
	l := w.proxied()
	w.publish("{}", keys("order", 40)...)
	dropped := l.mysql.DropReply(nthCommit(1))
	w.start()
	await(t, dropped, "the reply to COMMIT is dropped")
	// and nobody can look the rows up for a while
	l.mysql.Refuse(true)
	l.mysql.Cut()
	w.eventually("the engine knows", func() bool { return strings.Contains(w.logs.String(), "mysql") })
	l.mysql.Refuse(false)
	w.settled(40)
	w.end(map[string]int{"applied": 39, "dead_lettered": 1})
}

// The second call is of fewer messages. Who is blamed in it, for a statement that failed, is named by its place among
// all.
func TestBlameOfALaterCallMeetsWhomItNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.oneBatch(40)
	w.cfg.MaxAttempts = 1
	w.handler = consumer.Each(func(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
		switch m.Key {
		case "order-0005":
			return errors.New("shelf is locked")
		case "order-0010":
			return tx.WithContext(ctx).Exec("SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no such shelf'").Error
		}
		return insert(tx, m.Key)
	})
	all := keys("order", 40)
	w.publish("{}", all...)
	w.start()
	w.settled(40)
	guilty := map[string]bool{"order-0005": true, "order-0010": true}
	w.ended(dedup.Dead, "order-0005", "order-0010")
	w.want("effects", w.effects(), once(slices.DeleteFunc(slices.Clone(all), func(k string) bool { return guilty[k] })...))
}

// Trouble that a handler made of one message into blame is trouble all the same.
func TestADatabaseErrorInABlameIsNoAttempt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.oneBatch(1)
	var mu sync.Mutex
	calls := 0
	w.handler = consumer.Each(func(_ context.Context, tx *gorm.DB, m consumer.Message) error {
		mu.Lock()
		defer mu.Unlock()
		if calls++; calls <= 2 {
			return &mysql.MySQLError{Number: 1213, Message: "Deadlock found when trying to get lock"}
		}
		return insert(tx, m.Key)
	})
	w.publish("{}", "one")
	w.start()
	w.ended(dedup.Success, "one")
	w.end(map[string]int{"applied": 1})
	if row := w.row("one"); row.Attempts != 1 {
		t.Errorf("%d attempts, want 1", row.Attempts)
	}
}
