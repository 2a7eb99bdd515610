package consumertest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/consumer/consumertest"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/outbox"
)

// example stands where a test of yours has its own t.
type example struct {
	testing.TB
	cleanups []func()
}

func (*example) Helper()                         {}
func (e *example) Cleanup(f func())              { e.cleanups = append(e.cleanups, f) }
func (*example) Context() context.Context        { return context.Background() }
func (*example) Output() io.Writer               { return io.Discard }
func (*example) Fatalf(format string, of ...any) { panic(fmt.Sprintf(format, of...)) }

var t = &example{}

// giveBack is a handler that frees a seat, and tells others so.
func giveBack(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
	freed := tx.Exec("UPDATE seat SET taken = 0 WHERE booking = ? AND taken = 1", m.Key)
	if freed.Error != nil {
		return freed.Error
	}
	if freed.RowsAffected == 0 {
		return errors.New("the seat is not taken yet")
	}
	return outbox.Put(ctx, consumer.SQL(tx), outbox.Message{Tag: "seat.freed", Key: m.Key, Value: "a seat"})
}

// A booking is given back before it was made: that fails once, and succeeds when the message comes back a second later.
func ExampleNew() {
	made := false
	w := consumertest.New(t, consumer.Each(giveBack), consumertest.Options{
		Config: consumer.Config{Queue: "seats"},
		Answer: func(consumertest.Statement) consumertest.Answer {
			if !made {
				return consumertest.Answer{}
			}
			return consumertest.Answer{Changed: 1}
		},
	})
	fmt.Println(w.Deliver(consumertest.Message("seat.release", "booking-1", "{}")))
	made = true
	for _, ended := range w.Advance(time.Second) {
		fmt.Println(ended)
	}
	// Output:
	// seats/seat.release/"booking-1" retried, attempt 1, again in 1s: "the seat is not taken yet"
	// seats/seat.release/"booking-1" applied, attempt 2
}

// A body is text, bytes, or what is written as JSON.
func ExampleMessage() {
	m := consumertest.Message("seat.release", "booking-1", map[string]int{"seats": 2})
	fmt.Println(m.Tag, m.Key, string(m.Body))
	// Output: seat.release booking-1 {"seats":2}
}

// A message that is delivered twice has one effect.
func ExampleTrial_Deliver() {
	w := consumertest.New(t, consumer.Each(giveBack), consumertest.Options{})
	for range 2 {
		fmt.Println(w.Deliver(consumertest.Message("seat.release", "booking-1", "{}")).Outcome)
	}
	fmt.Println(len(w.Statements()))
	// Output:
	// applied
	// duplicate
	// 1
}

// The handler gets a batch in one call; whom it blames leaves the others alone.
func ExampleTrial_DeliverAll() {
	all := consumer.HandlerFunc(func(_ context.Context, tx *gorm.DB, msgs []consumer.Message) error {
		var blamed []consumer.BlamedMessage
		for i, m := range msgs {
			if err := tx.Exec("UPDATE seat SET taken = 0 WHERE booking = ?", m.Key).Error; err != nil {
				return err
			}
			if m.Key == "umbrella" {
				err := consumer.Permanent(errors.New("no booking"))
				blamed = append(blamed, consumer.BlamedMessage{Index: i, Err: err})
			}
		}
		return consumer.Blame(blamed...)
	})
	w := consumertest.New(t, all, consumertest.Options{})
	for _, ended := range w.DeliverAll(
		consumertest.Message("seat.release", "booking-1", "{}"), consumertest.Message("seat.release", "umbrella", "{}"),
	) {
		fmt.Println(ended.Outcome, ended.Key, ended.Reason == dedup.ReasonPermanent)
	}
	// Output:
	// applied booking-1 false
	// dead_lettered umbrella true
}

// All attempts of a message, each when its time has come.
func ExampleTrial_Advance() {
	never := consumer.Each(func(context.Context, *gorm.DB, consumer.Message) error { return errors.New("no seat") })
	w := consumertest.New(t, never, consumertest.Options{Config: consumer.Config{MaxAttempts: 3}})
	w.Deliver(consumertest.Message("seat.release", "booking-1", "{}"))
	for _, ended := range w.Advance(time.Hour) {
		fmt.Println(ended.Attempt, ended.Outcome, ended.Cause)
	}
	// Output:
	// 2 retried no seat
	// 3 dead_lettered no seat
}

// A dead letter is replayed once the handler is mended.
func ExampleTrial_Replay() {
	mended := false
	w := consumertest.New(t, consumer.Each(func(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
		if !mended {
			return consumer.Permanent(errors.New("unknown seat"))
		}
		return giveBack(ctx, tx, m)
	}), consumertest.Options{})
	fmt.Println(w.Deliver(consumertest.Message("seat.release", "booking-1", "{}")).Outcome)
	mended = true
	fmt.Println(w.Replay("booking-1").Outcome)
	// Output:
	// dead_lettered
	// applied
}

// The consumer log's row, as `rollbackd log explain` would show it.
func ExampleTrial_Row() {
	w := consumertest.New(t, consumer.Each(giveBack), consumertest.Options{})
	fmt.Println(w.Row("seat.release", "booking-1").Status)
	w.Deliver(consumertest.Message("seat.release", "booking-1", "{}"))
	fmt.Println(w.Row("seat.release", "booking-1").Status)
	// Output:
	// absent
	// success
}

// What the handler has put into the outbox is there once its effect is committed.
func ExampleTrial_Puts() {
	w := consumertest.New(t, consumer.Each(giveBack), consumertest.Options{})
	w.Deliver(consumertest.Message("seat.release", "booking-1", "{}"))
	for _, m := range w.Puts() {
		fmt.Println(m.Tag, m.Key, string(m.Body))
	}
	// Output: seat.freed booking-1 "a seat"
}

// Without a database the statements of what was applied show what the handler did.
func ExampleTrial_Statements() {
	w := consumertest.New(t, consumer.Each(giveBack), consumertest.Options{})
	w.Deliver(consumertest.Message("seat.release", "booking-1", "{}"))
	for _, s := range w.Statements() {
		fmt.Println(s.Query, s.Args)
	}
	// Output: UPDATE seat SET taken = 0 WHERE booking = ? AND taken = 1 [booking-1]
}

// A service that puts messages is tried with an Outbox in place of its transaction.
func ExampleOutbox() {
	cancelOrder := func(ctx context.Context, tx outbox.Tx, order string) error {
		if _, err := tx.ExecContext(ctx, "UPDATE orders SET status = 'cancelled' WHERE sn = ?", order); err != nil {
			return err
		}
		m := outbox.Message{Tag: "order.cancelled", Key: order, Value: map[string]string{"order": order}}
		return outbox.Put(ctx, tx, m)
	}
	var box consumertest.Outbox
	if err := cancelOrder(context.Background(), &box, "o-1"); err != nil {
		t.Fatalf("cancel: %v", err)
	}
	for _, m := range box.Messages() {
		fmt.Println(m.Tag, m.Key, string(m.Body), "after", len(box.Statements()), "change")
	}
	// Output: order.cancelled o-1 {"order":"o-1"} after 1 change
}

// A test of a handler among faults. TEST_DSN and TEST_AMQP_URL name a schema and a virtual host that hold nothing else.
func ExampleSuite() {
	test := func(t *testing.T) {
		consumertest.Suite(t, consumertest.Servers{
			MySQLDSN: os.Getenv("TEST_DSN"), AMQPURL: os.Getenv("TEST_AMQP_URL"),
		}, consumer.Each(func(_ context.Context, tx *gorm.DB, m consumer.Message) error {
			return tx.Exec("UPDATE seat SET freed = freed + 1 WHERE booking = ?", m.Key).Error
		}), consumertest.Invariant{
			Setup: func(t *testing.T, db *sql.DB) {
				for _, text := range []string{
					"DROP TABLE IF EXISTS seat", "CREATE TABLE seat (booking VARCHAR(40) PRIMARY KEY, freed INT NOT NULL)",
					"INSERT INTO seat VALUES ('booking-1', 0), ('booking-2', 0)",
				} {
					require.Get(db.ExecContext(t.Context(), text))(t)
				}
			},
			Messages: []consumer.Message{
				consumertest.Message("seat.release", "booking-1", "{}"), consumertest.Message("seat.release", "booking-2", "{}"),
			},
			Query: "SELECT * FROM seat WHERE freed <> 1",
		})
	}
	_ = test // func TestSeatsAreGivenBackOnce(t *testing.T)
}
