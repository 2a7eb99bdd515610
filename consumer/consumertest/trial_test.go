package consumertest_test

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/google/go-cmp/cmp"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/consumer/consumertest"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wait"
	"github.com/rollbackd/rollbackd/outbox"
)

const tag = "seat.release"

// free frees a seat, unless the body says what is wrong.
func free(_ context.Context, tx *gorm.DB, m consumer.Message) error {
	if err := tx.Exec("UPDATE seat SET taken = 0 WHERE booking = ?", m.Key).Error; err != nil {
		return err
	}
	if wrong := string(m.Body); wrong != "{}" {
		return errors.New(wrong)
	}
	return nil
}

// say are ends in few words.
func say(ends ...consumer.Ended) (all []string) {
	for _, e := range ends {
		all = append(all, e.String())
	}
	return all
}

func want[T any](t *testing.T, what string, got []T, want ...T) {
	t.Helper()
	diff := cmp.Diff(want, got)
	assert.That(t, diff == "", "%s (-want +got):\n%s", what, diff)
}

// freed are the bookings whose statements are committed.
func freed(w *consumertest.Trial) (all []string) {
	for _, s := range w.Statements() {
		all = append(all, s.Args[0].(string))
	}
	return all
}

// Given a message whose attempts all fail, when its time has come each time, then it fails once more after each delay,
// and is dead after the last one; a copy of it ends as one of a dead message, and a replay begins anew. Of several
// bodies under one key the first is applied, and each other one is a letter, once.
func TestAMessageFailsUntilItIsDeadAndIsReplayed(t *testing.T) {
	mended := false
	w := consumertest.New(t, consumer.Each(func(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
		if mended {
			m.Body = []byte("{}")
		}
		return free(ctx, tx, m)
	}), consumertest.Options{})
	of := func(key, body string) consumer.Message { return consumertest.Message(tag, key, body) }
	m := of("b1", "no such booking")
	const it = `stock.rollback/seat.release/"b1" `
	want(t, "the first delivery", say(w.Deliver(m)), it+`retried, attempt 1, again in 1s: "no such booking"`)
	want(t, "half a second later", say(w.Advance(500*time.Millisecond)...))
	want(t, "an hour later", say(w.Advance(time.Hour)...),
		it+`retried, attempt 2, again in 5s: "no such booking"`,
		it+`retried, attempt 3, again in 30s: "no such booking"`,
		it+`retried, attempt 4, again in 2m0s: "no such booking"`,
		it+`dead_lettered, attempt 5, exhausted: "no such booking"`)
	want(t, "a copy of it", say(w.Deliver(m)), it+`duplicate_of_dead`)
	want(t, "its effect", freed(w))
	mended = true
	want(t, "the replay", say(w.Replay("b1")), it+`applied`)
	want(t, "a copy of what is applied", say(w.Deliver(m)), it+`duplicate`)
	want(t, "its effect", freed(w), "b1")
	row := w.Row(tag, "b1")
	assert.That(t, row.Status == dedup.Success && row.Replays == 1, "the row is %+v, want success after one replay", row)
	var ends []string
	for _, e := range w.DeliverAll(of("b3", "1"), of("b3", "2"), of("b3", "3"), of("b3", "1"), of("b3", "2")) {
		ends = append(ends, fmt.Sprintf("%v %s", e.Outcome, e.Reason))
	}
	want(t, "three bodies under one key", ends,
		"applied ", "dead_lettered conflict", "dead_lettered conflict", "duplicate ", "duplicate_of_dead ")
	mended = false
	late := of("b2", "late")
	w.Deliver(late)
	want(t, "a copy that is too early", say(w.Deliver(late)), `stock.rollback/seat.release/"b2" in_progress, again in 1s`)
	assert.Is(t, w.Row(tag, "b2").Attempts, 1, "attempts, with a copy that was too early")
}

func says(t *testing.T, e consumer.Ended, o consumer.Outcome, cause string) {
	t.Helper()
	assert.That(t, e.Outcome == o && strings.Contains(e.Cause, cause), "%v, want %v because of %q", e, o, cause)
}

// Given a handler that outlives its time, or finds a server away, then it ends as it does in production, and no time
// passes but that of the test: what is given back comes again after a minute, and has had no attempt.
func TestAHandlersTimeIsThatOfTheTest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := true
		w := consumertest.New(t, consumer.Each(func(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
			switch {
			case m.Key == "b1":
				<-ctx.Done()
				return ctx.Err()
			case away:
				return driver.ErrBadConn
			}
			return free(ctx, tx, m)
		}), consumertest.Options{})
		says(t, w.Deliver(consumertest.Message(tag, "away", "{}")), consumer.Abandoned, "stayed away")
		assert.Is(t, w.Row(tag, "away").Attempts, 0, "attempts while the database was away")
		ends := w.Advance(time.Minute)
		require.Is(t, len(ends), 1, "ends a minute later: %v", ends)
		says(t, ends[0], consumer.Abandoned, "stayed away")
		away = false
		want(t, "another minute later, alone by now", say(w.Advance(time.Minute)...),
			`stock.rollback/seat.release/"away" applied, attempt 1`)
		says(t, w.Deliver(consumertest.Message(tag, "b1", "{}")), consumer.Retried, "handler timeout: over 10s")
		assert.Is(t, w.Row(tag, "b1").Attempts, 1, "attempts")
	})
}

// Given a message that is put off for 30 s, one that is put off for as long as it has waited, and one whose attempts
// fail with delays of their own, whatever kind of handler says so, then each comes when that time is over, what is put
// off has no attempt counted, its row says until when, and the others are applied at once.
func TestWhatComesLaterComesWhenItsHandlerSays(t *testing.T) {
	var over bool
	delays := []time.Duration{30 * time.Second, time.Second, time.Hour}
	says := func(m consumer.Message) error {
		switch {
		case m.Key == "late":
			return consumer.RetryIn(errors.New("no seat"), delays[max(m.Attempt, 1)-1])
		case m.Key == "early" && !over:
			return consumer.Later(errors.New("the show goes on"), 30*time.Second)
		case m.Key == "some day" && !over:
			return consumer.Later(errors.New("nobody knows"), 0)
		}
		return nil
	}
	one := func(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
		return errors.Join(free(ctx, tx, m), says(m))
	}
	batch := func(blame func(...consumer.BlamedMessage) error) consumer.Handler {
		return consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
			var out []consumer.BlamedMessage
			for i, m := range msgs {
				if err := says(m); err != nil {
					out = append(out, consumer.BlamedMessage{Index: i, Err: err})
				} else if err := free(ctx, tx, m); err != nil {
					return err
				}
			}
			return blame(out...)
		})
	}
	for kind, h := range map[string]consumer.Handler{
		"Each": consumer.Each(one), "Blame": batch(consumer.Blame), "Except": batch(consumer.Except),
		"Mux":   consumer.Mux{tag: consumer.Each(one)},
		"Calls": consumer.Calls(func(_ context.Context, m consumer.Message) error { return says(m) }, consumer.CallOptions{}),
	} {
		t.Run(kind, func(t *testing.T) {
			over = false
			w := consumertest.New(t, h, consumertest.Options{Config: consumer.Config{MaxAttempts: 3}})
			got := map[string][]string{}
			end := func(all ...consumer.Ended) {
				for _, e := range all {
					_, how, _ := strings.Cut(e.String(), `" `)
					got[e.Key] = append(got[e.Key], how)
				}
			}
			var all []consumer.Message
			for _, key := range []string{"a", "early", "late", "some day"} {
				all = append(all, consumertest.Message(tag, key, "{}"))
			}
			end(w.DeliverAll(all...)...)
			row := w.Row(tag, "early")
			assert.That(t, row.PutOff() && row.Attempts == 0 && row.Wait >= 29*time.Second, "%+v, want it put off by 30s", row)
			assert.AtLeast(t, w.Row(tag, "late").Wait, 29*time.Second, "what has failed waits for")
			end(w.Advance(50 * time.Second)...)
			over = true
			end(w.Advance(2 * time.Minute)...)
			assert.Has(t, strings.Join(got["a"], ""), "applied", "the other one")
			delete(got, "a")
			want := map[string][]string{
				"early": {`in_progress, again in 30s: "the show goes on"`, `in_progress, again in 30s: "the show goes on"`,
					"applied, attempt 1"},
				"late": {`retried, attempt 1, again in 30s: "no seat"`, `retried, attempt 2, again in 1s: "no seat"`,
					`dead_lettered, attempt 3, exhausted: "no seat"`},
				"some day": {`in_progress, again in 1s: "nobody knows"`, `in_progress, again in 5s: "nobody knows"`,
					`in_progress, again in 30s: "nobody knows"`, `in_progress, again in 2m0s: "nobody knows"`, "applied, attempt 1"},
			}
			diff := cmp.Diff(want, got)
			assert.That(t, diff == "", "-want +got:\n%s", diff)
		})
	}
}

// Given a handler that says Later of a call as a whole, then all of it is put off; so it is with the part of a Mux that
// is one handler's, while the others are applied.
func TestLaterOfAWholeCallHoldsForAllItsMessages(t *testing.T) {
	var closed bool
	var calls int
	h := consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
		calls++
		for _, m := range msgs {
			require.OK(t, free(ctx, tx, m))
		}
		if closed {
			return consumer.Later(errors.New("closed"), time.Second)
		}
		return nil
	})
	for want, h := range map[string]consumer.Handler{
		"in_progress in_progress in_progress": h,
		"in_progress in_progress applied":     consumer.Mux{tag: h, "open": consumer.Each(free)},
	} {
		closed, calls = true, 0
		w := consumertest.New(t, h, consumertest.Options{})
		var got []string
		for _, e := range w.DeliverAll(consumertest.Message(tag, "b1", "{}"), consumertest.Message(tag, "b2", "{}"),
			consumertest.Message("open", "b3", "{}")) {
			got = append(got, e.Outcome.String())
		}
		assert.Is(t, strings.Join(got, " "), want, "the ends")
		assert.Is(t, calls, 2, "calls, the second one with claims")
		closed = false
		w.Advance(time.Second)
		assert.Is(t, w.Row(tag, "b2").Attempts, 1, "attempts")
	}
}

// Given handlers that do what a check finds without MySQL, and some that do not, when they are tried, then the test's
// log warns once of the former, with the line of the handler.
func TestATrialWarnsOfWhatACheckFinds(t *testing.T) {
	update := func(tx *gorm.DB, key string) error {
		return tx.Exec("UPDATE shelf SET free = free + 1 WHERE k = ?", key).Error
	}
	for name, tc := range map[string]struct {
		do   func(context.Context, *gorm.DB, consumer.Message) error
		want string
	}{
		"it does nothing": {
			func(context.Context, *gorm.DB, consumer.Message) error { return nil }, "nil without a statement",
		},
		"it idles": {func(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
			return errors.Join(update(tx, "a"), wait.For(ctx, 200*time.Millisecond), update(tx, m.Key))
		}, "sent nothing for long"},
		"it locks in the order of the messages": {func(_ context.Context, tx *gorm.DB, m consumer.Message) error {
			return update(tx, string(m.Body))
		}, "another order than for another batch"},
		"it writes": {func(_ context.Context, tx *gorm.DB, m consumer.Message) error { return update(tx, m.Key) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var said bytes.Buffer
				w := consumertest.New(t, consumer.Each(tc.do), consumertest.Options{
					Config: consumer.Config{Logger: slog.New(slog.NewTextHandler(&said, nil))},
				})
				w.DeliverAll(consumertest.Message(tag, "b1", "1"), consumertest.Message(tag, "b2", "2"))
				w.DeliverAll(consumertest.Message(tag, "b3", "2"), consumertest.Message(tag, "b4", "1"))
				warned := strings.Count(said.String(), "check: ")
				assert.That(t, (warned == 1) == (tc.want != "") && strings.Contains(said.String(), tc.want) && (warned == 0 ||
					strings.Contains(said.String(), "trial_test.go:")), "warned %d times:\n%s", warned, &said)
			})
		})
	}
}

// Given messages that a handler puts into the outbox, then those stand there whose effects are committed, once each,
// and what is cancelled does not. Headers have the types in which they come and are sent, and nothing goes back to a
// savepoint that there is not.
func TestTheOutboxHasWhatIsCommitted(t *testing.T) {
	w := consumertest.New(t, consumer.Each(func(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
		if m.Key == "nowhere" {
			return tx.RollbackTo(m.Key).Error
		}
		err := outbox.Put(ctx, consumer.SQL(tx), outbox.Message{Tag: "freed", Key: m.Key, Value: string(m.Body),
			Headers: map[string]any{"shop": fmt.Sprintf("%T", m.Headers["shop"]), "n": math.MaxInt}},
			outbox.Message{Tag: "reminder", Key: m.Key, Body: []byte("{}"), Delay: time.Hour, Exchange: outbox.DefaultExchange})
		if err == nil && m.Key == "b2" {
			_, err = outbox.Cancel(ctx, consumer.SQL(tx), "reminder", m.Key)
		}
		if err != nil {
			return err
		}
		return free(ctx, tx, m)
	}), consumertest.Options{})
	msgs := []consumer.Message{consumertest.Message(tag, "b1", "{}"), consumertest.Message(tag, "b2", "{}"),
		consumertest.Message(tag, "b3", "late"), consumertest.Message("other", "b1", "{}")}
	for i := range msgs {
		msgs[i].Headers = map[string]any{"shop": 5}
	}
	w.DeliverAll(msgs...)
	says(t, w.Deliver(consumertest.Message(tag, "nowhere", "{}")), consumer.Retried, "SAVEPOINT NOWHERE does not exist")
	got := w.Puts()
	slices.SortFunc(got, func(a, b outbox.Message) int { return strings.Compare(a.Key+a.Tag, b.Key+b.Tag) })
	freed := func(key string) outbox.Message {
		return outbox.Message{Tag: "freed", Key: key, Body: []byte(`"{}"`),
			Headers: map[string]any{"shop": "int64", "n": int64(math.MaxInt)}}
	}
	want(t, "the outbox", got, freed("b1"),
		outbox.Message{Tag: "reminder", Key: "b1", Body: []byte("{}"), Delay: time.Hour, Exchange: outbox.DefaultExchange},
		freed("b2"))
	says(t, w.Deliver(consumertest.Message("third", "b1", "another")), consumer.Retried, outbox.ErrConflict.Error())
}

// An Outbox is a transaction for who puts, and says what Put would say: a conflict, and that Cancel was in time.
func TestAnOutboxAloneTakesWhatIsPut(t *testing.T) {
	var o consumertest.Outbox
	ctx, at := t.Context(), time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	m := outbox.Message{Tag: "order.timeout", Key: "o1", Body: []byte("{}"), NotBefore: at, RoutingKey: "orders"}
	require.OK(t, outbox.Put(ctx, &o, m), outbox.Put(ctx, &o, m))
	want(t, "what stands there", o.Messages(), m)
	changed := m
	changed.Body = []byte("[]")
	assert.Error(t, outbox.Put(ctx, &o, changed), outbox.ErrConflict, "another body")
	for _, inTime := range []bool{true, false} {
		got, err := outbox.Cancel(ctx, &o, m.Tag, m.Key)
		assert.That(t, err == nil && got == inTime, "Cancel = %v, %v, want %v", got, err, inTime)
	}
	_, err := o.ExecContext(ctx, "UPDATE rollbackd_outbox SET tries = 0")
	assert.That(t, err != nil, "it takes a statement about its own table that it does not know")
	const update = "UPDATE orders SET status = 'cancelled' WHERE id = ?"
	res := require.Get(o.ExecContext(ctx, update, 7))(t)
	assert.Is(t, require.Get(res.RowsAffected())(t), 1, "rows")
	want(t, "its statements", o.Statements(), consumertest.Statement{Query: update, Args: []any{7}})
}

func TestMain(m *testing.M) {
	stack.Main(m, func() error {
		for _, end := range t.cleanups {
			end()
		}
		return nil
	})
}

// suite are the servers of a suite, and what it holds a handler against that adds one to a row for each message. A
// process that is to be killed is told by this variable where they are.
func suite(t *testing.T) (consumertest.Servers, consumertest.Invariant) {
	t.Helper()
	const where = "CONSUMERTEST_SERVERS"
	if os.Getenv(where) == "" {
		t.Setenv(where, stack.MySQL(t)+" "+stack.AMQP(t).URL)
	}
	dsn, url, _ := strings.Cut(os.Getenv(where), " ")
	in := consumertest.Invariant{
		Setup: func(t *testing.T, db *sql.DB) {
			stack.Exec(t, db, "DROP TABLE IF EXISTS seat")
			stack.Exec(t, db, "CREATE TABLE seat (booking VARBINARY(40) PRIMARY KEY, free INT NOT NULL) ENGINE=InnoDB")
		},
		Query: "SELECT booking, free FROM seat WHERE free <> 1 UNION ALL " +
			"SELECT 'all of them', COUNT(*) FROM seat HAVING COUNT(*) <> 30",
	}
	for i := range 30 {
		in.Messages = append(in.Messages, consumertest.Message(tag, fmt.Sprintf("b%02d", i), "{}"))
	}
	return consumertest.Servers{MySQLDSN: dsn, AMQPURL: url}, in
}

const freeOne = "INSERT INTO seat VALUES (?, 1) ON DUPLICATE KEY UPDATE free = free + 1"

func one(_ context.Context, tx *gorm.DB, m consumer.Message) error {
	return tx.Exec(freeOne, m.Key).Error
}

// Handlers of each kind, and some that put a message off or say when it is to come back, hold their invariant whatever
// happens, if they write in their transaction.
func TestHandlersOfEachKindPassTheSuite(t *testing.T) {
	s, in := suite(t)
	all := func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
		var early []consumer.BlamedMessage
		for i, m := range msgs {
			if m.Attempt < 2 && m.Replays == 0 && strings.HasSuffix(m.Key, "4") {
				early = append(early, consumer.BlamedMessage{Index: i, Err: errors.New("not yet")})
			} else if err := one(ctx, tx, m); err != nil {
				return err
			}
		}
		return consumer.Except(early...)
	}
	var seen sync.Map
	h := consumer.Mux{
		"each": consumer.Each(one), "batch": consumer.HandlerFunc(all),
		"JSON": consumer.JSON(func(ctx context.Context, tx *gorm.DB, _ struct{}, m consumer.Message) error {
			return one(ctx, tx, m)
		}),
		"JSON batch": consumer.JSONBatch(func(ctx context.Context, tx *gorm.DB, _ []struct{}, msgs []consumer.Message) error {
			return all(ctx, tx, msgs)
		}),
		"later": consumer.Each(func(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
			err := one(ctx, tx, m)
			if _, again := seen.LoadOrStore(m.Key, true); !again {
				err = errors.Join(err, consumer.Later(errors.New("not now"), time.Millisecond))
			}
			return err
		}),
		"sooner": consumer.Each(func(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
			err := one(ctx, tx, m)
			if m.Attempt < 2 {
				err = errors.Join(err, consumer.RetryIn(errors.New("not yet"), time.Millisecond))
			}
			return err
		}),
	}
	tags := slices.Sorted(maps.Keys(h))
	for i := range in.Messages {
		in.Messages[i].Tag = tags[i/5]
	}
	consumertest.Suite(t, s, consumer.With(h, consumer.Recover), in)
}

// Given a handler that writes beside its transaction, when the suite is run on it, then it fails, and says which fault
// has broken what.
func TestTheSuiteNamesTheFaultThatBreaksAHandler(t *testing.T) {
	const inside, fault = "CONSUMERTEST_BROKEN", "killed when it is effect"
	s, in := suite(t)
	if os.Getenv(inside) == "" {
		run := exec.CommandContext(t.Context(), os.Args[0], "-test.count=1",
			"-test.run=^"+t.Name()+"$/^"+strings.ReplaceAll(fault, " ", "_")+"$")
		run.Env = append(os.Environ(), inside+"=yes")
		said, err := run.CombinedOutput()
		for _, want := range []string{fault + " has broken the invariant", "booking:b"} {
			assert.That(t, err != nil && strings.Contains(string(said), want),
				"the suite ended with %v and does not say %q:\n%s", err, want, said)
		}
		return
	}
	cfg := require.Get(mysql.ParseDSN(s.MySQLDSN))(t)
	db := stack.OpenMySQL(cfg)
	t.Cleanup(func() { _ = db.Close() })
	consumertest.Suite(t, s, consumer.Each(func(ctx context.Context, _ *gorm.DB, m consumer.Message) error {
		_, err := db.ExecContext(ctx, freeOne, m.Key)
		return err
	}), in)
}
