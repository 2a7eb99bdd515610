package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
)

// procedures that end the transaction, each with an effect of its own.
var procedures = map[string]string{
	"commits_and_fails":   "INSERT INTO effect (k, body) VALUES (name, ''); COMMIT; SIGNAL SQLSTATE '45000'",
	"commits":             "INSERT INTO effect (k, body) VALUES (name, ''); COMMIT",
	"commits_and_repeats": "INSERT INTO effect (k, body) VALUES (name, ''); COMMIT; INSERT INTO taken VALUES (1)",
	"commits_and_misses":  "INSERT INTO effect (k, body) VALUES (name, ''); COMMIT; INSERT INTO gone VALUES (1)",
	"commits_by_ddl":      "INSERT INTO effect (k, body) VALUES (name, ''); CREATE TABLE other (a INT)",
	"begins_another":      "INSERT INTO effect (k, body) VALUES (name, ''); COMMIT; START TRANSACTION",
	"rolls_back":          "INSERT INTO effect (k, body) VALUES (name, ''); ROLLBACK",
	"leaves_autocommit":   "ROLLBACK; SET autocommit = 0; INSERT INTO effect (k, body) VALUES (name, '')",
	"behaves":             "INSERT INTO effect (k, body) VALUES (name, '')",
}

func (w *world) withProcedures() {
	w.t.Helper()
	w.exec("CREATE TABLE taken (n INT PRIMARY KEY) ENGINE=InnoDB")
	w.exec("INSERT INTO taken VALUES (1)")
	for name, body := range procedures {
		w.exec(fmt.Sprintf("CREATE PROCEDURE %s(name VARCHAR(99)) BEGIN %s; END", name, body))
	}
}

// call calls a procedure.
func call(name string) func(context.Context, *gorm.DB) error {
	return func(_ context.Context, tx *gorm.DB) error { return tx.Exec("CALL " + name + "('bad')").Error }
}

// text runs a text.
func text(text string) func(context.Context, *gorm.DB) error {
	return func(_ context.Context, tx *gorm.DB) error { return tx.Exec(text).Error }
}

// Given one message among forty whose call ends the transaction, when all are sent, and sent again, then each of the
// others has its effect once, nobody says success without one, and that message is a letter which names the statement.
func TestACallThatEndsItsTransactionHarmsNobodyElse(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		handle func(ctx context.Context, tx *gorm.DB) error
		names  string // the statement
		whole  bool   // the handler takes the whole batch, and blames nobody
		twice  bool   // two engines, and each message in two copies
		effect int    // of its own
	}{
		"COMMIT":             {handle: text("COMMIT"), names: "COMMIT"},
		"COMMIT, among all":  {handle: text("COMMIT"), names: "COMMIT", whole: true},
		"COMMIT, twice":      {handle: text("COMMIT"), names: "COMMIT", twice: true},
		"ROLLBACK":           {handle: text("ROLLBACK"), names: "ROLLBACK"},
		"DDL":                {handle: text("create table other (a int)"), names: "create table other"},
		"SET autocommit":     {handle: text("SET autocommit = 0"), names: "SET autocommit ="},
		"LOCK TABLES":        {handle: text("LOCK TABLES effect WRITE"), names: "LOCK TABLES effect"},
		"LOAD DATA LOCAL":    {handle: text("LOAD DATA LOCAL INFILE 'a' INTO TABLE effect"), names: "LOAD DATA LOCAL"},
		"several statements": {handle: text("SELECT ';'; ROLLBACK"), names: "ROLLBACK"},
		"gorm's Commit": {
			handle: func(_ context.Context, tx *gorm.DB) error { return tx.Commit().Error }, names: "COMMIT",
		},
		"gorm's Rollback, unheeded": {
			handle: func(_ context.Context, tx *gorm.DB) error { _ = tx.Rollback(); return nil }, names: "ROLLBACK",
		},
		"COMMIT, hidden, unheeded": {
			handle: func(_ context.Context, tx *gorm.DB) error { _ = tx.Exec("/*! commit */"); return nil }, names: "commit",
			whole: true,
		},
		"COMMIT, and another error": {
			handle: func(_ context.Context, tx *gorm.DB) error { _ = tx.Exec("COMMIT"); return errors.New("out of paper") },
			names:  "COMMIT", whole: true,
		},
		"COMMIT, prepared": {
			handle: func(ctx context.Context, tx *gorm.DB) error {
				_, err := tx.Statement.ConnPool.PrepareContext(ctx, "COMMIT")
				return err
			}, names: "COMMIT",
		},
		"COMMIT by tx.ConnPool": {
			handle: func(ctx context.Context, tx *gorm.DB) error {
				rows, err := tx.ConnPool.QueryContext(ctx, "COMMIT")
				if err == nil {
					err = rows.Close()
				}
				return err
			}, names: "COMMIT",
		},
		"COMMIT as a row": {
			handle: func(ctx context.Context, tx *gorm.DB) error {
				return consumer.SQL(tx).QueryRowContext(ctx, "COMMIT").Scan(new(int))
			}, names: "COMMIT",
		},
		"COMMIT by EXECUTE": {
			handle: func(_ context.Context, tx *gorm.DB) error {
				if err := tx.Exec("PREPARE s FROM 'COMMIT'").Error; err != nil {
					return err
				}
				return tx.Exec("EXECUTE s").Error
			}, names: "EXECUTE s",
		},
		"a procedure that commits and fails": {handle: call("commits_and_fails"), names: "CALL commits_and_fails", effect: 1},
		"a procedure that commits and fails, among all": {
			handle: call("commits_and_fails"), names: "CALL commits_and_fails", whole: true, effect: 1,
		},
		"a procedure that commits and fails, twice": {
			handle: call("commits_and_fails"), names: "CALL commits_and_fails", twice: true, effect: 1,
		},
		"a procedure that commits": {handle: call("commits"), names: "CALL commits", effect: 1},
		"a procedure that commits and meets a duplicate": {
			handle: func(_ context.Context, tx *gorm.DB) error { _ = tx.Exec("CALL commits_and_repeats('bad')"); return nil },
			names:  "CALL commits_and_repeats", effect: 1,
		},
		"a procedure that commits, and then a panic": {
			handle: func(_ context.Context, tx *gorm.DB) error { _ = tx.Exec("CALL commits('bad')"); panic("oops") },
			names:  "CALL commits", effect: 1,
		},
		"a procedure that commits and misses a table": {
			handle: call("commits_and_misses"), names: "CALL commits_and_misses", effect: 1,
		},
		"a procedure with DDL":              {handle: call("commits_by_ddl"), names: "CALL commits_by_ddl", effect: 1},
		"a procedure that begins another":   {handle: call("begins_another"), names: "CALL begins_another", effect: 1},
		"a procedure that rolls back":       {handle: call("rolls_back"), names: "CALL rolls_back"},
		"a procedure that leaves a session": {handle: call("leaves_autocommit"), names: "CALL leaves_autocommit"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.oneBatch(41)
			w.withProcedures()
			each := func(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
				if m.Key == "bad" {
					return tc.handle(ctx, tx)
				}
				return insert(tx, m.Key)
			}
			w.handler = consumer.Each(each)
			if tc.whole {
				w.handler = consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
					for _, m := range msgs {
						if err := each(ctx, tx, m); err != nil {
							return err
						}
					}
					return nil
				})
			}
			good := keys("good", 40)
			all := slices.Concat(good[:20], []string{"bad"}, good[20:])
			w.publish("{}", all...)
			w.start()
			if tc.twice {
				w.start()
				w.publish("{}", all...)
			}
			w.ended(dedup.Dead, "bad")
			w.ended(dedup.Success, good...)
			w.quiet()
			settled := 0
			for _, n := range w.outcomes() {
				settled += n
			}
			w.publish("{}", all...)
			w.settled(settled + 41)
			w.quiet()
			w.ended(dedup.Dead, "bad")
			want := once(good...)
			if tc.effect > 0 {
				want["bad"] = tc.effect
			}
			w.want("effects", w.effects(), want)
			if n := w.dead(); n != 1 {
				t.Errorf("%d letters, want 1", n)
			}
			if row := w.row("bad"); row.Reason != "permanent" || !strings.Contains(row.Remark, `"`+tc.names) {
				t.Errorf("reason %q, remark %q; want permanent, which names %s", row.Reason, row.Remark, tc.names)
			}
		})
	}
}

// Given messages whose procedures leave the transaction alone, among others, then all are applied, whether the handler
// takes one or the batch.
func TestACallOfAProcedureIsAppliedByItself(t *testing.T) {
	t.Parallel()
	for _, whole := range []bool{false, true} {
		t.Run(fmt.Sprint("whole ", whole), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.oneBatch(40)
			w.withProcedures()
			each := func(_ context.Context, tx *gorm.DB, m consumer.Message) error {
				switch {
				case strings.HasSuffix(m.Key, "7") && m.Attempt == 0:
					if err := tx.Exec("CALL behaves(?)", m.Key).Error; !whole || err != nil {
						return err
					}
					return errors.New("it was let through beside others")
				case strings.HasSuffix(m.Key, "7"):
					return tx.Exec("CALL behaves(?)", m.Key).Error
				}
				return insert(tx, m.Key)
			}
			w.handler = consumer.Each(each)
			if whole {
				w.handler = consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
					for _, m := range msgs {
						if err := each(ctx, tx, m); err != nil {
							return err
						}
					}
					return nil
				})
			}
			all := keys("order", 40)
			w.publish("{}", all...)
			w.start()
			w.ended(dedup.Success, all...)
			w.quiet()
			w.want("effects", w.effects(), once(all...))
			want := map[string]int{}
			for _, k := range all {
				if strings.HasSuffix(k, "7") {
					want[k] = 1
				}
			}
			w.want("attempts of those that were claimed", w.attempts(slices.Collect(maps.Keys(want))...), want)
		})
	}
}

// Given a function of Each that drops errors of statements, then a duplicate is nobody's failure, any other error is
// that of the message whose statement it was, and so are rows in the way of its next statement. Rows that nobody closed
// behind it are in nobody's way.
func TestASwallowedErrorIsItsOwnMessages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.oneBatch(100)
	w.cfg.MaxAttempts = 1
	w.exec("CREATE TABLE taken (n INT PRIMARY KEY, CHECK (n > 0)) ENGINE=InnoDB")
	w.exec("INSERT INTO taken VALUES (1)")
	w.handler = consumer.Each(func(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
		if err := insert(tx, m.Key); err != nil {
			return err
		}
		switch m.Key[len(m.Key)-1] {
		case '3':
			_ = tx.Exec("INSERT INTO taken VALUES (1)") // it is there, so what
			return tx.Exec("UPDATE effect SET body = 'twice' WHERE k = ?", m.Key).Error
		case '5':
			_ = tx.Exec("INSERT INTO taken VALUES (-1)")
		case '7':
			rows, err := consumer.SQL(tx).QueryContext(ctx, "SELECT 1 UNION SELECT 2")
			if err == nil {
				rows.Next()
			}
			return err //nolint:sqlclosecheck // that is what is tried
		case '9':
			_ = consumer.SQL(tx).QueryRowContext(ctx, "SELECT 1 UNION SELECT 2")
			return tx.Exec("UPDATE effect SET body = 'unread' WHERE k = ?", m.Key).Error
		}
		return nil
	})
	all := keys("order", 100)
	var bad, good []string
	for _, k := range all {
		if strings.HasSuffix(k, "5") || strings.HasSuffix(k, "9") {
			bad = append(bad, k)
		} else {
			good = append(good, k)
		}
	}
	w.publish("{}", all...)
	w.start()
	w.ended(dedup.Dead, bad...)
	w.ended(dedup.Success, good...)
	w.end(map[string]int{"applied": 80, "dead_lettered": 20})
	w.want("effects", w.effects(), once(good...))
	if n := w.number("SELECT COUNT(*) FROM effect WHERE body = 'twice'"); n != 10 {
		t.Errorf("%d messages went on after a duplicate, want 10", n)
	}
	for _, k := range bad {
		want := "taken" // by the CHECK
		if strings.HasSuffix(k, "9") {
			want = mysqldb.ErrRowsOpen.Error()
		}
		if row := w.row(k); !strings.Contains(row.Remark, want) {
			t.Errorf("%s: remark %q, want %q in it", k, row.Remark, want)
		}
	}
}

// Given a text that the guard misreads and that undoes the transaction beside others, then whoever had begun is a
// letter, because nobody knows what it did, and the others are applied.
func TestATransactionThatIsGoneIsNotCommitted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.oneBatch(40)
	all := keys("order", 40)
	w.handler = consumer.Each(func(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
		if m.Key != all[19] {
			return insert(tx, m.Key)
		}
		if _, err := consumer.BehindTheGuard(tx).ExecContext(ctx, "ROLLBACK"); err != nil {
			return err
		}
		return errors.New("out of paper")
	})
	w.publish("{}", all...)
	w.start()
	w.ended(dedup.Dead, all[:20]...)
	w.ended(dedup.Success, all[20:]...)
	w.end(map[string]int{"applied": 20, "dead_lettered": 20})
	w.want("effects", w.effects(), once(all[20:]...))
	if row := w.row(all[0]); row.Reason != "permanent" || !strings.Contains(row.Remark, "has ended its transaction") {
		t.Errorf("reason %q, remark %q", row.Reason, row.Remark)
	}
}

// A row that a handler asks for and does not read harms nobody.
func TestARowThatIsNotReadHarmsNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.oneBatch(3)
	w.handler = consumer.Each(func(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
		if err := insert(tx, m.Key); err != nil {
			return err
		}
		return consumer.SQL(tx).QueryRowContext(ctx, "SELECT 1 UNION SELECT 2").Err()
	})
	all := keys("order", 3)
	w.publish("{}", all...)
	w.start()
	w.ended(dedup.Success, all...)
	w.want("effects", w.effects(), once(all...))
	w.end(map[string]int{"applied": 3})
}
