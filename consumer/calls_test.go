package consumer_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// shopService is somebody's service: it knows a message again by its key, and does what it was told to do.
type shopService struct {
	calls, applied tally                                                               // by key
	answer         atomic.Pointer[func(ctx context.Context, m consumer.Message) error] // before the effect
}

func (s *shopService) call(ctx context.Context, m consumer.Message) error {
	s.calls.add(m.Key)
	if answer := s.answer.Load(); answer != nil && *answer != nil {
		if err := (*answer)(ctx, m); err != nil {
			return err
		}
	}
	s.applied.add(m.Key)
	return nil
}

func (s *shopService) answering(f func(ctx context.Context, m consumer.Message) error) {
	s.answer.Store(&f)
}

// calling makes the world's handler one that calls a service.
func (w *world) calling(o consumer.CallOptions) *shopService {
	s := &shopService{}
	o.ProbeAfter = cmp.Or(o.ProbeAfter, 100*time.Millisecond)
	w.handler = consumer.Calls(s.call, o)
	return s
}

// calledOnce checks that there was one call for each, and one attempt.
func (w *world) calledOnce(s *shopService, all ...string) {
	w.t.Helper()
	w.want("calls", s.calls.of(), once(all...))
	w.want("attempts", w.attempts(all...), once(all...))
}

// beside lets other messages succeed, one after the other, until it is so.
func (w *world) beside(so func() bool) (sent []string) {
	w.t.Helper()
	for !so() {
		if sent = append(sent, fmt.Sprintf("beside-%04d", len(sent))); len(sent) > 2000 {
			w.t.Fatal("it is tried for ever")
		}
		w.publish("{}", sent[len(sent)-1])
		w.ended(dedup.Success, sent[len(sent)-1])
	}
	return sent
}

// attempts are the attempts in the rows of the keys.
func (w *world) attempts(keys ...string) map[string]int {
	w.t.Helper()
	got := map[string]int{}
	for _, k := range keys {
		got[k] = w.row(k).Attempts
	}
	return got
}

func TestEachMessageIsCalledForOnceAndItsCopiesNever(t *testing.T) {
	w := newWorld(t)
	s := w.calling(consumer.CallOptions{Concurrency: 8})
	var busy atomic.Int32
	s.answering(func(context.Context, consumer.Message) error {
		assert.AtMost(t, busy.Add(1), 8, "calls at a time")
		busy.Add(-1)
		return nil
	})
	all := keys("order", 100)
	w.publish("{}", all...)
	w.startWith(all...)
	w.settled(200)
	w.calledOnce(s, all...)
	w.ended(dedup.Success, all...)
	w.quiet()
	is(w, "rows of success that keep bodies", w.number("SELECT COUNT(*) FROM consumer_log WHERE msg_body IS NOT NULL"), 0)
	// and copies that come later, of which Redis knows nothing any more
	client, _ := w.redisOf()
	require.OK(t, client.FlushAll(t.Context()).Err())
	w.publish("{}", all[:50]...)
	w.settled(250)
	w.want("calls", s.calls.of(), once(all...))
}

// Given a service that answers one call in each way, then each has its attempts and its end, and the answers are
// counted by their words.
func TestACallThatFailsIsMadeMaxAttemptsTimes(t *testing.T) {
	w := newWorld(t)
	s := w.calling(consumer.CallOptions{})
	s.answering(func(_ context.Context, m consumer.Message) error {
		switch {
		case m.Key == "fails":
			return fmt.Errorf("attempt %d of %s: out of paper", m.Attempt, m.MessageID)
		case m.Key == "refused":
			return consumer.Permanent(errors.New("no such goods"))
		case m.Key == "panics":
			panic("oops")
		case m.Key == "later" && s.calls.of()[m.Key] == 1:
			return consumer.Later(errors.New("slow down"), time.Millisecond)
		}
		return nil
	})
	good := keys("good", 20)
	w.startWith(append(good, "fails", "refused", "panics", "later")...)
	w.ended(dedup.Success, append(good, "later")...)
	w.died("fails", "refused", "panics")
	want := once(append(good, "refused")...)
	want["fails"], want["panics"], want["later"] = 3, 3, 2
	w.want("calls", s.calls.of(), want)
	w.want("attempts", w.attempts("fails", "refused", "panics", "later"),
		map[string]int{"fails": 3, "refused": 1, "panics": 3, "later": 1})
	w.want("calls by answer", w.counts("rollbackd_calls_total"), map[string]int{
		"applied": 21, "permanent": 1, "failed": 6, "later": 1,
	})
	events := w.events("fails")
	is(w, "the last event says", events[len(events)-1].Error, "attempt 3 of fails: out of paper")
}

func TestAnAbsentServicePausesConsumingAndCostsNoAttempt(t *testing.T) {
	each(t, map[string]func(error) error{
		"unavailable": consumer.Unavailable, "unanswered": consumer.Unanswered, "misconfigured": consumer.Misconfigured,
	}, func(t *testing.T, w *world, answer func(error) error) {
		w.cfg.GiveBackAfter = 500 * time.Millisecond
		s := w.calling(consumer.CallOptions{Concurrency: 4, Timeout: time.Second, ProbeAfter: 300 * time.Millisecond})
		s.answering(func(context.Context, consumer.Message) error { return answer(errors.New("nobody is there")) })
		all := keys("order", 60)
		r := w.startWith(all...)
		w.paused(r, consumer.DependencyService)
		began := time.Now()
		w.logged(`msg="deliveries given back"`)
		asked := len(s.calls.of())
		w.eventually("others ask all the same", func() bool { return len(s.calls.of()) > asked+3 })
		if !waitsFor(r, consumer.DependencyService) {
			t.Errorf("state %+v, want the service among what is missing", r.State())
		}
		sum := 0
		for _, n := range s.calls.of() {
			sum += n
		}
		assert.AtMost(t, sum, 2*5+4+int(time.Since(began)/(300*time.Millisecond)), "calls of a service that is not there")
		assert.AtMost(t, w.number("SELECT COALESCE(MAX(consumer_times), 0) FROM consumer_log"), 1, "attempts")
		s.answering(nil)
		w.ended(dedup.Success, all...)
		w.recovered(r)
		w.want("effects", once(slices.Collect(maps.Keys(s.applied.of()))...), once(all...))
		w.want("attempts", w.attempts(all...), once(all...))
		is(w, "letters", w.dead(), 0)
	})
}

// Given a message for which the service is never there, or never answers, which may be its own fault or the message's:
// while others succeed, three such calls are an attempt.
func TestAMessageThatFindsTheServiceAbsentWhileOthersSucceedFails(t *testing.T) {
	type one struct {
		answer  func(context.Context) error
		timeout time.Duration
		calls   int // at least
		says    string
	}
	each(t, map[string]one{
		"absent": {func(context.Context) error { return consumer.Unavailable(errors.New("502")) }, time.Second, 6, "502"},
		"silent": {func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, 300 * time.Millisecond, 2,
			"perhaps applied"},
	}, func(t *testing.T, w *world, tc one) {
		w.cfg.MaxAttempts, w.cfg.RetryDelays = 2, w.cfg.RetryDelays[:1]
		s := w.calling(consumer.CallOptions{Timeout: tc.timeout})
		s.answering(func(ctx context.Context, m consumer.Message) error {
			if m.Key == "bad" {
				return tc.answer(ctx)
			}
			return nil
		})
		w.startWith("bad")
		w.beside(func() bool { return w.row("bad").Status == dedup.Dead })
		w.quiet()
		assert.AtLeast(t, s.calls.of()["bad"], tc.calls, "calls")
		w.wantRow("bad", wanted{Attempts: 2})
		events := w.events("bad")
		assert.Has(t, events[len(events)-1].Error, tc.says, "the last event says")
	})
}

func TestALetterOfACallThatNeverCameBackSaysPerhapsApplied(t *testing.T) {
	w := newWorld(t)
	w.hasty()
	w.cfg.MaxAttempts, w.cfg.RetryDelays = 1, w.cfg.RetryDelays[:1]
	w.calling(consumer.CallOptions{})
	w.publish("{}", "order")
	// given two processes that died between call and mark: beside the first call others may have run
	w.crashAt(consumer.PointEffect)
	w.crashAt(consumer.PointEffect)
	w.start()
	w.ended(dedup.Dead, "order")
	w.quiet()
	letter := w.letter()
	reason, why := letter.Headers["x-rollbackd-reason"], fmt.Sprint(letter.Headers["x-rollbackd-error"])
	if reason != string(dedup.ReasonCrashed) || !strings.HasPrefix(why, "perhaps applied: ") {
		t.Errorf("the letter says %v: %s", reason, why)
	}
	w.wantRow("order", wanted{Says: "perhaps applied: "})
}

// Given a MySQL that goes away when the service has applied a group, and stays away until the deliveries are given
// back, when it is back, then the group is marked and nobody is called for again.
func TestAMarkThatCouldNotBeWrittenIsOwed(t *testing.T) {
	w := newWorld(t)
	w.oneBatch(20)
	w.cfg.GiveBackAfter, w.cfg.Lease = 300*time.Millisecond, 20*time.Second
	s := w.calling(consumer.CallOptions{})
	all := keys("order", 20)
	w.publish("{}", all...)
	l := w.proxied()
	r, release := w.into(consumer.PointEffect, w.start)
	l.mysql.Refuse(true)
	l.mysql.Cut()
	release()
	w.logged(`msg="deliveries given back"`)
	l.mysql.Refuse(false)
	w.ended(dedup.Success, all...)
	w.recovered(r)
	w.quiet()
	w.calledOnce(s, all...)
}

func TestNoCallStartsThatItsLeaseMayNotOutlast(t *testing.T) {
	w := newWorld(t)
	w.hasty()
	w.oneBatch(30)
	s := w.calling(consumer.CallOptions{Concurrency: 2, Timeout: time.Second})
	s.answering(func(ctx context.Context, _ consumer.Message) error {
		select { // each call takes its time
		case <-time.After(400 * time.Millisecond):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	all := keys("order", 30)
	w.startWith(all...)
	w.ended(dedup.Success, all...)
	w.quiet()
	w.calledOnce(s, all...)
	w.want("outcomes", w.outcomes(), map[string]int{"applied": 30})
	if w.number("SELECT COUNT(*) FROM consumer_log_event WHERE `from` = 0 AND `to` = 2") == 0 {
		t.Error("nothing was un-claimed: the test did not meet what it is about")
	}
}

// rehearsing is an engine that does not run, for a handler.
func (w *world) rehearsing(h consumer.Handler) *consumer.Consumer {
	w.t.Helper()
	cfg := w.cfg
	cfg.AMQPURLs = []string{w.amqpURL}
	c := require.Get(consumer.New(cfg, h, consumer.Options{DB: w.open(w.dsn)}))(w.t)
	w.t.Cleanup(func() {
		assert.OK(w.t, c.Close())
	})
	return c
}

// checksums are those of all tables.
func (w *world) checksums() map[string]string {
	w.t.Helper()
	var tables []string
	require.OK(w.t, w.gorm.Raw("SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() "+
		"AND table_type = 'BASE TABLE'").Scan(&tables).Error)
	sums := map[string]string{}
	for _, table := range tables {
		var name, sum string
		require.OK(w.t, w.db.QueryRowContext(w.t.Context(), "CHECKSUM TABLE "+table+" EXTENDED").Scan(&name, &sum))
		sums[table] = sum
	}
	return sums
}

func letter(key, body string) deadletter.Message {
	return deadletter.Message{Identity: id(key), Body: []byte(body)}
}

// Given handlers that write and then end in each way, when a message is rehearsed, then it is said what would become of
// it and which rows would change, and no table has changed.
func TestARehearsalSaysWhatWouldBecomeOfAMessageAndWritesNothing(t *testing.T) {
	type end struct {
		texts   []string                    // what it sends
		end     func(context.Context) error // how it ends; nil: with the errors of these
		want    deadletter.Prospect
		says    string
		changed map[string]int64
	}
	with := func(err error) func(context.Context) error { return func(context.Context) error { return err } }
	all, null := "DELETE FROM effect", []string{"INSERT INTO effect (k, body) VALUES ('a', NULL)"}
	each(t, map[string]end{
		"rows are counted by table": {[]string{"INSERT INTO `effect` (k, body) VALUES ('a', '1'), ('b', '2')",
			"UPDATE LOW_PRIORITY effect e SET body = '3' WHERE k IN ('a', 'stays')", "DELETE FROM effect WHERE k = 'nobody'"},
			nil, deadletter.WouldApply, "", map[string]int64{"effect": 4}},
		"the handler refuses it": {[]string{all}, with(consumer.Permanent(errors.New("no such order"))),
			deadletter.WouldFail, "no such order", nil},
		"the server refuses a statement": {null, nil, deadletter.WouldFail, "1048", nil},
		"an error is swallowed":          {null, with(nil), deadletter.WouldFail, "1048", nil},
		"it panics": {nil, func(context.Context) error { panic("no shelf") }, deadletter.WouldFail,
			"no shelf", nil},
		"a table is missing": {[]string{"DELETE FROM nowhere"}, nil, deadletter.WouldWait, "1146", nil},
		"it is too early": {nil, with(consumer.Later(errors.New("the shelf opens at nine"), 0)), deadletter.WouldWait,
			"at nine", nil},
		"it ends the transaction":    {[]string{all, "COMMIT"}, nil, deadletter.WouldFail, "COMMIT", nil},
		"it may end the transaction": {[]string{all, "CALL commits()"}, nil, deadletter.NotRehearsed, "CALL", nil},
		"others hold the row": {[]string{"UPDATE effect SET body = '3' WHERE k = 'held'"}, nil, deadletter.WouldWait,
			"1205", nil},
		"its time is over": {[]string{"DELETE FROM effect WHERE k = 'stays'"},
			func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, deadletter.WouldFail, "handler timeout", nil},
	}, func(t *testing.T, w *world, one end) {
		w.hasty()
		w.exec("ALTER TABLE effect ADD PRIMARY KEY (k)")
		w.exec("INSERT INTO effect (k, body) VALUES ('stays', '0'), ('held', '0')")
		w.exec("CREATE PROCEDURE commits() COMMIT")
		w.rows(0, 1, "host/1/1/0/1", "k")
		before := w.checksums()
		holder := require.Get(w.db.BeginTx(t.Context(), nil))(t)
		defer func() { _ = holder.Rollback() }()
		require.Get(holder.ExecContext(t.Context(), "SELECT * FROM effect WHERE k = 'held' FOR UPDATE"))(t)
		if !strings.Contains(one.says, "1205") {
			_ = holder.Rollback()
		}
		c := w.rehearsing(consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, _ []consumer.Message) error {
			var errs []error
			for _, text := range one.texts {
				errs = append(errs, tx.Exec(text).Error)
			}
			if one.end != nil {
				return one.end(ctx)
			}
			return errors.Join(errs...)
		}))

		got, err := c.Rehearse(t.Context(), w.db, letter("k", "{}"))

		require.OK(t, err)
		if got.Prospect != one.want || (got.Err == nil) != (one.says == "") ||
			got.Err != nil && !strings.Contains(got.Err.Error(), one.says) {
			t.Errorf("it would be %s, %v; want %s, %q", got.Prospect, got.Err, one.want, one.says)
		}
		if !maps.Equal(got.Changed, one.changed) {
			t.Errorf("it would change %v, want %v", got.Changed, one.changed)
		}
		if after := w.checksums(); !maps.Equal(before, after) {
			t.Errorf("tables have changed: %v, were %v", after, before)
		}
	})
}

// Given a handler that acts outside MySQL, never returns, or writes to a table without transactions in another schema,
// when a message is rehearsed, then no further one may be, and it is said why.
func TestWhatNoRollbackTakesBackIsNotRehearsed(t *testing.T) {
	w := newWorld(t)
	w.hasty()
	elsewhere := w.open(stack.MySQL(t))
	require.OK(t, elsewhere.Exec("CREATE TABLE audit (k INT) ENGINE=MyISAM").Error)
	var schema string
	require.OK(t, elsewhere.Raw("SELECT DATABASE()").Scan(&schema).Error)
	auditing := func(end error) consumer.Handler {
		return handling(func(tx *gorm.DB, _ []consumer.Message) error {
			return errors.Join(tx.Exec("INSERT INTO "+schema+".audit VALUES (1)").Error, end)
		})
	}
	calls := func(context.Context, consumer.Message) error { t.Error("it was called"); return nil }
	release := make(chan struct{})
	defer close(release)
	stuck := handling(func(*gorm.DB, []consumer.Message) error { <-release; return nil })
	for name, tc := range map[string]struct {
		handler consumer.Handler
		says    string
	}{
		"it calls a service":               {consumer.Calls(calls, consumer.CallOptions{}), ""},
		"it never returns":                 {stuck, "the one"},
		"it writes what stays":             {auditing(nil), "no rollback takes back"},
		"it writes what stays, then fails": {auditing(errors.New("no such order")), "no rollback takes back"},
	} {
		got, err := w.rehearsing(tc.handler).Rehearse(t.Context(), w.db, letter("the one", "{}"))
		if !errors.Is(err, deadletter.ErrNoRehearsal) || !strings.Contains(err.Error(), tc.says) ||
			errors.Is(err, consumer.ErrStuck) != (tc.says == "the one") {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}
