package consumertest_test

import (
	"bytes"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
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
	"github.com/rollbackd/rollbackd/internal/wait"
	"github.com/rollbackd/rollbackd/outbox"
)

const tag = "seat.release"

// free frees a seat, unless the body says what is wrong.
func free(_ context.Context, tx *gorm.DB, m consumer.Message) error {
	if err := tx.Exec("UPDATE seat SET taken = 0 WHERE booking = ?", m.Key).Error; err != nil {
		return err
	}
	switch wrong := string(m.Body); wrong {
	case "{}":
		return nil
	case "hopeless":
		return consumer.Permanent(errors.New(wrong))
	default:
		return errors.New(wrong)
	}
}

// say are ends in few words.
func say(ends ...consumer.Ended) (all []string) {
	for _, e := range ends {
		all = append(all, e.String())
	}
	return all
}

func want(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// freed are the bookings whose statements are committed.
func freed(w *consumertest.Trial) (all []string) {
	for _, s := range w.Statements() {
		all = append(all, s.Args[0].(string))
	}
	return all
}

// Given a message whose attempts all fail, when its time has come each time, then it fails once more after each delay,
// and is dead after the last one; a copy of it ends as one of a dead message, and a replay begins anew.
func TestAMessageFailsUntilItIsDeadAndIsReplayed(t *testing.T) {
	mended := false
	w := consumertest.New(t, consumer.Each(func(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
		if mended {
			m.Body = []byte("{}")
		}
		return free(ctx, tx, m)
	}), consumertest.Options{})
	m := consumertest.Message(tag, "b1", "no such booking")
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
	if row := w.Row(tag, "b1"); row.Status != dedup.Success || row.Replays != 1 {
		t.Errorf("the row is %+v, want success after one replay", row)
	}
}

// Given a message that waits for its next attempt, when a copy of it comes, then that is put off, and counts as none.
func TestACopyThatComesTooEarlyIsNoAttempt(t *testing.T) {
	w := consumertest.New(t, consumer.Each(free), consumertest.Options{})
	m := consumertest.Message(tag, "b1", "late")
	w.Deliver(m)
	if e := w.Deliver(m); e.Outcome != consumer.InProgress || e.Delay != time.Second {
		t.Errorf("the copy ended as %v, want that it comes back in a second", e)
	}
	assert.Is(t, w.Row(tag, "b1").Attempts, 1, "attempts are counted")
}

// Given a batch in which one message fails and one fails for good, then the others are applied in the same moment, and
// nothing of these two is.
func TestWhoIsBlamedLeavesTheBatchToTheOthers(t *testing.T) {
	w := consumertest.New(t, consumer.Each(free), consumertest.Options{})
	ends := w.DeliverAll(consumertest.Message(tag, "b1", "{}"), consumertest.Message(tag, "b2", "late"),
		consumertest.Message(tag, "b3", "hopeless"), consumertest.Message(tag, "b4", "{}"),
		consumertest.Message(tag, "b1", "{}"), consumertest.Message(tag, "b4", "another body"))
	const of = "stock.rollback/seat.release/"
	want(t, "the batch", say(ends...)[:5], of+`"b1" applied`, of+`"b2" retried, attempt 1, again in 1s: "late"`,
		of+`"b3" dead_lettered, permanent: "hopeless"`, of+`"b4" applied`, of+`"b1" duplicate`)
	assert.Is(t, ends[5].Reason, dedup.ReasonConflict, "another body under a key")
	got := freed(w)
	slices.Sort(got)
	want(t, "the effects", got, "b1", "b4")
}

// Bugs are handlers that look right, and what a trial says of them.
func TestATrialShowsTheBugsOfHandlers(t *testing.T) {
	each := func(f func(tx *gorm.DB, m consumer.Message) error) consumer.Handler {
		return consumer.Each(func(_ context.Context, tx *gorm.DB, m consumer.Message) error { return f(tx, m) })
	}
	full := &mysql.MySQLError{Number: 1264, SQLState: [5]byte([]byte("22003")), Message: "Out of range value"}
	mails := 0
	for name, tc := range map[string]struct {
		handler consumer.Handler
		shows   func(*consumertest.Trial, consumer.Ended) error
	}{
		"it drops an error, and half of its effect is missing": {
			each(func(tx *gorm.DB, m consumer.Message) error {
				tx.Exec("UPDATE seat SET free = free + 1 WHERE booking = ?", m.Key)
				return nil
			}), func(_ *consumertest.Trial, e consumer.Ended) error {
				return says(e, consumer.Retried, full.Error())
			},
		},
		"it leaves a row unread, and goes on": {
			each(func(tx *gorm.DB, m consumer.Message) error {
				_ = tx.Raw("SELECT taken FROM seat WHERE booking = ?", m.Key).Row()
				return tx.Exec("DELETE FROM seat WHERE booking = ?", m.Key).Error
			}), func(_ *consumertest.Trial, e consumer.Ended) error {
				return says(e, consumer.Retried, "rows of a query must be read or closed")
			},
		},
		"it commits by itself": {
			each(func(tx *gorm.DB, _ consumer.Message) error { return tx.Exec("COMMIT").Error }),
			func(_ *consumertest.Trial, e consumer.Ended) error {
				return says(e, consumer.DeadLettered, consumer.ErrEndsTransaction.Error())
			},
		},
		"it does something outside its transaction that happens again": {
			each(func(*gorm.DB, consumer.Message) error {
				if mails++; mails == 1 {
					return errors.New("not yet")
				}
				return nil
			}), func(w *consumertest.Trial, _ consumer.Ended) error {
				if w.Advance(time.Minute); mails != 2 {
					return fmt.Errorf("%d mails are sent, want 2", mails)
				}
				return nil
			},
		},
		"it says Except although it has written for the one that it blames": {
			consumer.HandlerFunc(func(_ context.Context, tx *gorm.DB, msgs []consumer.Message) error {
				tx.Exec("DELETE FROM seat WHERE booking = ?", msgs[0].Key)
				return consumer.Except(consumer.BlamedMessage{Err: consumer.Permanent(errors.New("no seat"))})
			}), func(w *consumertest.Trial, e consumer.Ended) error {
				w.DeliverAll(consumertest.Message(tag, "b2", "{}"), consumertest.Message(tag, "b3", "{}"))
				if got := freed(w); !slices.Contains(got, "b2") {
					return fmt.Errorf("the effects are %q, want that of the dead one among them", got)
				}
				return says(e, consumer.DeadLettered, "no seat")
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			answer := func(s consumertest.Statement) consumertest.Answer {
				switch {
				case strings.Contains(s.Query, "free + 1"):
					return consumertest.Answer{Err: full}
				case strings.HasPrefix(s.Query, "SELECT"):
					return consumertest.Answer{Columns: []string{"taken"}, Rows: [][]any{{1}, {1}}}
				}
				return consumertest.Answer{Changed: 1}
			}
			w := consumertest.New(t, tc.handler, consumertest.Options{Answer: answer})
			assert.OK(t, tc.shows(w, w.Deliver(consumertest.Message(tag, "b1", "{}"))))
		})
	}
}

func says(e consumer.Ended, o consumer.Outcome, cause string) error {
	if e.Outcome != o || !strings.Contains(e.Cause, cause) {
		return fmt.Errorf("it ended as %v, want %v because of %q", e, o, cause)
	}
	return nil
}

// Given handlers that panic, end their goroutine, outlive their time, or find a server away, then each ends as it does
// in production, and no time passes but that of the test.
func TestWhatAHandlerDoesBesidesReturning(t *testing.T) {
	for name, tc := range map[string]struct {
		do   func(context.Context) error
		want string
	}{
		"it panics": {
			func(context.Context) error { panic("oops") }, "retried, attempt 1, again in 1s: \"handler panicked: oops",
		},
		"it ends its goroutine": {
			func(context.Context) error { runtime.Goexit(); return nil },
			"retried, attempt 1, again in 1s: \"the handler ended its goroutine",
		},
		"its time is over": {
			func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
			"retried, attempt 1, again in 1s: \"handler timeout: over 10s",
		},
		"the database is away": {
			func(context.Context) error { return driver.ErrBadConn },
			"abandoned: \"batch of 1: a dependency stayed away",
		},
		"two transactions meet": {
			func(context.Context) error { return consumer.Contention(errors.New("met")) }, "in_progress, again in 1s: \"met",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := consumertest.New(t, consumer.Each(func(ctx context.Context, _ *gorm.DB, _ consumer.Message) error {
					return tc.do(ctx)
				}), consumertest.Options{})
				got := w.Deliver(consumertest.Message(tag, "b1", "{}")).String()
				if !strings.HasPrefix(got, `stock.rollback/seat.release/"b1" `+tc.want) {
					t.Errorf("it ended as %s, want %s", got, tc.want)
				}
				if attempts := w.Row(tag, "b1").Attempts; (attempts == 1) != strings.Contains(tc.want, "attempt 1") {
					t.Errorf("%d attempts are counted", attempts)
				}
			})
		})
	}
}

// Given a message whose database is away, then it is given back, without an attempt, and applied when it comes again.
func TestWhatIsGivenBackComesAgain(t *testing.T) {
	away := true
	w := consumertest.New(t, consumer.Each(func(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
		if away {
			return driver.ErrBadConn
		}
		return free(ctx, tx, m)
	}), consumertest.Options{Config: consumer.Config{GiveBackAfter: time.Nanosecond}})
	require.Is(t, w.Deliver(consumertest.Message(tag, "b1", "{}")).Outcome, consumer.Abandoned, "it ended as")
	if ends := w.Advance(time.Minute); len(ends) != 1 || ends[0].Outcome != consumer.Abandoned {
		t.Errorf("a minute later %v, want that it is given back again", ends)
	}
	away = false
	want(t, "another minute later, alone by now", say(w.Advance(time.Minute)...),
		`stock.rollback/seat.release/"b1" applied, attempt 1`)
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
				if (warned == 1) != (tc.want != "") || !strings.Contains(said.String(), tc.want) ||
					warned > 0 && !strings.Contains(said.String(), "trial_test.go:") {
					t.Errorf("warned %d times:\n%s", warned, &said)
				}
			})
		})
	}
}

// Given messages that a handler puts into the outbox, then those stand there whose effects are committed, once each,
// and what is cancelled does not.
func TestTheOutboxHasWhatIsCommitted(t *testing.T) {
	w := consumertest.New(t, consumer.Each(func(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
		err := outbox.Put(ctx, consumer.SQL(tx),
			outbox.Message{Tag: "freed", Key: m.Key, Value: string(m.Body), Headers: map[string]any{"shop": "a"}},
			outbox.Message{Tag: "reminder", Key: m.Key, Body: []byte("{}"), Delay: time.Hour, Exchange: outbox.DefaultExchange})
		if err == nil && m.Key == "b2" {
			_, err = outbox.Cancel(ctx, consumer.SQL(tx), "reminder", m.Key)
		}
		if err != nil {
			return err
		}
		return free(ctx, tx, m)
	}), consumertest.Options{})
	w.DeliverAll(consumertest.Message(tag, "b1", "{}"), consumertest.Message(tag, "b2", "{}"),
		consumertest.Message(tag, "b3", "late"), consumertest.Message("other", "b1", "{}"))
	got := w.Puts()
	slices.SortFunc(got, func(a, b outbox.Message) int { return strings.Compare(a.Key+a.Tag, b.Key+b.Tag) })
	freed := func(key string) outbox.Message {
		return outbox.Message{Tag: "freed", Key: key, Body: []byte(`"{}"`), Headers: map[string]any{"shop": "a"}}
	}
	all := []outbox.Message{
		freed("b1"),
		{Tag: "reminder", Key: "b1", Body: []byte("{}"), Delay: time.Hour, Exchange: outbox.DefaultExchange},
		freed("b2"),
	}
	if diff := cmp.Diff(all, got); diff != "" {
		t.Errorf("the outbox (-want +got):\n%s", diff)
	}
	e := w.Deliver(consumertest.Message("third", "b1", "another"))
	assert.OK(t, says(e, consumer.Retried, outbox.ErrConflict.Error()))
}

// An Outbox is a transaction for who puts, and says what Put would say: a conflict, and that Cancel was in time.
func TestAnOutboxAloneTakesWhatIsPut(t *testing.T) {
	var o consumertest.Outbox
	ctx, at := t.Context(), time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	m := outbox.Message{Tag: "order.timeout", Key: "o1", Body: []byte("{}"), NotBefore: at, RoutingKey: "orders"}
	for _, err := range []error{outbox.Put(ctx, &o, m), outbox.Put(ctx, &o, m)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]outbox.Message{m}, o.Messages()); diff != "" {
		t.Errorf("what stands there (-want +got):\n%s", diff)
	}
	changed := m
	changed.Body = []byte("[]")
	assert.Error(t, outbox.Put(ctx, &o, changed), outbox.ErrConflict, "another body")
	for _, inTime := range []bool{true, false} {
		if got, err := outbox.Cancel(ctx, &o, m.Tag, m.Key); err != nil || got != inTime {
			t.Errorf("Cancel = %v, %v, want %v", got, err, inTime)
		}
	}
	if _, err := o.ExecContext(ctx, "UPDATE rollbackd_outbox SET tries = 0"); err == nil {
		t.Error("it takes a statement about its own table that it does not know")
	}
	const update = "UPDATE orders SET status = 'cancelled' WHERE id = ?"
	res := require.Get(o.ExecContext(ctx, update, 7))(t)
	if n, _ := res.RowsAffected(); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
	if diff := cmp.Diff([]consumertest.Statement{{Query: update, Args: []any{7}}}, o.Statements()); diff != "" {
		t.Errorf("its statements (-want +got):\n%s", diff)
	}
}
