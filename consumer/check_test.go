package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
)

// below is the line that stands so far below the one that calls it, as a warning names it.
func below(lines int) string {
	_, file, line, _ := runtime.Caller(1)
	return fmt.Sprintf("%s:%d", file, line+lines)
}

const lasts = "a handler has written what no rollback takes back | "

// idle is a handler of its own type. It does nothing.
type idle struct{}

var lineOfIdle = below(2)

func (idle) Handle(context.Context, *gorm.DB, []consumer.Message) error { return nil }

// warnings are what the log has of checks, each once: what, statement and line.
func (w *world) warnings() (all []string) {
	for line := range strings.Lines(w.logs.String()) {
		if !strings.Contains(line, `msg="check: `) {
			continue
		}
		var parts []string
		for _, name := range []string{"msg", "statement", "line", "do"} {
			found := regexp.MustCompile(` ` + name + `=("(?:[^"\\]|\\.)*"|\S+)`).FindStringSubmatch(line)
			if found == nil {
				parts = append(parts, "")
				continue
			}
			parts = append(parts, strings.Trim(found[1], `"`))
		}
		all = append(all, strings.Join(parts, " | "))
	}
	return all
}

// Given a handler that does what its transaction cannot hold or take back, when messages come in several batches and
// somebody checks, then the log tells of it once, with the statement, the line and the cure; the messages end as they
// would without.
func TestACheckTellsOnceWhatAHandlersTransactionCannotHold(t *testing.T) {
	each(t, map[string]struct {
		setup   []string
		handler func(w *world, line *string) consumer.Handler
		want    string // a part of the one warning behind "check: "; LINE stands for the line
	}{
		"a table without transactions": {
			[]string{"CREATE TABLE audit (k VARBINARY(255)) ENGINE=MyISAM"},
			func(_ *world, line *string) consumer.Handler {
				return consumer.Each(func(_ context.Context, tx *gorm.DB, m consumer.Message) error {
					if err := insert(tx, m.Key); err != nil {
						return err
					}
					*line = below(1)
					return tx.Exec("INSERT INTO audit VALUES (?)", m.Key).Error
				})
			}, lasts + "INSERT INTO audit VALUES (?) | LINE | the table DB.audit is " +
				"MyISAM: ALTER TABLE DB.audit ENGINE = InnoDB",
		},
		"a table in memory, by its model": {
			[]string{"CREATE TABLE noted (k VARCHAR(255)) ENGINE=MEMORY"},
			func(_ *world, line *string) consumer.Handler {
				return consumer.Each(func(_ context.Context, tx *gorm.DB, m consumer.Message) error {
					*line = below(1)
					return tx.Table("noted").Create(map[string]any{"k": m.Key}).Error
				})
			}, lasts + "INSERT INTO `noted` (`k`) VALUES (?) | LINE | the table " +
				"DB.noted is MEMORY: ALTER TABLE DB.noted ENGINE = InnoDB",
		},
		"behind a trigger": {
			[]string{"CREATE TABLE audit (k VARBINARY(255)) ENGINE=MyISAM",
				"CREATE TRIGGER audits AFTER INSERT ON effect FOR EACH ROW INSERT INTO audit VALUES (NEW.k)"},
			func(_ *world, line *string) consumer.Handler {
				return consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
					for _, m := range msgs {
						*line = below(1)
						_, err := consumer.SQL(tx).ExecContext(ctx, "INSERT INTO effect VALUES (?, '')", m.Key)
						if err != nil {
							return err
						}
					}
					return nil
				})
			}, lasts + "INSERT INTO effect VALUES (?, '') | LINE | this statement, or " +
				"one before it in its transaction, writes by a view, a trigger or a procedure",
		},
		"another connection": {
			nil, func(w *world, line *string) consumer.Handler {
				*line = below(1)
				return consumer.Each(func(_ context.Context, _ *gorm.DB, m consumer.Message) error {
					return insert(w.gorm, m.Key)
				})
			}, "a handler has returned nil without a statement |  | LINE | write through the tx that the handler is given",
		},
		"nothing, in a type of its own": {
			nil, func(_ *world, line *string) consumer.Handler {
				*line = lineOfIdle
				return idle{}
			}, "a handler has returned nil without a statement |  | LINE | write through the tx",
		},
		"nothing for a body, behind middleware": {
			nil, func(_ *world, line *string) consumer.Handler {
				*line = below(1)
				f := func(context.Context, *gorm.DB, struct{}, consumer.Message) error { return nil }
				return consumer.With(consumer.Mux{tag: consumer.JSON(f)}, consumer.Recover)
			}, "a handler has returned nil without a statement |  | LINE | write through the tx",
		},
	}, func(t *testing.T, w *world, tc struct {
		setup   []string
		handler func(w *world, line *string) consumer.Handler
		want    string
	}) {
		for _, text := range tc.setup {
			w.exec(text)
		}
		var line, schema string
		ok(t, w.db.QueryRowContext(t.Context(), "SELECT DATABASE()").Scan(&schema))
		w.cfg.Check, w.cfg.Lanes, w.cfg.BatchSize = true, 1, 2
		w.handler = tc.handler(w, &line)
		w.startWith(keys("order", 6)...)
		w.ended(dedup.Success, keys("order", 6)...)
		w.quiet()
		got, want := w.warnings(), strings.NewReplacer("LINE", line, "DB.", schema+".").Replace("check: "+tc.want)
		if len(got) != 1 || !strings.HasPrefix(got[0], want) {
			t.Errorf("the warnings: %q, want one that begins with %q", got, want)
		}
	})
}

// Given a handler that hands its transaction to a goroutine that outlives it, when that sends a statement, then it is
// refused, and the log tells from where it came.
func TestAStatementThatOutlivesItsHandlerIsTold(t *testing.T) {
	w := newWorld(t)
	w.cfg.Check = true
	errs, over := make(chan error), make(chan struct{})
	var line string
	w.handler = consumer.Each(func(_ context.Context, tx *gorm.DB, m consumer.Message) error {
		go func() { // joined by the test, which waits for its error
			<-over
			line = below(1)
			errs <- tx.Exec("INSERT INTO effect VALUES ('late', '')").Error
		}()
		return insert(tx, m.Key)
	})
	w.startWith("order-0")
	w.ended(dedup.Success, "order-0")
	close(over)
	if err := <-errs; err == nil || !strings.Contains(err.Error(), "the handler has returned") ||
		!strings.Contains(err.Error(), line) {
		t.Errorf("the late statement = %v, want that it is refused at %s", err, line)
	}
	w.applied("order-0")
	want := "check: a statement came after its handler had returned, and was refused | INSERT INTO effect VALUES " +
		"('late', '') | " + line + " | wait for the goroutines that use tx"
	if got := w.warnings(); len(got) != 1 || !strings.HasPrefix(got[0], want) {
		t.Errorf("the warnings: %q, want one that begins with %q", got, want)
	}
}

// Given handlers that keep to the rules, when they write, read, find a row there, make a temporary table, fail, or are
// blamed, then no check warns.
func TestACheckIsSilentOfWhatATransactionHolds(t *testing.T) {
	each(t, map[string]func(ctx context.Context, tx *gorm.DB, m consumer.Message) error{
		"it writes": func(_ context.Context, tx *gorm.DB, m consumer.Message) error { return insert(tx, m.Key) },
		"it only reads": func(_ context.Context, tx *gorm.DB, _ consumer.Message) error {
			return tx.Raw("SELECT COUNT(*) FROM archive").Scan(new(int)).Error
		},
		"it reads what no rollback takes back": func(_ context.Context, tx *gorm.DB, m consumer.Message) error {
			return tx.Exec("INSERT INTO effect SELECT ?, COUNT(*) FROM archive", m.Key).Error
		},
		"it changes nothing there": func(_ context.Context, tx *gorm.DB, m consumer.Message) error {
			return tx.Exec("DELETE FROM archive WHERE k = ?", m.Key).Error
		},
		"it finds its row": func(_ context.Context, tx *gorm.DB, m consumer.Message) error {
			if err := insert(tx, m.Key); err != nil {
				return err
			}
			if tx.Exec("INSERT INTO consumer_log SELECT * FROM consumer_log").Error == nil {
				return errors.New("no row was there")
			}
			return nil
		},
		"it has a temporary table": func(_ context.Context, tx *gorm.DB, m consumer.Message) error {
			if err := tx.Exec("CREATE TEMPORARY TABLE IF NOT EXISTS some (k VARBINARY(255))").Error; err != nil {
				return err
			}
			return tx.Exec("INSERT INTO some VALUES (?)", m.Key).Error
		},
		"it fails at first": func(_ context.Context, tx *gorm.DB, m consumer.Message) error {
			if m.Attempt < 2 {
				return errors.New("not yet")
			}
			return insert(tx, m.Key)
		},
	}, func(t *testing.T, w *world, f func(ctx context.Context, tx *gorm.DB, m consumer.Message) error) {
		w.exec("CREATE TABLE archive (k VARBINARY(255)) ENGINE=MyISAM")
		w.cfg.Check, w.handler = true, consumer.Each(f)
		w.startWith(keys("order", 3)...)
		w.ended(dedup.Success, keys("order", 3)...)
		w.quiet()
		if got := w.warnings(); len(got) > 0 {
			t.Errorf("the warnings: %q, want none", got)
		}
	})
}
