package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// below is the line that stands so far below the one that calls it, as a warning names it.
func below(lines int) string {
	_, file, line, _ := runtime.Caller(1)
	return fmt.Sprintf("%s:%d", file, line+lines)
}

const lasts = "a handler has written what no rollback takes back | "

// shelves are rows that messages share.
var shelves = []string{
	"CREATE TABLE shelf (k INT PRIMARY KEY, n INT NOT NULL) ENGINE=InnoDB",
	"INSERT INTO shelf VALUES (0, 0), (1, 0), (2, 0), (3, 0), (9, 0)",
}

// shelfOf is that of a message: the first two lock 0 and 1, the next two 1 and 0.
func shelfOf(m consumer.Message) int {
	return map[byte]int{'0': 0, '1': 1, '2': 1, '3': 0}[m.Key[len(m.Key)-1]]
}

// idle is a handler of its own type. It does nothing.
type idle struct{}

var lineOfIdle = below(2)

func (idle) Handle(context.Context, *gorm.DB, []consumer.Message) error { return nil }

const idles = "a handler has sent nothing for long while its transaction held locks | "

// warnings are what the log has of checks: what, statement, line and cure. That a handler has idled is told only if it
// is wanted, because a busy machine may stop a process for as long.
func (w *world) warnings(want string) (all []string) {
	for line := range strings.Lines(w.logs.String()) {
		idle, _, _ := strings.Cut(idles, " |")
		if !strings.Contains(line, `msg="check: `) || strings.Contains(line, idle) && !strings.HasPrefix(want, idle) {
			continue
		}
		var parts []string
		for _, name := range []string{"msg", "statement", "line", "do"} {
			found := regexp.MustCompile(` ` + name + `=("(?:[^"\\]|\\.)*"|\S+)`).FindStringSubmatch(line)
			parts = append(parts, strings.Trim(append(found, "", "")[1], `"`)) // nothing where it was not found
		}
		all = append(all, strings.Join(parts, " | "))
	}
	return all
}

// Given a handler that does what its transaction cannot hold or take back, when messages come in several batches and
// somebody checks, then the log tells of it once, with the statement, the line and the cure; the messages end as they
// would without.
func TestACheckTellsOnceWhatAHandlersTransactionCannotHold(t *testing.T) {
	type one struct {
		setup   []string
		handler func(line *string) consumer.Handler
		want    string // a part of the one warning behind "check: "; LINE stands for the line
	}
	each(t, map[string]one{
		"a table without transactions": {
			[]string{"CREATE TABLE audit (k VARBINARY(255)) ENGINE=MyISAM"},
			func(line *string) consumer.Handler {
				return by(false, func(tx *gorm.DB, m consumer.Message) error {
					err := insert(tx, m.Key)
					*line = below(1)
					return errors.Join(err, tx.Exec("INSERT INTO audit VALUES (?)", m.Key).Error)
				})
			}, lasts + "INSERT INTO audit VALUES (?) | LINE | the table DB.audit is " +
				"MyISAM: ALTER TABLE DB.audit ENGINE = InnoDB",
		},
		"a table in memory, by its model": {
			[]string{"CREATE TABLE noted (k VARCHAR(255)) ENGINE=MEMORY"},
			func(line *string) consumer.Handler {
				return by(false, func(tx *gorm.DB, m consumer.Message) error {
					*line = below(1)
					return tx.Table("noted").Create(map[string]any{"k": m.Key}).Error
				})
			}, lasts + "INSERT INTO `noted` (`k`) VALUES (?) | LINE | the table " +
				"DB.noted is MEMORY: ALTER TABLE DB.noted ENGINE = InnoDB",
		},
		"behind a trigger": {
			[]string{"CREATE TABLE audit (k VARBINARY(255)) ENGINE=MyISAM",
				"CREATE TRIGGER audits AFTER INSERT ON effect FOR EACH ROW INSERT INTO audit VALUES (NEW.k)"},
			func(line *string) consumer.Handler {
				return by(false, func(tx *gorm.DB, m consumer.Message) error {
					*line = below(1)
					_, err := consumer.SQL(tx).ExecContext(tx.Statement.Context, "INSERT INTO effect VALUES (?, '')", m.Key)
					return err
				})
			}, lasts + "INSERT INTO effect VALUES (?, '') | LINE | this statement, or " +
				"one before it in its transaction, writes by a view, a trigger or a procedure",
		},
		"it idles before it returns": {
			nil, func(line *string) consumer.Handler {
				return consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
					for _, m := range msgs {
						*line = below(1)
						if err := tx.Exec("INSERT INTO effect VALUES (?, '')", m.Key).Error; err != nil {
							return err
						}
					}
					return wait.For(ctx, 200*time.Millisecond)
				})
			}, idles + "INSERT INTO effect VALUES (?, '') | LINE | do what takes long",
		},
		"tables in another order, by models": {
			append([]string{"CREATE TABLE total (k INT PRIMARY KEY, n INT) ENGINE=InnoDB", "INSERT INTO total VALUES (1, 0)"},
				shelves...),
			func(line *string) consumer.Handler {
				return handling(func(tx *gorm.DB, msgs []consumer.Message) error {
					one, other := "shelf", "total"
					if msgs[0].Key > "order-0001" {
						one, other = other, one
					}
					for _, table := range []string{one, other} {
						*line = below(1)
						err := tx.Table(table).Where("k = ?", 1).Update("n", gorm.Expr("n + ?", len(msgs))).Error
						if err != nil {
							return err
						}
					}
					return nil
				})
			}, "a handler has locked rows in another order than for another batch | UPDATE `shelf` SET " +
				"`n`=n + ? WHERE k = ? | LINE | change rows in one order",
		},
		"nothing, in a type of its own": {
			nil, func(line *string) consumer.Handler {
				*line = lineOfIdle
				return idle{}
			}, "a handler has returned nil without a statement |  | LINE | write through the tx",
		},
		"nothing for a body, behind middleware": {
			nil, func(line *string) consumer.Handler {
				*line = below(1)
				f := func(context.Context, *gorm.DB, struct{}, consumer.Message) error { return nil }
				return consumer.With(consumer.Mux{tag: consumer.JSON(f)}, consumer.Recover)
			}, "a handler has returned nil without a statement |  | LINE | write through the tx",
		},
	}, func(t *testing.T, w *world, tc one) {
		for _, text := range tc.setup {
			w.exec(text)
		}
		elsewhere := w.open(stack.MySQL(t)) // its table has the same name, and nobody is told of it
		require.OK(t, elsewhere.Exec("CREATE TABLE audit (k INT) ENGINE=MyISAM").Error)
		line, schema := "", column[string](w, "SELECT DATABASE()")[0]
		w.cfg.Check = true
		w.oneBatch(2)
		w.handler = tc.handler(&line)
		w.startWith(keys("order", 6)...)
		w.ended(dedup.Success, keys("order", 6)...)
		w.quiet()
		got, want := w.warnings(tc.want), strings.NewReplacer("LINE", line, "DB.", schema+".").Replace("check: "+tc.want)
		assert.That(t, len(got) == 1 && strings.HasPrefix(got[0], want), "the warnings: %q, want one that begins with %q",
			got, want)
	})
}

// Given a handler that hands its transaction to a goroutine that outlives it, when that sends statements, one before
// the COMMIT and one after it, then both are refused, and the log tells from where they came.
func TestAStatementThatOutlivesItsHandlerIsTold(t *testing.T) {
	w := newWorld(t)
	w.cfg.Check = true
	late, errs := make(chan struct{}), make(chan error)
	var line string
	w.handler = by(false, func(tx *gorm.DB, m consumer.Message) error {
		go func() { // it ends with late
			for range late {
				line = below(1)
				errs <- tx.Exec("INSERT INTO effect VALUES ('late', '')").Error
			}
		}()
		return insert(tx, m.Key)
	})
	refused := func() {
		late <- struct{}{}
		err := <-errs // before which line is another's
		assert.Has(t, fmt.Sprint(err), line+": the handler has returned", "the late statement")
	}
	w.cfg.Hook = func(p consumer.Point) {
		if p == consumer.PointEffect {
			refused()
		}
	}
	w.startWith("order-0")
	w.ended(dedup.Success, "order-0")
	refused()
	close(late)
	w.applied("order-0")
	want := "check: a statement came after its handler had returned, and was refused | INSERT INTO effect VALUES " +
		"('late', '') | " + line + " | wait for the goroutines that use tx"
	got := w.warnings("")
	assert.That(t, len(got) == 1 && strings.HasPrefix(got[0], want), "the warnings: %q, want one that begins with %q",
		got, want)
}

// Given a handler that is called again because it blames a message, whether somebody checks or not, then what it wrote
// is undone inside the transaction, which goes on with the others: who keeps something by it finds it again.
func TestATransactionIsTheSameInEachCall(t *testing.T) {
	each(t, named(true, false), func(t *testing.T, w *world, check bool) {
		w.cfg.Check = check
		w.flaky("order-0001")
		calls := make(chan gorm.ConnPool, 10)
		w.batch(func(tx *gorm.DB, msgs []consumer.Message) error {
			calls <- consumer.SQL(tx)
			return blaming(msgs, w.judge)
		})
		w.judged(keys("order", 4), map[string]int{"applied": 4, "retried": 1})
		is(w, "the second call's transaction", <-calls, <-calls)
	})
}

// Given handlers that keep to the rules, when they write, read, find a row there, make a temporary table, fail, or are
// blamed, then no check warns.
func TestACheckIsSilentOfWhatATransactionHolds(t *testing.T) {
	each(t, map[string]does{
		"it writes": effectOfKey,
		"it only reads": func(tx *gorm.DB, _ consumer.Message) error {
			return tx.Raw("SELECT COUNT(*) FROM archive").Scan(new(int)).Error
		},
		"it reads what no rollback takes back": func(tx *gorm.DB, m consumer.Message) error {
			return tx.Exec("INSERT INTO effect SELECT ?, COUNT(*) FROM archive", m.Key).Error
		},
		"it changes nothing there": func(tx *gorm.DB, m consumer.Message) error {
			return tx.Exec("DELETE FROM archive WHERE k = ?", m.Key).Error
		},
		"it sorts its rows": func(tx *gorm.DB, m consumer.Message) error {
			return tx.Exec("UPDATE shelf SET n = n + 1 WHERE k = ?", m.Key[len(m.Key)-1]-'0').Error
		},
		"it locks a row before": func(tx *gorm.DB, m consumer.Message) error {
			err := tx.Raw("SELECT n FROM shelf WHERE k = 9 FOR UPDATE").Scan(new(int)).Error
			return errors.Join(err, tx.Exec("UPDATE shelf SET n = n + 1 WHERE k = ?", shelfOf(m)).Error)
		},
		"it changes no row in another order": func(tx *gorm.DB, m consumer.Message) error {
			return tx.Exec("UPDATE shelf SET n = n + 1 WHERE k = ?", 100+shelfOf(m)).Error
		},
		"it finds its row": func(tx *gorm.DB, m consumer.Message) error {
			err := insert(tx, m.Key)
			if tx.Exec("INSERT INTO consumer_log SELECT * FROM consumer_log").Error == nil {
				err = errors.New("no row was there")
			}
			return err
		},
		"it has a temporary table": func(tx *gorm.DB, m consumer.Message) error {
			err := tx.Exec("CREATE TEMPORARY TABLE IF NOT EXISTS some (k VARBINARY(255))").Error
			return errors.Join(err, tx.Exec("INSERT INTO some VALUES (?)", m.Key).Error)
		},
		"it fails at first": func(tx *gorm.DB, m consumer.Message) error {
			if m.Attempt < 2 {
				return errors.New("not yet")
			}
			return insert(tx, m.Key)
		},
	}, func(t *testing.T, w *world, f does) {
		w.exec("CREATE TABLE archive (k VARBINARY(255)) ENGINE=MyISAM")
		for _, text := range shelves {
			w.exec(text)
		}
		w.cfg.Check, w.handler = true, by(false, f)
		w.oneBatch(2)
		w.startWith(keys("order", 4)...)
		w.ended(dedup.Success, keys("order", 4)...)
		w.quiet()
		assert.Equal(t, w.warnings(""), nil, "the warnings")
	})
}
