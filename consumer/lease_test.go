package consumer_test

import (
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
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// crashed leaves rows as a process leaves them that died so many times in its attempts.
func (w *world) crashed(times int, keys ...string) {
	w.t.Helper()
	for _, k := range keys {
		w.exec(`INSERT INTO consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times, owner,
			consumer_timestamp, created_at)
			VALUES (?, ?, ?, 0, ?, 'a process that died', UTC_TIMESTAMP(6) - INTERVAL 1 HOUR, UTC_TIMESTAMP(6))`, group, tag,
			k, times)
	}
}

// A process died in the last attempt of two messages. Who was claimed by itself has most likely killed it. Who was
// claimed together with others is given that attempt back, once, and makes it alone.
func TestTheLastAttemptOfAMessageThatWasClaimedWithOthersIsMadeAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.crashed(w.cfg.MaxAttempts, "by itself", "innocent", "guilty")
	w.exec("UPDATE consumer_log SET owner = CONCAT('host/1/2/3/4', ?) WHERE msg_key <> 'by itself'", dedup.MarkGroup)
	w.rejecting("guilty", func() error { return errors.New("shelf is locked") })
	w.publish("{}", "by itself", "innocent", "guilty")
	w.start()
	w.ended(dedup.Success, "innocent")
	w.ended(dedup.Dead, "by itself", "guilty")
	w.quiet()
	w.want("effects", w.effects(), once("innocent"))
	for k, want := range map[string]dedup.Reason{"by itself": dedup.ReasonCrashed, "guilty": dedup.ReasonExhausted} {
		if row := w.row(k); row.Reason != want || row.Attempts != w.cfg.MaxAttempts {
			t.Errorf("%s is dead after %d attempts because %q, want %d, %q", k, row.Attempts, row.Reason, w.cfg.MaxAttempts,
				want)
		}
	}
	if row := w.row("innocent"); row.Attempts != w.cfg.MaxAttempts || !row.RunsAlone() {
		t.Errorf("the innocent one is %+v, want its last attempt, marked", row)
	}
}

// Beside an attempt of one message other lanes are at work, and what they run may kill the process.
func TestALastAttemptBesideOtherLanesIsMadeAgainAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	// given a message whose row makes it go by itself, and a process that dies with its last attempt
	w.publish("{}", "innocent")
	w.exec(`INSERT INTO consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times, consumer_timestamp,
		created_at)
		VALUES (?, ?, 'innocent', 2, ?, UTC_TIMESTAMP(6) - INTERVAL 1 HOUR, UTC_TIMESTAMP(6))`, group, tag,
		w.cfg.MaxAttempts-1)
	w.crashAt(consumer.PointClaimed)
	w.exec("UPDATE consumer_log SET consumer_timestamp = UTC_TIMESTAMP(6) - INTERVAL 1 HOUR")
	w.start()
	w.ended(dedup.Success, "innocent")
	w.want("effects", w.effects(), once("innocent"))
	if row := w.row("innocent"); row.Attempts != w.cfg.MaxAttempts || !row.RunsAlone() {
		t.Errorf("it is %+v, want its last attempt, marked", row)
	}
}

func TestWhatMayHaveKilledAProcessRunsWhileNothingElseDoes(t *testing.T) {
	t.Parallel()
	for name, since := range map[string]string{
		"its lease is over":      "",
		"it failed since":        "UPDATE consumer_log SET consumer_status = 2, owner = 'host/1/2/3/4/alone'",
		"its last is taken back": "UPDATE consumer_log SET consumer_times = 3, owner = 'host/1/2/3/4/group'",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runsWhileNothingElseDoes(t, since)
		})
	}
}

// runsWhileNothingElseDoes has five messages with which a process died, and to whose rows since happened, and thirty
// others.
func runsWhileNothingElseDoes(t *testing.T, since string) {
	t.Helper()
	w := newWorld(t)
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
			if n := claimed.Load(); n != 1 {
				t.Errorf("%d messages are claimed while a lease is taken over", n)
			}
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
	w.publish("{}", fine[:15]...)
	w.start()
	await(t, second, "two ordinary claims are held at once")
	w.publish("{}", died...)
	w.publish("{}", fine[15:]...)
	all := append(died, fine...)
	w.ended(dedup.Success, all...)
	w.want("effects", w.effects(), once(all...))
	if n := takeovers.Load(); n != 5 {
		t.Errorf("%d takeovers, want 5", n)
	}
	if row := w.row(died[0]); row.Attempts != min(before+1, w.cfg.MaxAttempts) {
		t.Errorf("%d attempts, want one more than %d: the crash counts, unless it was the last one", row.Attempts, before)
	}
}

func TestALastAttemptThatNeverCameBackIsALetter(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		dies consumer.Point // an engine before dies here
	}{
		"at once": {},
		"by an engine that comes after one that died before the row said so": {dies: consumer.PointLetter},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
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
}

func TestALiveLeaseIsLeftAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.Lease = 2500 * time.Millisecond
	w.records = w.log(w.open(w.dsn))
	key := dedup.Identity{Group: group, Tag: tag, Key: "busy"}
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
	if row := w.row("busy"); row.Attempts != 2 {
		t.Errorf("%d attempts, want 2", row.Attempts)
	}
	if got := w.outcomes(); got["in_progress"] == 0 || got["applied"] != 1 || len(got) != 2 {
		t.Errorf("outcomes %v, want 1 applied, and in_progress", got)
	}
}

func TestAWorkerThatLostItsLeaseCommitsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.Lanes = 1
	w.crashed(1, "slow") // so that it is claimed
	w.publish("{}", "slow")
	reached, release := w.blockAt(consumer.PointClaimed)
	w.start()
	await(t, reached, "it is claimed")
	w.exec("UPDATE consumer_log SET owner = 'another', consumer_times = 3") // as a takeover does
	release()
	w.eventually("the lease is lost", func() bool { return w.outcomes()["lease_lost"] == 1 })
	w.want("effects", w.effects(), map[string]int{})
	w.exec("UPDATE consumer_log SET consumer_timestamp = UTC_TIMESTAMP(6) - INTERVAL 1 HOUR")
	w.ended(dedup.Dead, "slow") // whoever took it over died too
}

func TestALetterMovedByHand(t *testing.T) {
	t.Parallel()
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
	w.publish("{}", "key")
	w.start()
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
	w.ended(dedup.Success, "key")
	w.want("effects", w.effects(), once("key"))
	if row := w.row("key"); row.Replays != 2 || row.Attempts != 1 {
		t.Errorf("%d replays, %d attempts; want 2 and 1", row.Replays, row.Attempts)
	}
	w.end(map[string]int{"dead_lettered": 2, "duplicate_of_dead": 2, "applied": 1})
}

func TestTheBrakeHoldsABrokenDeployment(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.MaxDead, w.cfg.MaxDeadWindow, w.cfg.BrakePause = 30, time.Minute, 3*time.Second
	var broken atomic.Bool
	broken.Store(true)
	handle := w.handler
	w.handler = consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
		if broken.Load() {
			var all []consumer.BlamedMessage
			for i := range msgs {
				all = append(all, consumer.BlamedMessage{Index: i, Err: consumer.Permanent(errors.New("no such column"))})
			}
			return consumer.Blame(all...)
		}
		return handle.Handle(ctx, tx, msgs)
	})
	all := keys("order", 1000)
	w.publish("{}", all...)
	r := w.start()
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
	broken.Store(false)
	w.eventually("the rest is applied", func() bool { return len(w.effects())+w.dead() == 1000 })
	w.recovered(r)
	w.quiet()
	if n := w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status NOT IN (1, 3)"); n != 0 {
		t.Errorf("%d rows are neither applied nor dead", n)
	}
}

func TestALetterMovedByHandBeforeItsRowSaysDeadIsNotLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.Lease = time.Minute
	w.declare()
	// given a worker that has confirmed a letter and has yet to mark its row dead
	id := dedup.Identity{Group: group, Tag: tag, Key: "key"}
	rows, err := w.records.LookUp(t.Context(), []dedup.Identity{id})
	if err != nil {
		t.Fatal(err)
	}
	entry := dedup.Entry{Identity: id, BodyHash: sha256.Sum256([]byte("{}")), MessageID: "key", Body: []byte("{}")}
	claim, err := w.records.Claim(t.Context(), rows[id], entry, "the worker")
	if err != nil {
		t.Fatal(err)
	}
	// when somebody moves that letter to the main queue, and an engine meets it while the lease lives
	w.publishMessages(rabbit.Message{MessageID: "key", Body: []byte("{}"), Headers: rabbit.Table{
		wire.HeaderReason: "permanent", wire.HeaderDeadAt: "2026-11-21T00:00:00.000Z",
	}})
	w.start()
	w.eventually("the letter waits for the lease", func() bool { return w.outcomes()["in_progress"] > 0 })
	// and then the worker marks the row dead
	if err := w.records.Dead(t.Context(), claim.Row(), entry, "permanent", "no retry helps"); err != nil {
		t.Fatal(err)
	}
	// then the letter, the only one there is, is processed
	w.eventually("the row says success", func() bool { return w.row("key").Status == dedup.Success })
	w.want("effects", w.effects(), once("key"))
}
