package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
)

// insert is what a handler of these tests writes.
func insert(tx *gorm.DB, key string) error {
	return tx.Exec("INSERT INTO effect (k, body) VALUES (?, '')", key).Error
}

// Given a handler that panics, is too slow, drops an error, prepares statements, or writes beside open rows, then
// each time is a counted attempt with its cause, its neighbours are applied, and nothing that it wrote is left.
func TestAHandlersFailureIsCountedAndLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		handle func(ctx context.Context, tx *gorm.DB) error
		remark string
	}{
		"panic": {func(context.Context, *gorm.DB) error {
			panic("index out of range")
		}, "handler panicked: index out of range\ngoroutine"},
		"panic with an error": {
			func(context.Context, *gorm.DB) error { panic(errors.New("broken")) }, "handler panicked: broken",
		},
		"a prepared statement, whose errors nobody would see": {
			func(ctx context.Context, tx *gorm.DB) error {
				_, _ = tx.Statement.ConnPool.PrepareContext(ctx, "INSERT INTO effect VALUES ('bad', '')")
				return nil
			}, "no prepared statements",
		},
		"too slow": {
			func(ctx context.Context, _ *gorm.DB) error { <-ctx.Done(); return ctx.Err() }, "handler timeout: over 2s",
		},
		"too slow and deaf": {
			func(ctx context.Context, _ *gorm.DB) error { <-time.After(2200 * time.Millisecond); return nil },
			"handler timeout: over 2s",
		},
		"a CHECK refuses": {
			func(_ context.Context, tx *gorm.DB) error { return tx.Exec("UPDATE positive SET n = n - 1").Error }, "positive",
		},
		"a swallowed CHECK": {
			func(_ context.Context, tx *gorm.DB) error {
				_ = tx.Exec("UPDATE positive SET n = n - 1")
				_ = insert(tx, "bad")
				return nil
			}, "positive",
		},
		"a swallowed CHECK in SQL written by hand": {
			func(ctx context.Context, tx *gorm.DB) error {
				_, _ = consumer.SQL(tx).ExecContext(ctx, "UPDATE positive SET n = n - 1")
				_, _ = consumer.SQL(tx).ExecContext(ctx, "INSERT INTO effect VALUES ('bad', '')")
				return nil
			}, "positive",
		},
		"a swallowed error of a row in SQL written by hand": {
			func(ctx context.Context, tx *gorm.DB) error {
				_ = consumer.SQL(tx).QueryRowContext(ctx, "SELECT 9223372036854775807 + ?", 1).Scan(new(int))
				return nil
			}, "out of range",
		},
		"a statement while the rows of a query are open": {
			func(ctx context.Context, tx *gorm.DB) error {
				rows, err := consumer.SQL(tx).QueryContext(ctx, "SELECT n FROM positive UNION ALL SELECT 2 UNION ALL SELECT 3")
				if err != nil {
					return err
				}
				defer rows.Close()
				for rows.Next() {
					if err := insert(tx, "bad"); err != nil {
						return err
					}
				}
				return rows.Err()
			}, "must be read or closed",
		},
		"a prepared statement in SQL written by hand": {
			func(ctx context.Context, tx *gorm.DB) error {
				_, _ = consumer.SQL(tx).PrepareContext(ctx, "INSERT INTO effect VALUES ('bad', '')")
				return nil
			}, "no prepared statements",
		},
		"a statement larger than MySQL takes": {
			func(_ context.Context, tx *gorm.DB) error {
				return tx.Exec("SELECT LENGTH('" + strings.Repeat("x", 200_000) + "')").Error
			}, "packet for query is too large",
		},
		"blames a message that is not there": {
			func(context.Context, *gorm.DB) error {
				return consumer.Blame(consumer.BlamedMessage{Index: 99, Err: errors.New("what")})
			}, "message 99",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.cfg.Lanes = 1
			w.dsn += "?maxAllowedPacket=100000"
			w.exec("CREATE TABLE positive (n INT PRIMARY KEY, CHECK (n >= 0)) ENGINE=InnoDB")
			w.exec("INSERT INTO positive VALUES (0)")
			w.handler = consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
				for _, m := range msgs {
					if err := insert(tx, m.Key); err != nil {
						return err
					}
					if m.Key == "bad" {
						if err := tc.handle(ctx, tx); err != nil {
							return err
						}
					}
				}
				return nil
			})
			w.publish("{}", "good", "bad", "fine")
			w.start()
			w.ended(dedup.Dead, "bad")
			w.ended(dedup.Success, "good", "fine")
			w.want("effects", w.effects(), once("good", "fine"))
			w.end(map[string]int{"applied": 2, "retried": 2, "dead_lettered": 1})
			if row := w.row("bad"); row.Attempts != 3 || row.Reason != "exhausted" || !strings.Contains(row.Remark, tc.remark) {
				t.Errorf("row: %d attempts, reason %q, remark %q; want 3, exhausted, %q", row.Attempts, row.Reason, row.Remark,
					tc.remark)
			}
			if n := w.number("SELECT n FROM positive"); n != 0 {
				t.Errorf("the number is %d, want 0", n)
			}
		})
	}
}

func TestANestedTransactionIsASavepoint(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.handler = consumer.Each(func(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
		if err := insert(tx, m.Key); err != nil {
			return err
		}
		undone := errors.New("undone")
		err := tx.Transaction(func(inner *gorm.DB) error {
			if err := insert(inner, "inner of "+m.Key); err != nil {
				return err
			}
			if m.Key == "two" {
				return undone
			}
			return nil
		})
		if errors.Is(err, undone) {
			return nil
		}
		return err
	})
	w.publish("{}", "one", "two")
	w.start()
	w.ended(dedup.Success, "one", "two")
	w.want("effects", w.effects(), once("one", "inner of one", "two"))
}

func TestTheHandlerIsToldOfItsMessage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	told := make(chan consumer.Message, 10)
	w.handler = refuser{
		consumer.Each(func(_ context.Context, _ *gorm.DB, m consumer.Message) error {
			told <- m
			if m.Attempt < 2 {
				return errors.New("again")
			}
			return nil
		}),
		func(m *consumer.Message) error { m.Value = "decoded " + string(m.Body); return nil },
	}
	w.publish(`{"a":1}`, "key")
	w.start()
	w.ended(dedup.Success, "key")
	for _, attempt := range []int{0, 2} { // the first, in the fast path, is counted after it failed
		m := <-told
		if m.Attempt != attempt || m.Identity != (dedup.Identity{Group: group, Tag: tag, Key: "key"}) ||
			m.MessageID != "key" ||
			m.Value != `decoded {"a":1}` {
			t.Errorf("call %d got %+v", attempt, m)
		}
	}
}

func TestAMissingTableIsNobodysFault(t *testing.T) {
	t.Parallel()
	for _, giveBack := range []time.Duration{time.Minute, 200 * time.Millisecond} {
		t.Run(fmt.Sprint("given back after ", giveBack), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.cfg.GiveBackAfter = giveBack
			// given a message that fails in the fast path and in its second attempt, when the table disappears
			calls := 0
			w.rejecting("flaky", func() error {
				if calls++; calls == 2 {
					w.exec("RENAME TABLE effect TO gone")
				}
				if calls <= 2 {
					return errors.New("try again")
				}
				return nil
			})
			w.publish("{}", append(keys("order", 20), "flaky")...)
			r := w.start()
			w.paused(r, "mysql")
			w.publish("{}", keys("later", 20)...)
			w.eventually("three more tries", func() bool { return w.times("later-0000")+w.times("order-0000") > 3 })
			w.exec("RENAME TABLE gone TO effect")
			all := append(append(keys("order", 20), keys("later", 20)...), "flaky")
			w.ended(dedup.Success, all...)
			w.recovered(r)
			w.want("effects", w.effects(), once(all...))
			if row := w.row("flaky"); row.Attempts != 3 {
				t.Errorf("%d attempts, want 3: the two that failed and the one that succeeded", row.Attempts)
			}
			if n := w.dead(); n != 0 {
				t.Errorf("%d letters, want none", n)
			}
			for k, n := range w.outcomes() {
				if k != "applied" && k != "abandoned" && k != "retried" && k != "in_progress" && k != "duplicate" {
					t.Errorf("%d deliveries ended as %s", n, k)
				}
			}
		})
	}
}

// Given a handler that writes its SQL by hand and drops the error of a statement, when it goes on, then nothing it does
// reaches the database any more, and the first error says why.
func TestSQLWrittenByHandIsRefusedAfterAFailedStatement(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.MaxAttempts = 1
	later := make(chan error, 3) // of the last call
	w.handler = consumer.Each(func(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
		db := consumer.SQL(tx)
		if m.Key != "bad" {
			_, err := db.ExecContext(ctx, "INSERT INTO effect (k, body) VALUES (?, '')", m.Key)
			return err
		}
		_, _ = db.ExecContext(ctx, "INSERT INTO effect (k, body) VALUES (NULL, '')")
		_, err := db.ExecContext(ctx, "INSERT INTO effect (k, body) VALUES ('bad', '')")
		rows, queryErr := db.QueryContext(ctx, "SELECT 1")
		if queryErr == nil {
			_ = rows.Close()
		}
		rowErr := db.QueryRowContext(ctx, "SELECT 1").Scan(new(int))
		for _, err := range []error{err, queryErr, rowErr} {
			select {
			case later <- err:
			default:
			}
		}
		return nil
	})
	w.publish("{}", "good", "bad")
	w.start()
	w.ended(dedup.Dead, "bad")
	w.ended(dedup.Success, "good")
	w.want("effects", w.effects(), once("good"))
	for _, what := range []string{"Exec", "Query", "QueryRow"} {
		if err := <-later; err == nil {
			t.Errorf("%s was not refused", what)
		}
	}
	if row := w.row("bad"); !strings.Contains(row.Remark, "cannot be null") {
		t.Errorf("remark %q, want the first error", row.Remark)
	}
}

// Rows that a handler forgets are closed with its transaction: a mistake that harms nobody costs nothing.
func TestRowsThatAHandlerForgetsAreClosedWithItsTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.handler = consumer.Each(func(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
		if err := insert(tx, m.Key); err != nil {
			return err
		}
		rows, err := consumer.SQL(tx).QueryContext(ctx, "SELECT 1 UNION ALL SELECT 2")
		if err == nil {
			rows.Next()
		}
		return err
	})
	w.publish("{}", "k")
	w.start()
	w.ended(dedup.Success, "k")
	w.want("effects", w.effects(), once("k"))
	w.end(map[string]int{"applied": 1})
}
