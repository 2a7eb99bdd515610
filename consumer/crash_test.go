package consumer_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wire"
)

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
	w.recovered(r)
	w.died(letters...)
	w.end(map[string]int{"dead_lettered": 5})
	w.want("letters by reason", w.counts("rollbackd_dead_lettered_total"), map[string]int{"permanent": 5})
}

// crashed leaves rows as a process leaves them that died so many times in its attempts.
func (w *world) crashed(times int, keys ...string) {
	w.t.Helper()
	w.rows(dedup.Processing, times, "a process that died", keys...)
}

// Given a process that died with the last attempt of a message by itself, beside which other lanes were at work, or
// with the last calls of three, any of which may have killed it: they are made again, alone.
func TestALastAttemptBesideOthersIsMadeAgainAlone(t *testing.T) {
	each(t, map[string]int{"a transaction": 1, "calls": 3}, func(t *testing.T, w *world, n int) {
		all := keys("innocent", n)
		w.publish("{}", all...)
		if n == 1 { // its row makes it go by itself
			w.rows(dedup.Failed, w.cfg.MaxAttempts-1, "", all...)
		} else {
			w.oneBatch(n)
			s := w.calling(consumer.CallOptions{})
			defer func() { w.want("calls", s.calls.of(), once(all...)) }()
		}
		w.crashAt(consumer.PointClaimed)
		w.exec("UPDATE consumer_log SET consumer_times = ?, consumer_timestamp = UTC_TIMESTAMP(6) - INTERVAL 1 HOUR",
			w.cfg.MaxAttempts)
		w.start()
		w.ended(dedup.Success, all...)
		w.wantRows(wanted{Attempts: w.cfg.MaxAttempts, Alone: true}, all...)
	})
}

// Given a process that died with the calls of many, one of which may have killed it, when one daemon, or two, come
// after it, then they take them over several at a time, while nothing else of a process is called.
func TestWhatWasClaimedWithOthersIsTakenOverTogether(t *testing.T) {
	each(t, named(1, 2), func(t *testing.T, w *world, daemons int) {
		died, fine := keys("died", 12), keys("fine", 12)
		w.oneBatch(len(died))
		s := w.calling(consumer.CallOptions{})
		w.publish("{}", died...)
		w.crashAt(consumer.PointClaimed)
		w.exec("UPDATE consumer_log SET consumer_timestamp = UTC_TIMESTAMP(6) - INTERVAL 1 HOUR") // so the leases are over
		w.cfg.Lanes, w.cfg.BatchSize, w.cfg.Prefetch = 2, len(died)/daemons, len(died)/daemons
		var orphans, others atomic.Int32
		second := make(chan struct{})
		s.answering(func(_ context.Context, m consumer.Message) error {
			if m.Attempt == 1 {
				others.Add(1)
				defer others.Add(-1)
				<-time.After(time.Millisecond)
				return nil
			}
			if orphans.Add(1) == 2 {
				close(second)
			}
			w.meets(second, "two are called for at the same time")
			if daemons == 1 {
				is(w, "calls of others meanwhile", others.Load(), 0)
			}
			return nil
		})
		for range daemons {
			w.start()
		}
		w.publish("{}", fine...)
		w.ended(dedup.Success, append(died, fine...)...)
		w.want("calls", s.calls.of(), once(append(died, fine...)...))
		w.wantRows(wanted{Attempts: 2}, died...)
	})
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
		w.doing(func(_ *gorm.DB, m consumer.Message) error {
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
				w.meets(second, "a second claim comes while the first is held")
			} else if n == 2 {
				close(second)
			}
			return nil
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
	// at once, and by an engine that comes after one that died before the row said so
	each(t, named("", consumer.PointLetter), func(t *testing.T, w *world, dies consumer.Point) {
		w.hasty()
		w.crashed(w.cfg.MaxAttempts, "poison")
		w.publish("{}", "poison")
		if dies != "" {
			w.crashAt(dies)
		}
		w.start()
		w.ended(dedup.Dead, "poison")
		w.quiet()
		w.wantRow("poison", wanted{Attempts: 3, Reason: "crashed", Says: "a process that died"})
		is(w, "calls", w.times("poison"), 0)
		is(w, "the letter's reason", w.letter().Headers["x-rollbackd-reason"], "crashed")
	})
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
	w.hopeless("key")
	w.startWith("key")
	w.ended(dedup.Dead, "key")
	w.quiet()
	// when its letter is moved while the cause is still there, then it is dead again, with a letter of its own
	first := w.letter()
	w.move(first, w.cfg.Queue)
	w.eventually("dead again", func() bool { r := w.row("key"); return r.Status == dedup.Dead && r.Replays == 1 })
	w.quiet()
	second := w.letter()
	// when the older letter or a plain re-send comes, then neither reopens anything
	w.move(first, w.cfg.Queue)
	w.publish("{}", "key")
	w.eventually("both are seen", func() bool { return w.outcomes()["duplicate_of_dead"] == 2 })
	// when the cause is mended, then the letter is processed
	w.rejecting("key", nil)
	w.move(second, w.cfg.Queue)
	w.applied("key")
	w.wantRow("key", wanted{Replays: 2, Attempts: 1})
	w.end(map[string]int{"dead_lettered": 2, "duplicate_of_dead": 2, "applied": 1})
}

func TestALetterMovedByHandBeforeItsRowSaysDeadIsNotLost(t *testing.T) {
	w := newWorld(t)
	w.cfg.Lease = time.Minute
	// given a worker that has confirmed a letter and has yet to mark its row dead
	entry := dedup.Entry{Identity: id("key"), BodyHash: sha256.Sum256([]byte("{}")), MessageID: "key", Body: []byte("{}")}
	claim := require.Get(w.records.Claim(t.Context(), w.row("key"), entry, "the worker"))(t)
	// when somebody moves that letter to the main queue, and an engine meets it while the lease lives
	w.publishMessages(rabbit.Message{MessageID: "key", Body: []byte("{}"), Headers: rabbit.Table{
		wire.HeaderReason: "permanent", wire.HeaderDeadAt: "2026-11-21T00:00:00.000Z",
	}})
	w.start()
	w.eventually("the letter waits for the lease", func() bool { return w.outcomes()["in_progress"] > 0 })
	// and then the worker marks the row dead
	require.OK(t, w.records.Dead(t.Context(), claim.Row(), entry, "permanent", "no retry helps"))
	// then the letter, the only one there is, is processed
	w.applied("key")
}

func TestAClaimWhoseAnswerNeverCameIsGivenBack(t *testing.T) {
	w := newWorld(t)
	w.hasty()
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

// Given a lock under which statements pass and no COMMIT does, as a backup of MariaDB takes it, when that lasts, then
// messages and claims come back later at no cost, and no lane keeps them for ever: that is contention, and not a server
// that is away.
func TestCommitsThatWaitForALockCostNoAttempt(t *testing.T) {
	t.Parallel()
	w := newWorldOn(t, servers{mysql: stack.OwnMySQL(t)}) // the lock is on the whole server
	w.cfg.Lanes, w.cfg.GiveBackAfter = 1, time.Second
	fresh, claimed := keys("fresh", 8), keys("claimed", 3)
	w.failedOnce(claimed...)
	other := w.conn()
	if _, err := other.ExecContext(t.Context(), "BACKUP STAGE START"); err != nil {
		t.Skipf("only MariaDB has such a lock: %v", err)
	}
	w.execOn(other, "BACKUP STAGE BLOCK_COMMIT")
	r := w.startWith(fresh...)
	w.eventually("all have come back once", func() bool { return w.outcomes()["in_progress"] >= len(fresh) })
	assert.That(t, degraded(r, "contention"), "it does not say that it waits for locks: %v", r.State())
	w.publish("{}", claimed...)
	w.logged(`msg="deliveries given back"`)
	w.execOn(other, "BACKUP STAGE END")
	w.costNothing(fresh, claimed, r)
	w.unsaid("waiting for mysql")
}

func TestWhatTheBrokerGaveUpGetsARowAndALetterAndNoHandler(t *testing.T) {
	w := newWorld(t)
	w.hasty()
	validated := false
	w.handler = validating{w.handler, func(*consumer.Message) error { validated = true; return errors.New("refused") }}
	w.declare()
	w.claim("crashing")
	w.publishInto(w.backstop(), "unknown", "unknown", "crashing", "")
	w.start()
	w.ended(dedup.Dead, "unknown", "crashing")
	w.end(map[string]int{"dead_lettered": 3, "duplicate_of_dead": 1})
	w.quiet()
	w.want("letters", w.counts("rollbackd_dead_lettered_total"), map[string]int{"delivery_limit": 3})
	for range 3 {
		assert.Is(t, w.letter().Headers["x-rollbackd-reason"], "delivery_limit", "a letter has the reason")
	}
	w.wantRow("unknown", wanted{Reason: "delivery_limit",
		Remark: "moved to " + w.backstop() + ", not by RabbitMQ's account of it"})
	assert.That(t, !validated && w.times("unknown") == 0, "the handler has seen it")
}

func TestWhatTheBrokerGaveUpIsJudgedByItsRow(t *testing.T) {
	w := newWorld(t)
	w.hopeless("dead")
	w.startWith("done", "dead")
	w.ended(dedup.Success, "done")
	w.ended(dedup.Dead, "dead")
	w.quiet()
	backstop := w.backstop()
	// given the letter of a dead row, moved by hand and given up by the broker; an ordinary copy; one that is done;
	// another body
	letter := w.letter()
	w.move(letter, backstop)
	w.publishInto(backstop, "dead", "done")
	w.publishBody(backstop, "done", "other")
	w.end(map[string]int{"applied": 1, "duplicate": 1, "dead_lettered": 2, "duplicate_of_dead": 2})
	// then the row still has its letter, as it was
	found, since := map[any]string{}, map[any]any{}
	for range 2 {
		l := w.letter()
		reason := l.Headers["x-rollbackd-reason"]
		found[reason], since[reason] = string(l.Body), l.Headers["x-rollbackd-dead-at"]
	}
	assert.Is(t, since["permanent"], letter.Headers["x-rollbackd-dead-at"], "the letter says it is dead since")
	assert.That(t, found["permanent"] == "{}" && found["delivery_limit"] == "other", "letters %v", found)
	w.want("effects", w.effects(), once("done"))
}

// An operator's policy may take messages off the main queue or refuse them: none of it loses one, and letters say what
// happened.
func TestPoliciesOnTheMainQueueLoseNothing(t *testing.T) {
	w := newWorld(t)
	w.declare()
	// given a policy that lets messages expire while nobody consumes
	w.broker.Policy("ttl-"+w.cfg.Queue, w.cfg.Queue, map[string]any{"message-ttl": 500})
	gone := keys("gone", 5)
	w.publishInto(w.cfg.Queue, gone...)
	w.eventually("they are in the backstop", func() bool { return w.broker.Depth(w.backstop()) == len(gone) })
	// then, when policies limit deliveries and length, each is a letter that says so, and the others are applied
	w.broker.Policy("ttl-"+w.cfg.Queue, w.cfg.Queue, map[string]any{
		"delivery-limit": 5, "max-length": 1000, "overflow": "drop-head",
	})
	w.start()
	w.publish("{}", keys("good", 50)...)
	w.rests(keys("good", 50), gone...)
	told := w.number(`SELECT COUNT(*) FROM consumer_log WHERE reason = 'delivery_limit' AND remark LIKE
		'taken off %by RabbitMQ: expired%'`)
	is(w, "rows that say that their messages expired", told, len(gone))
	w.broker.Policy("ttl-"+w.cfg.Queue, w.cfg.Queue, nil)
}

// A letter that was moved by hand into the backstop behind a message whose lease lives is acked with its copy, not
// after that lease: each restart would make another letter of it.
func TestALetterInTheBackstopDoesNotMultiply(t *testing.T) {
	w := newWorld(t)
	w.cfg.Lease = 30 * time.Second
	w.hopeless("dead")
	w.publish("{}", "dead")
	r := w.launch()
	w.ended(dedup.Dead, "dead")
	w.quiet()
	require.OK(t, r.drained())
	letter := w.letter()
	w.claim("busy")
	backstop := w.backstop()
	w.publishInto(backstop, "busy")
	w.move(letter, backstop)
	for range 2 {
		r := w.launch()
		w.eventually("the letter is back and acked", func() bool {
			return w.dead() == 1 && w.broker.Unacked(backstop) == 1 && w.broker.Depth(backstop) <= 1
		})
		require.OK(t, r.drained())
		is(w, "letters of one row", w.dead(), 1)
	}
}

// killer is a body that ends each connection on which it comes: the proxy cuts it, as a filter on the way may.
const killer = `{"order_sn":"killer"}`

func (w *world) publishBody(queue, key, body string) {
	w.t.Helper()
	w.broker.Publish("", queue, stack.Message{MessageId: key, Type: tag, Body: []byte(body),
		DeliveryMode: rabbit.Persistent})
}

// Given a message that ends each connection on which it comes, in the backstop or in the main queue, then what is in
// the other queue is ended by its first delivery, and the engine is at work, but says what is amiss until the way is
// free.
func TestWhatEndsAQueuesConnectionLeavesTheOtherQueueAlone(t *testing.T) {
	type one struct {
		queue, other   func(*world) string
		killer, others dedup.Status
		end            string
	}
	main := func(w *world) string { return w.cfg.Queue }
	each(t, map[string]one{
		"the backstop":   {(*world).backstop, main, dedup.Dead, dedup.Success, "applied"},
		"the main queue": {main, (*world).backstop, dedup.Success, dedup.Dead, "dead_lettered"},
	}, func(t *testing.T, w *world, tc one) {
		l := w.proxied()
		l.amqp.KillOn([]byte(killer))
		queue := tc.queue(w)
		w.declare()
		w.publishBody(queue, "killer", killer)
		r := w.start()
		w.eventually("it has ended three connections", func() bool { return l.amqp.Killed() >= 3 })
		all := keys("order", 60)
		w.publishInto(tc.other(w), all...)
		w.ended(tc.others, all...)
		killed := l.amqp.Killed()
		w.eventually("it goes on ending connections", func() bool { return l.amqp.Killed() > killed })
		w.end(map[string]int{tc.end: len(all)}) // none was abandoned
		if queue != w.cfg.Queue {               // the main queue's connection is never up for long in the other case
			w.recovered(r)
		}
		w.eventually("it says what is amiss", func() bool {
			return degraded(r, queue) && w.counts("rollbackd_degraded")[queue] > 0
		})
		l.amqp.KillOn(nil)
		w.ended(tc.killer, "killer")
		w.sound(r)
	})
}

// Given 300 good messages and among them one that ends each connection on which it comes, then it alone is charged
// until the delivery limit takes it away, the good ones are applied by their third delivery, and once it can be read it
// is a letter.
func TestADeliveryThatEndsConnectionsIsFoundAndStandsAlone(t *testing.T) {
	w := newWorld(t)
	w.declare()
	w.broker.Policy("nine", w.cfg.Queue, map[string]any{"delivery-limit": 9})
	l := w.proxied()
	l.amqp.KillOn([]byte(killer))
	w.doing(func(_ *gorm.DB, m consumer.Message) error {
		before, _ := rabbit.Int(m.Headers["x-delivery-count"])
		assert.AtMost(t, before, 2, "earlier deliveries of %s", m.Key)
		return nil
	})
	all := keys("order", 300)
	w.publish("{}", all[:120]...)
	w.publishBody(w.cfg.Queue, "killer", killer)
	r := w.startWith(all[120:]...)
	w.eventually("the engine says what is amiss", func() bool {
		return degraded(r, w.cfg.Queue) && w.counts("rollbackd_degraded")[w.cfg.Queue] == 1
	})
	w.ended(dedup.Success, all...)
	backstop := w.backstop()
	w.eventually("it is the backstop's trouble, and the main queue is cleared", func() bool {
		return degraded(r, backstop) && !degraded(r, w.cfg.Queue)
	})
	w.want("effects", w.effects(), once(all...))
	w.logged("queue=" + w.cfg.Queue)
	w.logged("one message is taken at a time")
	// and the main queue flows again
	w.publish("{}", "later")
	w.ended(dedup.Success, "later")
	l.amqp.KillOn(nil)
	w.ended(dedup.Dead, "killer")
	w.wantRow("killer", wanted{Reason: "delivery_limit", Says: "more often than its delivery limit allows"})
	w.sound(r)
}
