package sqlite

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/glebarez/sqlite"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/consumer/consumertest"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/outbox"
)

// Seat is a table of the handler's.
type Seat struct {
	Booking string `gorm:"primaryKey"`
	Taken   int
}

// giveBack takes a seat from a booking, with gorm's models, and puts a message for others.
func giveBack(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
	var seat Seat
	if err := tx.Where("booking = ?", m.Key).Take(&seat).Error; err != nil {
		return err
	}
	if err := tx.Model(&seat).Update("taken", gorm.Expr("taken - 1")).Error; err != nil {
		return err
	}
	if m.Key == "cursed" {
		return consumer.Permanent(errors.New("a cursed seat"))
	}
	return outbox.Put(ctx, consumer.SQL(tx), outbox.Message{Tag: "seat.freed", Key: m.Key, Value: seat.Booking})
}

// seats is a fresh database in memory, with a trial whose handler writes into it.
func seats(t *testing.T, all ...Seat) (*gorm.DB, *consumertest.Trial) {
	t.Helper()
	db := require.Get(gorm.Open(sqlite.Open(":memory:"), &gorm.Config{}))(t)
	pool := require.Get(db.DB())(t)
	pool.SetMaxOpenConns(1) // each connection has a database of its own
	t.Cleanup(func() { _ = pool.Close() })
	const table = "CREATE TABLE seats (booking TEXT PRIMARY KEY, taken INTEGER NOT NULL CHECK (taken >= 0))"
	require.OK(t, db.Exec(table).Error)
	require.OK(t, db.Create(&all).Error)
	return db, consumertest.New(t, consumer.Each(giveBack), consumertest.Options{DB: db})
}

// taken is how often each booking has a seat.
func taken(t *testing.T, db *gorm.DB) map[string]int {
	t.Helper()
	var all []Seat
	require.OK(t, db.Find(&all).Error)
	by := map[string]int{}
	for _, s := range all {
		by[s.Booking] = s.Taken
	}
	return by
}

// Given a batch with copies, a message that fails for good and one that SQLite refuses, then each of the others has its
// effect once, and these two have none; one whose row is made between two attempts is applied by the second one.
func TestAHandlersEffectsAreInTheDatabaseOnce(t *testing.T) {
	db, w := seats(t, Seat{"b1", 2}, Seat{"b2", 1}, Seat{"cursed", 1}, Seat{"empty", 0})
	message := func(key string) consumer.Message { return consumertest.Message("seat.release", key, "{}") }
	ends := w.DeliverAll(message("b1"), message("cursed"), message("empty"), message("b2"), message("b1"))
	ends = append(ends, w.Deliver(message("b2")), w.Deliver(message("b9")))
	for i, want := range []consumer.Outcome{
		consumer.Applied, consumer.DeadLettered, consumer.Retried, consumer.Applied, consumer.Duplicate, consumer.Duplicate,
		consumer.Retried,
	} {
		assert.Is(t, ends[i].Outcome, want, "delivery %d ended as %v", i, ends[i])
	}
	require.OK(t, db.Create(&Seat{"b9", 1}).Error)
	w.Advance(time.Second)
	assert.Is(t, w.Row("seat.release", "b9").Status, dedup.Success, "the row of b9")
	want := map[string]int{"b1": 1, "b2": 0, "b9": 0, "cursed": 1, "empty": 0}
	got := taken(t, db)
	assert.That(t, maps.Equal(got, want), "the seats are %v, want %v", got, want)
	assert.Is(t, len(w.Puts()), 3, "messages are put")
}
