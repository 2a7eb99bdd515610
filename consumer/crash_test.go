package consumer_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// cast publishes one message of every fate: good ones, a flaky one that fails its first attempt, a bad one that fails
// always, and a hopeless one that fails for good.
func (w *world) cast() {
	w.t.Helper()
	w.failing("bad")
	w.hopeless("hopeless")
	w.flaky("flaky")
	w.publish("{}", append(keys("good", 20), "flaky", "bad", "hopeless")...)
}

// castEnded checks that every message of cast met its fate, once.
func (w *world) castEnded() {
	w.t.Helper()
	w.ended(dedup.Dead, "bad", "hopeless")
	w.quiet()
	w.applied(append(keys("good", 20), "flaky")...)
	w.wantRow("hopeless", wanted{Reason: "permanent"})
}

// Given an engine that died at one of its points, when another one comes, then every message ends as it must, and no
// attempt was made too often.
func TestAnEngineThatDiesAnywhereLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	for _, point := range []consumer.Point{
		consumer.PointClaimed, consumer.PointEffect, consumer.PointCommitted, consumer.PointFailed,
		consumer.PointRetryCopy, consumer.PointLetter, consumer.PointDead, consumer.PointAcked,
	} {
		t.Run(string(point), func(t *testing.T) {
			w := newWorld(t)
			w.cfg.Lease, w.cfg.HandlerTimeout = 3*time.Second, 2*time.Second
			w.cast()
			// given an engine that died at this point
			w.crashAt(point)
			// when another one comes
			w.start()
			// then every message ends as it must, and no attempt was made too often
			w.castEnded()
			w.wantRow("bad", wanted{Attempts: w.cfg.MaxAttempts})
			if n := w.dead(); n < 2 || n > 3 {
				t.Errorf("%d letters, want 2, or 3 when the engine died between a letter and its row", n)
			}
		})
	}
}

// Given the answer to the nth COMMIT lost, of the fast path, of claims, failures and successes, of rows that say
// dead, then every attempt and every effect is counted once.
func TestALostAnswerToCommitChangesNothing(t *testing.T) {
	t.Parallel()
	// The commits of cast: those of the fast path; of claims, failures, successes; of rows that say dead.
	for n := 1; n <= 10; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			w := newWorld(t)
			w.cast()
			l := w.proxied()
			dropped := l.mysql.DropReply(nthCommit(n))
			r := w.start()
			w.castEnded()
			w.recovered(r)
			select {
			case <-dropped:
			default: // messages that come back at the same time share the commits of one group
				if n <= 8 {
					t.Errorf("there were fewer than %d commits", n)
				}
				t.Logf("fewer than %d commits in this run: no answer was lost", n)
			}
			w.wantRow("bad", wanted{Attempts: w.cfg.MaxAttempts, Reason: "exhausted"})
			is(w, "letters", w.dead(), 2)
			// Who met a row of its own that it did not know of may have been counted as its duplicate.
			got := w.outcomes()
			got["applied"] += got["duplicate"]
			delete(got, "duplicate")
			// A slow machine may take the flaky one's first call for a wait for locks, which is no attempt.
			if got["retried"] == 2 {
				got["retried"]++
			}
			w.want("outcomes", got, map[string]int{"applied": 21, "retried": 3, "dead_lettered": 2})
		})
	}
}

// The rows of several letters are inserted in one transaction. When the answer to its COMMIT is lost they are found
// dead, by our own hand: these are letters, not copies of somebody else's.
func TestLettersWhoseCommitAnswerIsLostAreCountedAsLettersOnce(t *testing.T) {
	w := newWorld(t)
	w.oneBatch(5)
	letters := keys("hopeless", 5)
	w.hopeless(letters...)
	w.publish("{}", letters...)
	var confirmed atomic.Bool
	w.cfg.Hook = func(p consumer.Point) {
		if p == consumer.PointLetter {
			confirmed.Store(true)
		}
	}
	l := w.proxied()
	dropped := l.mysql.DropReply(func(piece []byte) bool { return confirmed.Load() && bytes.HasSuffix(piece, commit) })

	r := w.start()

	await(t, dropped, "the answer is lost")
	w.ended(dedup.Dead, letters...)
	w.recovered(r)
	w.end(map[string]int{"dead_lettered": 5})
	w.want("letters by reason", w.counts("rollbackd_dead_lettered_total"), map[string]int{"permanent": 5})
	is(w, "letters", w.dead(), 5)
}

// crashed leaves rows as a process leaves them that died so many times in its attempts.
func (w *world) crashed(times int, keys ...string) {
	w.t.Helper()
	w.rows(dedup.Processing, times, "a process that died", keys...)
}

// A process died in the last attempt of two messages. Who was claimed by itself has most likely killed it. Who was
// claimed together with others is given that attempt back, once, and makes it alone.
func TestTheLastAttemptOfAMessageThatWasClaimedWithOthersIsMadeAlone(t *testing.T) {
	w := newWorld(t)
	w.crashed(w.cfg.MaxAttempts, "by itself", "innocent", "guilty")
	w.exec("UPDATE consumer_log SET owner = CONCAT('host/1/2/3/4', ?) WHERE msg_key <> 'by itself'", dedup.MarkGroup)
	w.failing("guilty")
	w.startWith("by itself", "innocent", "guilty")
	w.ended(dedup.Dead, "by itself", "guilty")
	w.quiet()
	w.applied("innocent")
	for k, want := range map[string]dedup.Reason{"by itself": dedup.ReasonCrashed, "guilty": dedup.ReasonExhausted} {
		w.wantRow(k, wanted{Reason: want, Attempts: w.cfg.MaxAttempts})
	}
	if row := w.row("innocent"); row.Attempts != w.cfg.MaxAttempts || !row.RunsAlone() {
		t.Errorf("the innocent one is %+v, want its last attempt, marked", row)
	}
}

// Beside an attempt of one message other lanes are at work, and what they run may kill the process.
func TestALastAttemptBesideOtherLanesIsMadeAgainAlone(t *testing.T) {
	w := newWorld(t)
	// given a message whose row makes it go by itself, and a process that dies with its last attempt
	w.publish("{}", "innocent")
	w.rows(dedup.Failed, w.cfg.MaxAttempts-1, "", "innocent")
	w.crashAt(consumer.PointClaimed)
	w.exec("UPDATE consumer_log SET consumer_timestamp = UTC_TIMESTAMP(6) - INTERVAL 1 HOUR")
	w.start()
	w.applied("innocent")
	if row := w.row("innocent"); row.Attempts != w.cfg.MaxAttempts || !row.RunsAlone() {
		t.Errorf("it is %+v, want its last attempt, marked", row)
	}
}

// Given five messages with which a process died, and to whose rows since happened, among thirty others.
func TestWhatMayHaveKilledAProcessRunsWhileNothingElseDoes(t *testing.T) {
	each(t, map[string]string{
		"its lease is over":      "",
		"it failed since":        "UPDATE consumer_log SET consumer_status = 2, owner = 'host/1/2/3/4/alone'",
		"its last is taken back": "UPDATE consumer_log SET consumer_times = 3, owner = 'host/1/2/3/4/group'",
	}, func(t *testing.T, w *world, since string) {
		w.cfg.Lanes, w.cfg.BatchSize, w.cfg.BatchLinger, w.cfg.Prefetch = 4, 1, 0, 1 // so that all lanes have work
		var claimed, ordinary, takeovers atomic.Int32
		second := make(chan struct{})
		w.handler = consumer.Each(func(_ context.Context, tx *gorm.DB, m consumer.Message) error {
			if m.Attempt == 0 {
				return errors.New("not in the fast path")
			}
			claimed.Add(1)
			defer claimed.Add(-1)
			if strings.HasPrefix(m.Key, "crashed") {
				takeovers.Add(1)
				<-time.After(30 * time.Millisecond)
				is(w, "messages are claimed while a lease is taken over", claimed.Load(), 1)
			} else if n := ordinary.Add(1); n == 1 { // ordinary claims do not wait for each other: another one comes
				select {
				case <-second:
				case <-time.After(20 * time.Second):
					t.Error("no second claim came while the first was held")
				}
			} else if n == 2 {
				close(second)
			}
			return insert(tx, m.Key)
		})
		died, fine := keys("crashed", 5), keys("order", 30)
		w.crashed(1, died...)
		if since != "" {
			w.exec(since)
		}
		before := w.row(died[0]).Attempts
		w.startWith(fine[:15]...)
		await(t, second, "two ordinary claims are held at once")
		w.publish("{}", died...)
		w.publish("{}", fine[15:]...)
		all := append(died, fine...)
		w.applied(all...)
		is(w, "takeovers", takeovers.Load(), 5)
		w.wantRow(died[0], wanted{Attempts: min(before+1, w.cfg.MaxAttempts)})
	})
}

func TestALastAttemptThatNeverCameBackIsALetter(t *testing.T) {
	type one struct {
		dies consumer.Point // an engine before dies here
	}
	each(t, map[string]one{
		"at once": {},
		"by an engine that comes after one that died before the row said so": {dies: consumer.PointLetter},
	}, func(t *testing.T, w *world, tc one) {
		w.crashed(w.cfg.MaxAttempts, "poison")
		w.publish("{}", "poison")
		if tc.dies != "" {
			w.crashAt(tc.dies)
		}
		w.start()
		w.ended(dedup.Dead, "poison")
		w.quiet()
		row := w.row("poison")
		if row.Reason != "crashed" || row.Attempts != 3 || !strings.Contains(row.Remark, "a process that died") {
			t.Errorf("dead after %d attempts because %q: %q; want 3, crashed, by whom", row.Attempts, row.Reason, row.Remark)
		}
		if w.times("poison") > 0 {
			t.Error("the handler has seen it once more")
		}
		if letter := w.letter(); letter.Headers["x-rollbackd-reason"] != "crashed" {
			t.Errorf("the letter's reason is %v, want crashed", letter.Headers["x-rollbackd-reason"])
		}
	})
}

func TestALiveLeaseIsLeftAlone(t *testing.T) {
	w := newWorld(t)
	w.cfg.Lease = 2500 * time.Millisecond
	w.records = w.log(w.open(w.dsn))
	key := id("busy")
	w.publish("{}", "busy")
	began := time.Now()
	if _, err := w.records.Claim(t.Context(), w.row("busy"), dedup.Entry{Identity: key}, "another"); err != nil {
		t.Fatal(err)
	}
	w.start()
	w.ended(dedup.Success, "busy")
	if took := time.Since(began); took < w.cfg.Lease {
		t.Errorf("taken over after %v, before the lease of %v was over", took, w.cfg.Lease)
	}
	w.quiet()
	w.wantRow("busy", wanted{Attempts: 2})
	if got := w.outcomes(); got["in_progress"] == 0 || got["applied"] != 1 || len(got) != 2 {
		t.Errorf("outcomes %v, want 1 applied, and in_progress", got)
	}
}

func TestAWorkerThatLostItsLeaseCommitsNothing(t *testing.T) {
	w := newWorld(t)
	w.cfg.Lanes = 1
	w.crashed(1, "slow") // so that it is claimed
	w.publish("{}", "slow")
	_, release := w.into(consumer.PointClaimed, w.start)
	w.exec("UPDATE consumer_log SET owner = 'another', consumer_times = 3") // as a takeover does
	release()
	w.eventually("the lease is lost", func() bool { return w.outcomes()["lease_lost"] == 1 })
	w.want("effects", w.effects(), map[string]int{})
	w.exec("UPDATE consumer_log SET consumer_timestamp = UTC_TIMESTAMP(6) - INTERVAL 1 HOUR")
	w.ended(dedup.Dead, "slow") // whoever took it over died too
}

func TestALetterMovedByHand(t *testing.T) {
	w := newWorld(t)
	cause := errors.New("already shipped")
	w.rejecting("key", func() error {
		if cause != nil {
			return consumer.Permanent(cause)
		}
		return nil
	})
	move := func(d stack.Delivery) {
		w.broker.Publish("", w.cfg.Queue, stack.Message{
			MessageId: d.MessageId, Type: d.Type, Headers: d.Headers, Body: d.Body, DeliveryMode: 2,
		})
	}
	w.startWith("key")
	w.ended(dedup.Dead, "key")
	w.quiet()
	// when its letter is moved while the cause is still there, then it is dead again, with a letter of its own
	first := w.letter()
	move(first)
	w.eventually("dead again", func() bool { r := w.row("key"); return r.Status == dedup.Dead && r.Replays == 1 })
	w.quiet()
	second := w.letter()
	// when the older letter or a plain re-send comes, then neither reopens anything
	move(first)
	w.publish("{}", "key")
	w.eventually("both are seen", func() bool { return w.outcomes()["duplicate_of_dead"] == 2 })
	// when the cause is mended, then the letter is processed
	w.mu.Lock()
	cause = nil
	w.mu.Unlock()
	move(second)
	w.applied("key")
	w.wantRow("key", wanted{Replays: 2, Attempts: 1})
	w.end(map[string]int{"dead_lettered": 2, "duplicate_of_dead": 2, "applied": 1})
}

func TestTheBrakeHoldsABrokenDeployment(t *testing.T) {
	w := newWorld(t)
	w.cfg.MaxDead, w.cfg.MaxDeadWindow, w.cfg.BrakePause = 30, time.Minute, 3*time.Second
	b := w.breaks(fails["permanent"])
	all := keys("order", 1000)
	r := w.startWith(all...)
	w.paused(r, "max_dead_rate")
	if paused := w.counts("rollbackd_paused"); paused["max_dead_rate"] != 1 {
		t.Errorf("paused: %v", paused)
	}
	if n := w.dead(); n > 30 {
		t.Errorf("%d letters before the pause, want at most 30", n)
	}
	if r.State().Consuming {
		t.Error("it consumes")
	}
	// when the pause is over and nothing is mended, then at most as many more
	w.eventually("it has tried again", func() bool { return w.dead() > 30 && waitsFor(r, "max_dead_rate") })
	if n := w.dead(); n > 60 {
		t.Errorf("%d letters after the second pause, want at most 60", n)
	}
	b.mended.Store(true)
	w.eventually("the rest is applied", func() bool { return len(w.effects())+w.dead() == 1000 })
	w.recovered(r)
	w.quiet()
	is(w, "rows are neither applied nor dead",
		w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status NOT IN (1, 3)"), 0)
}

func TestALetterMovedByHandBeforeItsRowSaysDeadIsNotLost(t *testing.T) {
	w := newWorld(t)
	w.cfg.Lease = time.Minute
	w.declare()
	// given a worker that has confirmed a letter and has yet to mark its row dead
	id := id("key")
	rows := must(w.records.LookUp(t.Context(), []dedup.Identity{id}))(t)
	entry := dedup.Entry{Identity: id, BodyHash: sha256.Sum256([]byte("{}")), MessageID: "key", Body: []byte("{}")}
	claim := must(w.records.Claim(t.Context(), rows[id], entry, "the worker"))(t)
	// when somebody moves that letter to the main queue, and an engine meets it while the lease lives
	w.publishMessages(rabbit.Message{MessageID: "key", Body: []byte("{}"), Headers: rabbit.Table{
		wire.HeaderReason: "permanent", wire.HeaderDeadAt: "2026-11-21T00:00:00.000Z",
	}})
	w.start()
	w.eventually("the letter waits for the lease", func() bool { return w.outcomes()["in_progress"] > 0 })
	// and then the worker marks the row dead
	ok(t, w.records.Dead(t.Context(), claim.Row(), entry, "permanent", "no retry helps"))
	// then the letter, the only one there is, is processed
	w.eventually("the row says success", func() bool { return w.row("key").Status == dedup.Success })
	w.want("effects", w.effects(), once("key"))
}

// Each return of a message costs it one of the main queue's delivery limit. An outage of a night must not use that up.
func TestALongOutageChargesDeliveriesToAFewMessagesOnly(t *testing.T) {
	w := newWorld(t)
	w.cfg.Lanes, w.cfg.BatchSize, w.cfg.GiveBackAfter = 4, 15, 100*time.Millisecond
	var mu sync.Mutex
	counts := map[string]int64{}
	handle := w.handler
	w.handler = consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
		err := handle.Handle(ctx, tx, msgs)
		mu.Lock()
		defer mu.Unlock()
		for _, m := range msgs {
			counts[m.Key], _ = rabbit.Int(m.Headers["x-delivery-count"])
		}
		return err
	})
	all := keys("order", 60)
	w.publish("{}", all...)
	// given a table that is missing, although MySQL and the log are well, for longer than the deliveries are kept
	w.exec("RENAME TABLE effect TO gone")
	r := w.start()
	w.eventually("they were given back five times", func() bool {
		return strings.Count(w.logs.String(), `msg="deliveries given back"`) >= 5
	})
	w.exec("RENAME TABLE gone TO effect")
	w.recovered(r)
	w.applied(all...)
	mu.Lock()
	defer mu.Unlock()
	often := 0
	for _, n := range counts {
		if n > 2 {
			often++
		}
	}
	if often > 2*w.cfg.Lanes { // the same few, if what comes back finds its place at the head of the queue
		t.Errorf("%d messages were delivered more than twice before, want no more than two per lane: %v", often, counts)
	}
	if counts["order-0059"] != 1 {
		t.Errorf("the last message was delivered %d times before, want once: every end of a session charges it once at most",
			counts["order-0059"])
	}
	is(w, "letters", w.dead(), 0)
}

func TestAClaimWhoseAnswerNeverCameIsGivenBack(t *testing.T) {
	w := newWorld(t)
	w.oneBatch(1)
	w.cfg.GiveBackAfter, w.cfg.Lease, w.redisURL = 150*time.Millisecond, 3*time.Second, ""
	w.crashed(1, "key")
	w.publish("{}", "key")
	l := w.proxied()
	// given a claim that is committed, its answer lost, and MySQL out of reach for longer than the delivery is kept
	claimed := false
	committed := nthCommit(1)
	l.mysql.DropReply(func(piece []byte) bool {
		claimed = claimed || committed(piece)
		return claimed
	})
	var reachable atomic.Bool
	for range 100 {
		l.mysql.DropRequest(func([]byte) bool { return claimed && !reachable.Load() })
	}
	r := w.start()
	w.eventually("the delivery is given back", func() bool { return w.outcomes()["abandoned"] == 1 })
	reachable.Store(true)
	w.ended(dedup.Success, "key")
	w.recovered(r)
	w.end(map[string]int{"applied": 1, "abandoned": 1})
	// then the claim that never ran is no attempt: one crashed, one succeeded
	w.wantRow("key", wanted{Attempts: 2})
}

func TestAnAttemptThatADependencyEndedIsNone(t *testing.T) {
	w := newWorld(t)
	w.oneBatch(1)
	w.cfg.GiveBackAfter, w.cfg.Lease = 100*time.Millisecond, time.Hour // so that nobody takes it over
	w.exec("RENAME TABLE effect TO gone")
	w.publish("{}", "key")
	w.failedOnce("key")
	w.start()
	w.eventually("it was claimed and given back", func() bool {
		row := w.row("key")
		return w.outcomes()["abandoned"] > 0 && row.Status == dedup.Failed && row.Attempts == 1 && row.Owner != ""
	})
	w.exec("RENAME TABLE gone TO effect")
	w.ended(dedup.Success, "key")
	w.wantRow("key", wanted{Attempts: 2})
}

// Given a server on which each COMMIT is lost, while it answers everything else, when that lasts, then the deliveries
// are given back as for any other server that is away, and tried with few in hand.
func TestWhatCannotBeCommittedIsGivenBack(t *testing.T) {
	w := newWorld(t)
	w.cfg.Lanes, w.cfg.GiveBackAfter = 1, 100*time.Millisecond
	l := w.proxied()
	var failing atomic.Bool
	failing.Store(true)
	for range 1000 { // each springs once
		l.mysql.DropRequest(func(piece []byte) bool { return failing.Load() && bytes.HasSuffix(piece, commit) })
	}
	all := keys("order", 20)
	r := w.startWith(all...)
	w.logged(`msg="deliveries given back"`)
	failing.Store(false)
	w.recovered(r)
	w.applied(all...)
}

// blockedCommits is a world on whose server statements pass and no COMMIT does, as a backup of
// MariaDB has it, with rows of these messages.
func blockedCommits(t *testing.T, failedOnce ...string) (w *world, free func()) {
	t.Parallel()
	w = newWorldOn(t, servers{mysql: stack.OwnMySQL(t)}) // the lock is on the whole server
	w.cfg.Lanes, w.cfg.GiveBackAfter = 1, time.Second
	w.failedOnce(failedOnce...)
	other := w.conn()
	if _, err := other.ExecContext(t.Context(), "BACKUP STAGE START"); err != nil {
		t.Skipf("only MariaDB has such a lock: %v", err)
	}
	w.execOn(other, "BACKUP STAGE BLOCK_COMMIT")
	return w, func() { w.execOn(other, "BACKUP STAGE END") }
}

// Given a lock under which statements pass and no COMMIT does, as a backup of MariaDB takes it, when that lasts, then
// the messages come back later at no cost, and no lane keeps them for ever.
func TestCommitsThatWaitForALockCostNoAttempt(t *testing.T) {
	fresh, claimed := keys("fresh", 8), keys("claimed", 2)
	w, free := blockedCommits(t, claimed...)
	r := w.startWith(fresh...)
	w.eventually("all have come back once", func() bool { return w.outcomes()["in_progress"] >= len(fresh) })
	w.publish("{}", claimed...)
	if !contendedWith(r) {
		t.Errorf("it does not say that it waits for locks: %v", r.State())
	}
	free()
	w.costNothing(fresh, claimed, r)
}

// Given the same lock, when claims wait for it, then that is contention too, and not a server that is away.
func TestClaimsThatCannotBeCommittedForALockAreContention(t *testing.T) {
	claimed := keys("claimed", 3)
	w, free := blockedCommits(t, claimed...)
	r := w.startWith(claimed...)
	w.logged(`msg="deliveries given back"`)
	free()
	w.costNothing(nil, claimed, r)
	if strings.Contains(w.logs.String(), "waiting for mysql") {
		t.Errorf("a lock was taken for a server that is away:\n%s", w.logs)
	}
}
