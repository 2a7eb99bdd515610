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

func TestAHandlersFailureIsCountedAndLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		handle func(ctx context.Context, tx *gorm.DB) error
		remark string
	}{
		"panic": {func(context.Context, *gorm.DB) error { panic("index out of range") }, "handler panicked: index out of range\ngoroutine"},
		"panic with an error": {
			func(context.Context, *gorm.DB) error { panic(errors.New("broken")) }, "handler panicked: broken",
		},
		"commits by itself": {
			func(_ context.Context, tx *gorm.DB) error { return tx.Commit().Error }, "must not commit",
		},
		"commits by itself and hides it": {
			func(_ context.Context, tx *gorm.DB) error { _ = tx.Commit(); return nil }, "must not commit",
		},
		"rolls back by itself": {
			func(_ context.Context, tx *gorm.DB) error { _ = tx.Rollback(); return nil }, "must not commit",
		},
		"a prepared statement, whose errors nobody would see": {
			func(ctx context.Context, tx *gorm.DB) error {
				_, _ = tx.Statement.ConnPool.PrepareContext(ctx, "INSERT INTO effect VALUES ('bad', '')")
				return nil
			}, "no prepared statements",
		},
		"too slow": {
			func(ctx context.Context, _ *gorm.DB) error { <-ctx.Done(); return ctx.Err() }, "handler timeout: over 300ms",
		},
		"too slow and deaf": {
			func(ctx context.Context, _ *gorm.DB) error { <-time.After(500 * time.Millisecond); return nil }, "handler timeout: over 300ms",
		},
		"too slow in a statement": {
			func(ctx context.Context, tx *gorm.DB) error { return tx.Exec("SELECT SLEEP(1)").Error }, "handler timeout: over 300ms",
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
		"a swallowed duplicate entry of its own": {
			func(_ context.Context, tx *gorm.DB) error {
				_ = tx.Exec("INSERT INTO positive VALUES (0)")
				return nil
			}, "Duplicate entry",
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
			w.cfg.Lanes, w.cfg.HandlerTimeout = 1, 300*time.Millisecond
			w.dsn += "?maxAllowedPacket=100000"
			w.exec("CREATE TABLE positive (n INT PRIMARY KEY, CHECK (n >= 0)) ENGINE=InnoDB")
			w.exec("INSERT INTO positive VALUES (0)")
			w.handler = consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
				for _, m := range msgs {
					if err := insert(tx, m.Name); err != nil {
						return err
					}
					if m.Name == "bad" {
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
				t.Errorf("row: %d attempts, reason %q, remark %q; want 3, exhausted, %q", row.Attempts, row.Reason, row.Remark, tc.remark)
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
		if err := insert(tx, m.Name); err != nil {
			return err
		}
		undone := errors.New("undone")
		err := tx.Transaction(func(inner *gorm.DB) error {
			if err := insert(inner, "inner of "+m.Name); err != nil {
				return err
			}
			if m.Name == "two" {
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
	for _, attempt := range []int{0, 1, 2} { // the fast path counts none
		m := <-told
		if m.Attempt != attempt || m.Key != (dedup.Key{Group: group, Tag: tag, Name: "key"}) || m.MessageID != "key" || m.Value != `decoded {"a":1}` {
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
			// given a message that fails in the fast path and in its first attempt, when the table disappears
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
			if row := w.row("flaky"); row.Attempts != 2 {
				t.Errorf("%d attempts, want 2: the one that failed and the one that succeeded", row.Attempts)
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
