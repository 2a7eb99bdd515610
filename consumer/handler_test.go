package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// insert is what a handler of these tests writes.
func insert(tx *gorm.DB, key string) error {
	return tx.Exec("INSERT INTO effect (k, body) VALUES (?, '')", key).Error
}

// whole makes a handler of one for a message, which blames nobody.
func whole(one func(ctx context.Context, tx *gorm.DB, m consumer.Message) error) consumer.Handler {
	return consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
		for _, m := range msgs {
			if err := one(ctx, tx, m); err != nil {
				return err
			}
		}
		return nil
	})
}

// Given a handler that panics, is too slow, drops an error, prepares statements, or writes beside open rows, then
// each time is a counted attempt with its cause, its neighbours are applied, and nothing that it wrote is left.
func TestAHandlersFailureIsCountedAndLeavesNothingBehind(t *testing.T) {
	type one struct {
		handle func(ctx context.Context, tx *gorm.DB) error
		remark string
	}
	each(t, map[string]one{
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
	}, func(t *testing.T, w *world, tc one) {
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
		w.startWith("good", "bad", "fine")
		w.ended(dedup.Dead, "bad")
		w.applied("good", "fine")
		w.end(map[string]int{"applied": 2, "retried": 2, "dead_lettered": 1})
		w.wantRow("bad", wanted{Attempts: 3, Reason: "exhausted", Says: tc.remark})
		is(w, "the number is", w.number("SELECT n FROM positive"), 0)
	})
}

func TestANestedTransactionIsASavepoint(t *testing.T) {
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
	w.startWith("one", "two")
	w.ended(dedup.Success, "one", "two")
	w.want("effects", w.effects(), once("one", "inner of one", "two"))
}

func TestTheHandlerIsToldOfItsMessage(t *testing.T) {
	w := newWorld(t)
	told := make(chan consumer.Message, 10)
	w.handler = validating{
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
		if m.Attempt != attempt || m.Identity != (id("key")) ||
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
			r := w.startWith(append(keys("order", 20), "flaky")...)
			w.paused(r, "mysql")
			w.publish("{}", keys("later", 20)...)
			w.eventually("three more tries", func() bool { return w.times("later-0000")+w.times("order-0000") > 3 })
			w.exec("RENAME TABLE gone TO effect")
			all := append(append(keys("order", 20), keys("later", 20)...), "flaky")
			w.recovered(r)
			w.applied(all...)
			w.wantRow("flaky", wanted{Attempts: 3})
			is(w, "letters", w.dead(), 0)
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
	w.startWith("good", "bad")
	w.ended(dedup.Dead, "bad")
	w.applied("good")
	for _, what := range []string{"Exec", "Query", "QueryRow"} {
		if err := <-later; err == nil {
			t.Errorf("%s was not refused", what)
		}
	}
	w.wantRow("bad", wanted{Says: "cannot be null"})
}

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
	type one struct {
		handle func(ctx context.Context, tx *gorm.DB) error
		names  string // the statement
		whole  bool   // the handler takes the whole batch, and blames nobody
		twice  bool   // two engines, and each message in two copies
		effect int    // of its own
	}
	each(t, map[string]one{
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
	}, func(t *testing.T, w *world, tc one) {
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
			w.handler = whole(each)
		}
		good := keys("good", 40)
		all := slices.Concat(good[:20], []string{"bad"}, good[20:])
		w.startWith(all...)
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
		is(w, "letters", w.dead(), 1)
		w.wantRow("bad", wanted{Reason: "permanent", Says: `"` + tc.names})
	})
}

// Given messages whose procedures leave the transaction alone, among others, then all are applied, whether the handler
// takes one or the batch.
func TestACallOfAProcedureIsAppliedByItself(t *testing.T) {
	each(t, map[string]bool{"one at a time": false, "the whole": true}, func(t *testing.T, w *world, all bool) {
		w.oneBatch(40)
		w.withProcedures()
		one := func(_ context.Context, tx *gorm.DB, m consumer.Message) error {
			switch {
			case strings.HasSuffix(m.Key, "7") && m.Attempt == 0:
				if err := tx.Exec("CALL behaves(?)", m.Key).Error; !all || err != nil {
					return err
				}
				return errors.New("it was let through beside others")
			case strings.HasSuffix(m.Key, "7"):
				return tx.Exec("CALL behaves(?)", m.Key).Error
			}
			return insert(tx, m.Key)
		}
		w.handler = consumer.Each(one)
		if all {
			w.handler = whole(one)
		}
		orders := keys("order", 40)
		w.startWith(orders...)
		w.quiet()
		w.applied(orders...)
		want := map[string]int{}
		for _, k := range orders {
			if strings.HasSuffix(k, "7") {
				want[k] = 1
			}
		}
		w.want("attempts of those that were claimed", w.attempts(slices.Collect(maps.Keys(want))...), want)
	})
}

// Given a function of Each that drops errors of statements, then a duplicate is nobody's failure, any other error is
// that of the message whose statement it was, and so are rows in the way of its next statement. Rows that nobody closed
// behind it are in nobody's way.
func TestASwallowedErrorIsItsOwnMessages(t *testing.T) {
	w := newWorld(t)
	w.cfg.MaxAttempts = 1
	w.exec("CREATE TABLE taken (n INT PRIMARY KEY, CHECK (n > 0)) ENGINE=InnoDB")
	w.exec("INSERT INTO taken VALUES (1)")
	w.handler = consumer.Each(func(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
		if err := insert(tx, m.Key); err != nil {
			return err
		}
		switch m.Key[len(m.Key)-1] {
		case '1':
			return consumer.SQL(tx).QueryRowContext(ctx, "SELECT 1 UNION SELECT 2").Err() // and does not read it
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
	bad := slices.DeleteFunc(slices.Clone(all), func(k string) bool { return !strings.ContainsAny(k[len(k)-1:], "59") })
	w.judged(all, map[string]int{"applied": 80, "dead_lettered": 20}, bad...)
	is(w, "messages went on after a duplicate", w.number("SELECT COUNT(*) FROM effect WHERE body = 'twice'"), 10)
	for _, k := range bad {
		want := "taken" // by the CHECK
		if strings.HasSuffix(k, "9") {
			want = mysqldb.ErrRowsOpen.Error()
		}
		w.wantRow(k, wanted{Says: want})
	}
}

// Given a text that the guard misreads and that undoes the transaction beside others, then whoever had begun is a
// letter, because nobody knows what it did, and the others are applied.
func TestATransactionThatIsGoneIsNotCommitted(t *testing.T) {
	w := newWorld(t)
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
	w.judged(all, map[string]int{"applied": 20, "dead_lettered": 20}, all[:20]...)
	w.wantRow(all[0], wanted{Reason: "permanent", Says: "has ended its transaction"})
}

// refusal is a statement that a server refuses; the numbers are those of its errors.
type refusal struct {
	text           string
	mariaDB, mySQL int
}

// refusals are of many kinds. None says that anything is wrong with the server.
var refusals = map[string]refusal{
	"collations":       {"DELETE FROM note WHERE u COLLATE utf8mb3_bin = u COLLATE utf8mb3_general_ci", 1267, 1267},
	"collations of 3":  {"DELETE FROM note WHERE u COLLATE utf8mb3_bin IN (u COLLATE utf8mb3_general_ci, '')", 1270, 1270},
	"emoji sought":     {"DELETE FROM note WHERE l = '😀'", 1267, 3854},
	"emoji of 3":       {"DELETE FROM note WHERE u IN ('😀', 'x')", 1270, 3854},
	"emoji written":    {"UPDATE note SET l = '😀'", 1366, 1366},
	"no text":          {"DELETE FROM note WHERE l = _utf8mb4 x'ff'", 1300, 1300},
	"two rows":         {"UPDATE note SET n = (SELECT id FROM (SELECT id FROM note) x)", 1242, 1242},
	"no expression":    {"DELETE FROM note WHERE l REGEXP '('", 1139, 3691},
	"a row too wide":   {"INSERT INTO wide SELECT 1" + strings.Repeat(", REPEAT('x', 1000)", 12), 1118, 1118},
	"out of range":     {"UPDATE note SET n = n - 1", 1690, 1690},
	"no JSON":          {"UPDATE note SET j = '{'", 4025, 3140},
	"CHECK":            {"UPDATE note SET c = 0", 4025, 3819},
	"generated":        {"UPDATE note SET g = 7", 1906, 3105},
	"SIGNAL 02":        {"INSERT INTO told VALUES ('02')", 1643, 1643},
	"SIGNAL 45":        {"INSERT INTO told VALUES ('45')", 1644, 1644},
	"SIGNAL HY":        {"INSERT INTO told VALUES ('HY')", 1644, 1644},
	"SIGNAL 08":        {"INSERT INTO told VALUES ('08')", 1644, 1644},
	"SIGNAL 40":        {"INSERT INTO told VALUES ('40')", 1644, 1644},
	"SIGNAL's 1213":    {"INSERT INTO told VALUES ('1213')", 1213, 1213},
	"SIGNAL's 45, too": {"INSERT INTO told VALUES ('1213,45')", 1213, 1213},
}

// warned is a message whose trigger says SQLSTATE 01: a warning, which neither server makes an error of.
const warned = "INSERT INTO told VALUES ('01')"

// refusing makes what the refusals meet. Its messages are statements, which the handler runs before it writes their
// effect; eachBlamed, it says whose failed.
func (w *world) refusing(eachBlamed bool) {
	w.t.Helper()
	w.exec("CREATE TABLE note (id INT PRIMARY KEY, l VARCHAR(9) CHARACTER SET latin1, u VARCHAR(9) CHARACTER SET " +
		"utf8mb3, n BIGINT UNSIGNED, j JSON, g INT AS (id + 1) STORED, c INT, CHECK (c > 0)) ENGINE=InnoDB")
	w.exec("INSERT INTO note (id, l, u, n, j, c) VALUES (1, 'a', 'b', 0, '{}', 1), (2, 'a', 'b', 0, '{}', 1)")
	var columns []string
	for i := range 12 {
		columns = append(columns, fmt.Sprintf("c%d TEXT", i))
	}
	lax := w.conn()
	w.execOn(lax, "SET SESSION innodb_strict_mode = OFF")
	w.execOn(lax, "CREATE TABLE wide (id INT PRIMARY KEY, "+strings.Join(columns, ", ")+") ENGINE=InnoDB "+
		"ROW_FORMAT=COMPACT")
	w.exec("CREATE TABLE told (s CHAR(9)) ENGINE=InnoDB")
	w.exec(`CREATE TRIGGER tells BEFORE INSERT ON told FOR EACH ROW BEGIN
		IF NEW.s = '01' THEN SIGNAL SQLSTATE '01000' SET MESSAGE_TEXT = 'no'; END IF;
		IF NEW.s = '02' THEN SIGNAL SQLSTATE '02000' SET MESSAGE_TEXT = 'no'; END IF;
		IF NEW.s = '45' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no'; END IF;
		IF NEW.s = 'HY' THEN SIGNAL SQLSTATE 'HY000' SET MESSAGE_TEXT = 'no'; END IF;
		IF NEW.s = '08' THEN SIGNAL SQLSTATE '08S01' SET MESSAGE_TEXT = 'no'; END IF;
		IF NEW.s = '40' THEN SIGNAL SQLSTATE '40001' SET MESSAGE_TEXT = 'no'; END IF;
		IF NEW.s = '1213' THEN SIGNAL SQLSTATE 'HY000' SET MESSAGE_TEXT = 'no', MYSQL_ERRNO = 1213; END IF;
		IF NEW.s = '1213,45' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no', MYSQL_ERRNO = 1213; END IF;
	END`)
	one := func(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
		if err := tx.WithContext(ctx).Exec(string(m.Body)).Error; err != nil {
			return err
		}
		return insert(tx.WithContext(ctx), m.Key)
	}
	w.handler = whole(one)
	if eachBlamed {
		w.handler = consumer.Each(one)
	}
}

// likeDefault has the proportions of the default settings, fifty times as fast.
func (w *world) likeDefault() {
	w.cfg.MaxAttempts, w.cfg.RetryDelays = 5, []time.Duration{
		20 * time.Millisecond, 100 * time.Millisecond, 600 * time.Millisecond, 2400 * time.Millisecond,
	}
	w.cfg.Lanes, w.cfg.BatchSize, w.cfg.Prefetch = 4, 1000, 2000
	w.cfg.HandlerTimeout, w.cfg.Lease = 10*time.Second, 30*time.Second
	w.cfg.MaxDead, w.cfg.MaxDeadWindow, w.cfg.BrakePause = 0, 0, 0
	w.broker.Track(w.topology().Queues()...)
	w.records = w.log(w.open(w.direct))
}

// Given messages whose statements the server refuses, each for another reason, when they are all there is, and when
// they come among others, and whether or not the handler says whose statement it was, then each of them is a letter
// after its attempts, with the server's words, all others are applied, and nobody waits for a MySQL that is there.
func TestWhatAServerRefusesOfAStatementIsTheMessagesFailure(t *testing.T) {
	each(t, map[string]bool{"blamed": true, "halved": false}, func(t *testing.T, w *world, eachBlamed bool) {
		w.likeDefault()
		w.refusing(eachBlamed)
		number := func(r refusal) int { return r.mariaDB }
		if w.number("SELECT VERSION() LIKE '%MariaDB%'") == 0 {
			number = func(r refusal) int { return r.mySQL }
		}
		messages := func(where string) (msgs []rabbit.Message, poison []string) {
			for _, what := range slices.Sorted(maps.Keys(refusals)) {
				poison = append(poison, where+what)
				msgs = append(msgs, message(where+what, refusals[what].text))
			}
			return msgs, poison
		}
		r := w.start()

		alone, poisonAlone := messages("alone: ")
		w.publishMessages(alone...)
		w.ended(dedup.Dead, poisonAlone...)

		among, poisonAmong := messages("among: ")
		all := append(keys("order", 200), "warned")
		for i, k := range all {
			text := "UPDATE note SET n = n WHERE id = 1"
			if k == "warned" {
				text = warned
			}
			among = slices.Insert(among, (i*7)%len(among), message(k, text))
		}
		w.publishMessages(among...)
		w.ended(dedup.Success, all...)
		w.ended(dedup.Dead, poisonAmong...)
		w.quiet()

		for _, where := range []string{"alone: ", "among: "} {
			for what, refused := range refusals {
				row := w.row(where + what)
				words := fmt.Sprintf("Error %d ", number(refused))
				if row.Attempts != w.cfg.MaxAttempts || row.Reason != dedup.ReasonExhausted ||
					!strings.Contains(row.Remark, words) {
					t.Errorf("%s%s: %d attempts, %s, %q; want %d, exhausted, %q", where, what, row.Attempts, row.Reason,
						row.Remark, w.cfg.MaxAttempts, words)
				}
			}
		}
		w.want("effects", w.effects(), once(all...))
		is(w, "letters", w.dead(), 2*len(refusals))
		if s := r.State(); !s.Consuming || len(s.Paused) > 0 { // on a busy machine transactions may wait for each other
			t.Errorf("state %+v, want consuming and nothing that waits", s)
		}
		if log := w.logs.String(); strings.Contains(log, "waiting for mysql") {
			t.Errorf("it waited for MySQL:\n%s", log)
		}
	})
}

func message(key, body string) rabbit.Message {
	return rabbit.Message{MessageID: key, Body: []byte(body), DeliveryMode: rabbit.Persistent}
}

// Given a procedure that is missing, when it is called and nothing else is done, then MySQL is named, no attempt is
// counted, and all goes on by itself when it is there.
func TestAMissingProcedureIsNobodysFault(t *testing.T) {
	w := newWorld(t)
	w.likeDefault()
	w.refusing(false)
	w.publish("CALL reckon()", "one", "two")
	r := w.start()
	w.paused(r, "mysql")
	if s := r.State(); !strings.Contains(strings.Join(s.Paused, " "), "Error 1305") {
		t.Errorf("state %+v, want error 1305 named", s)
	}
	w.exec("CREATE PROCEDURE reckon() UPDATE note SET n = n + 1")
	w.ended(dedup.Success, "one", "two")
	w.recovered(r)
	w.quiet()
	for _, k := range []string{"one", "two"} {
		w.wantRow(k, wanted{Attempts: 1})
	}
	if n := w.number("SELECT n FROM note WHERE id = 2"); n != 2 {
		t.Errorf("it was called %d times for good, want 2", n)
	}
}

// neverReturns waits for release, whatever its context says: its name is to be seen in stacks.
func neverReturns(release <-chan struct{}) { <-release }

// hanging makes handlers that never return for one message, and that have changed a row by then which others need.
func hanging(w *world, guilty string, release <-chan struct{}) map[string]consumer.Handler {
	one := func(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
		if err := tx.Exec("UPDATE shelf SET touched = touched + 1 WHERE id = 1").Error; err != nil {
			return err
		}
		if m.Key == guilty {
			neverReturns(release)
			return ctx.Err()
		}
		return w.handle(ctx, tx, []consumer.Message{m})
	}
	return map[string]consumer.Handler{
		"each":    consumer.Each(one),
		"a batch": whole(one),
	}
}

// Given 40 messages and two consumers, when the handler never returns for one of them, then all others keep their
// effects and their attempts, and that one becomes a letter which says where the handler stands.
func TestAHandlerThatNeverReturnsStopsNobodyElse(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"each", "a batch"} {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t)
			w.patience = 2 * time.Minute
			w.cfg.BatchSize, w.cfg.Prefetch, w.cfg.MaxAttempts = 40, 80, 2
			w.exec("CREATE TABLE shelf (id INT PRIMARY KEY, touched INT NOT NULL) ENGINE=InnoDB")
			w.exec("INSERT INTO shelf VALUES (1, 0)")
			release := make(chan struct{})
			all := keys("order", 40)
			guilty := all[7]
			w.handler = hanging(w, guilty, release)[kind]
			w.publish("{}", all...)
			engines := []*running{w.launch(), w.launch()}
			free := sync.OnceFunc(func() { close(release) })
			defer free()

			innocent := without(all, guilty)
			w.ended(dedup.Dead, guilty)
			w.applied(innocent...)
			w.want("attempts", w.attempts(all...), func() map[string]int {
				n := once(innocent...)
				n[guilty] = 2
				return n
			}())
			if n := w.number("SELECT touched FROM shelf"); n != 39 {
				t.Errorf("the row that all change was changed %d times, want 39", n)
			}
			remark := column[string](w, "SELECT remark FROM consumer_log WHERE consumer_status = 3")[0]
			if !strings.Contains(remark, "neverReturns") {
				t.Errorf("the letter's remark does not say where the handler stands: %s", remark)
			}
			log := w.logs.String()
			for _, want := range []string{"the handler does not return", guilty, "neverReturns"} {
				if !strings.Contains(log, want) {
					t.Errorf("the log does not say %q", want)
				}
			}
			stuck := 0
			for _, e := range engines {
				s := e.State()
				if !slices.ContainsFunc(s.Degraded, func(why string) bool { return strings.Contains(why, "has not returned") }) {
					continue
				}
				stuck++
				if s.Still < w.cfg.HandlerTimeout {
					t.Errorf("Still = %v beside a call that has not returned", s.Still)
				}
			}
			if n := w.counts("rollbackd_degraded")[w.cfg.Queue]; stuck == 0 || n != stuck {
				t.Errorf("%d engines say that a call is stuck, %d by their metrics", stuck, n)
			}
			// a goroutine that cannot be joined is named
			named := 0
			for _, e := range engines {
				if err := e.drained(); errors.Is(err, consumer.ErrStuck) && strings.Contains(err.Error(), guilty) {
					named++
				} else if err != nil {
					t.Errorf("Run = %v, want nil or ErrStuck with %s", err, guilty)
				}
			}
			if named != stuck {
				t.Errorf("%d of %d ends with a stuck call name its message", named, stuck)
			}
			free()
			w.eventually("the handler has returned after all", func() bool {
				return w.counts("rollbackd_degraded")[w.cfg.Queue] == 0
			})
			w.want("effects", w.effects(), once(innocent...))
		})
	}
}

// A stop does not wait for a handler that never returns, and says for whom it stands.
func TestADrainNamesTheMessageWhoseHandlerNeverReturns(t *testing.T) {
	w := newWorld(t)
	w.cfg.DrainTimeout = 300 * time.Millisecond
	w.cfg.HandlerTimeout, w.cfg.Lease = 20*time.Second, 60*time.Second
	release, inside := make(chan struct{}), make(chan struct{})
	var first sync.Once
	w.handler = consumer.Each(func(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
		if m.Key == "order-0003" {
			first.Do(func() { close(inside) })
			neverReturns(release)
		}
		return w.handle(ctx, tx, []consumer.Message{m})
	})
	all := keys("order", 10)
	w.publish("{}", all...)
	r := w.launch()
	await(t, inside, "the handler is stuck")
	began := time.Now()
	err := r.drained()
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %v, want 300ms and at most 2s for what is stuck", took)
	}
	if !errors.Is(err, consumer.ErrDrainTimeout) || !errors.Is(err, consumer.ErrStuck) ||
		!strings.Contains(err.Error(), "order-0003") {
		t.Errorf("Run = %v, want ErrDrainTimeout, and ErrStuck with order-0003", err)
	}
	if log := w.logs.String(); !strings.Contains(log, "neverReturns") {
		t.Errorf("the log does not say where the handler stands:\n%s", log)
	}
	close(release)
	w.logged("returned after all")
	w.start()
	w.applied(all...)
}

// A handler that returns from no call any more cannot blame its messages one after the other: Run ends, and a new
// process goes on.
func TestManyCallsThatNeverReturnEndRun(t *testing.T) {
	w := newWorld(t)
	w.cfg.Lanes, w.cfg.BatchSize, w.cfg.Prefetch = 4, 10, 20
	release := make(chan struct{})
	var calls sync.WaitGroup
	healthy := w.handler
	w.handler = consumer.HandlerFunc(func(context.Context, *gorm.DB, []consumer.Message) error {
		calls.Add(1)
		defer calls.Done()
		neverReturns(release)
		return nil
	})
	all := keys("order", 100)
	w.publish("{}", all...)
	r := w.launch()
	defer r.drained()
	var err error
	select {
	case err = <-r.done:
		close(r.done)
	case <-time.After(w.patience):
		t.Errorf("Run goes on after %v", w.patience)
	}
	if !errors.Is(err, consumer.ErrStuck) {
		t.Errorf("Run = %v, want ErrStuck", err)
	}
	is(w, "messages are dead letters", w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 3"), 0)
	close(release)
	calls.Wait()
	w.handler = healthy
	w.start()
	w.applied(all...)
}

// A handler that ends its goroutine has failed, as with a panic: its lane goes on.
func TestAHandlerThatEndsItsGoroutineHasFailed(t *testing.T) {
	guilty, all := "order-0007", keys("order", 40)
	exits := func(m consumer.Message) {
		if m.Key == guilty {
			runtime.Goexit()
		}
	}
	type one struct {
		handler  func(*world) consumer.Handler
		attempts int
	}
	each(t, map[string]one{
		"handle": {func(w *world) consumer.Handler {
			return consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
				for _, m := range msgs {
					exits(m)
				}
				return w.handle(ctx, tx, msgs)
			})
		}, 2},
		"validate": {func(w *world) consumer.Handler {
			return &validating{w.handler, func(m *consumer.Message) error { exits(*m); return nil }}
		}, 0},
		"calls": {func(w *world) consumer.Handler {
			return consumer.Calls(func(ctx context.Context, m consumer.Message) error {
				exits(m)
				w.exec("INSERT INTO effect (k, body) VALUES (?, '')", m.Key)
				return nil
			}, consumer.CallOptions{})
		}, 2},
	}, func(t *testing.T, w *world, c one) {
		w.oneBatch(40)
		w.cfg.BatchLinger, w.cfg.MaxAttempts = 100*time.Millisecond, 2
		w.handler = c.handler(w)
		w.startWith(all...)
		innocent := without(all, guilty)
		w.ended(dedup.Dead, guilty)
		w.applied(innocent...)
		want := once(innocent...)
		want[guilty] = c.attempts
		w.want("attempts", w.attempts(all...), want)
		remark := column[string](w, "SELECT remark FROM consumer_log WHERE consumer_status = 3")[0]
		if !strings.Contains(remark, "Goexit") {
			t.Errorf("the letter does not say why: %s", remark)
		}
	})
}

// A body that makes Validate run without an end is a malformed one.
func TestAValidatorThatNeverReturnsStopsNobodyElse(t *testing.T) {
	w := newWorld(t)
	w.oneBatch(40)
	w.cfg.BatchLinger = 100 * time.Millisecond
	release := make(chan struct{})
	guilty, all := "order-0007", keys("order", 40)
	w.handler = &validating{w.handler, func(m *consumer.Message) error {
		if m.Key == guilty {
			neverReturns(release)
		}
		m.Value = fmt.Sprint("of ", m.Key)
		return nil
	}}
	w.publish("{}", all...)
	r := w.launch()
	innocent := without(all, guilty)
	w.ended(dedup.Dead, guilty)
	w.applied(innocent...)
	if err := r.drained(); !errors.Is(err, consumer.ErrStuck) {
		t.Errorf("Run = %v, want ErrStuck", err)
	}
	close(release)
	w.logged("returned after all")
}

// Functions of Calls that never return: nobody knows what they have done, which is an attempt when others succeed.
func TestACallThatNeverReturnsStopsNobodyElse(t *testing.T) {
	w := newWorld(t)
	w.cfg.MaxAttempts = 2
	release := make(chan struct{})
	guilty, all := "order-0007", keys("order", 40)
	s := newShopService()
	s.answering(func(_ context.Context, m consumer.Message) error {
		if m.Key == guilty {
			neverReturns(release)
		}
		return nil
	})
	w.handler = consumer.Calls(s.call, consumer.CallOptions{Concurrency: 4})
	w.publish("{}", all...)
	r := w.launch()
	innocent := without(all, guilty)
	w.ended(dedup.Success, innocent...)
	for i := 0; w.row(guilty).Status != dedup.Dead && !t.Failed(); i++ { // others that succeed meanwhile
		more := fmt.Sprintf("more-%04d", i)
		w.publish("{}", more)
		w.ended(dedup.Success, more)
	}
	if err := r.drained(); !errors.Is(err, consumer.ErrStuck) || !strings.Contains(err.Error(), guilty) {
		t.Errorf("Run = %v, want ErrStuck with %s", err, guilty)
	}
	close(release)
	w.logged("returned after all")
}

// Given a batch whose first message fails, when the last one never returns from the call that is made without the
// first, then it alone pays for that: its place is that among all messages, and not among those of the second call.
func TestWhoNeverReturnsBehindABlamedOnePaysItself(t *testing.T) {
	w := newWorld(t)
	w.patience = 2 * time.Minute
	w.cfg.Lanes, w.cfg.BatchSize, w.cfg.Prefetch, w.cfg.MaxAttempts = 1, 4, 8, 2
	release := make(chan struct{})
	defer close(release)
	all := keys("order", 4)
	w.handler = consumer.Each(func(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
		switch m.Key {
		case all[0]:
			return errors.New("no such shelf")
		case all[3]:
			neverReturns(release)
			return ctx.Err()
		}
		return w.handle(ctx, tx, []consumer.Message{m})
	})
	w.publish("{}", all...)
	r := w.launch()
	w.ended(dedup.Success, all[1:3]...)
	w.ended(dedup.Dead, all[0], all[3])
	w.want("attempts", w.attempts(all...), map[string]int{all[0]: 2, all[1]: 1, all[2]: 1, all[3]: 2})
	if err := r.drained(); !errors.Is(err, consumer.ErrStuck) {
		t.Errorf("Run = %v, want ErrStuck", err)
	}
}
