package consumer_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// insert is what a handler of these tests writes.
func insert(tx *gorm.DB, key string) error {
	return tx.Exec("INSERT INTO effect (k, body) VALUES (?, '')", key).Error
}

func insertAll(tx *gorm.DB, msgs []consumer.Message) error {
	for _, m := range msgs {
		if err := insert(tx, m.Key); err != nil {
			return err
		}
	}
	return nil
}

// handling makes a handler of one for all messages.
func handling(do func(tx *gorm.DB, msgs []consumer.Message) error) consumer.Handler {
	return consumer.HandlerFunc(func(_ context.Context, tx *gorm.DB, all []consumer.Message) error { return do(tx, all) })
}

// whole makes a handler of one for a message, which blames nobody.
func whole(one does) consumer.Handler {
	return handling(func(tx *gorm.DB, msgs []consumer.Message) error {
		for _, m := range msgs {
			if err := one(tx, m); err != nil {
				return err
			}
		}
		return nil
	})
}

// excepting writes the effects of those that guilty has no error of, and blames the others.
func excepting(tx *gorm.DB, msgs []consumer.Message, guilty func(consumer.Message) error) error {
	var out []consumer.BlamedMessage
	for i, m := range msgs {
		if err := guilty(m); err != nil {
			out = append(out, consumer.BlamedMessage{Index: i, Err: err})
		} else if err := insert(tx, m.Key); err != nil {
			return err
		}
	}
	return consumer.Except(out...)
}

// writingAndBlaming writes the effects of all, and then blames those that guilty has an error of.
func writingAndBlaming(tx *gorm.DB, msgs []consumer.Message, guilty func(consumer.Message) error) error {
	return errors.Join(insertAll(tx, msgs), blaming(msgs, guilty))
}

// by makes a handler of one for a message: of the whole batch, or of each by itself.
func by(all bool, one does) consumer.Handler {
	if all {
		return whole(one)
	}
	return consumer.Each(func(_ context.Context, tx *gorm.DB, m consumer.Message) error { return one(tx, m) })
}

// does is what a handler of these tests does for a message.
type does func(tx *gorm.DB, m consumer.Message) error

// text runs a text, and swallow does not heed an error.
func text(text string) does {
	return func(tx *gorm.DB, _ consumer.Message) error { return tx.Exec(text).Error }
}

func swallow(do does) does {
	return func(tx *gorm.DB, m consumer.Message) error { _ = do(tx, m); return nil }
}

// then does one thing after the other, whatever came of the first.
func then(first, second does) does {
	return func(tx *gorm.DB, m consumer.Message) error { _ = first(tx, m); return second(tx, m) }
}

func panics(why any) does { return func(*gorm.DB, consumer.Message) error { panic(why) } }

// hand runs texts by hand, one after the other, and heeds no error.
func hand(texts ...string) does {
	return func(tx *gorm.DB, _ consumer.Message) error {
		for _, text := range texts {
			_, _ = consumer.SQL(tx).ExecContext(tx.Statement.Context, text)
		}
		return nil
	}
}

// Given a handler that panics, is too slow, drops an error, prepares statements, or writes beside open rows, then
// each time is a counted attempt with its cause, its neighbours are applied, and nothing that it wrote is left.
func TestAHandlersFailureIsCountedAndLeavesNothingBehind(t *testing.T) {
	const minus, write = "UPDATE positive SET n = n - 1", "INSERT INTO effect VALUES ('bad', '')"
	type one struct {
		handle does
		remark string
	}
	ways := map[string]one{
		"panic":               {panics("no index"), "handler panicked: no index\ngoroutine"},
		"panic with an error": {panics(errors.New("broken")), "handler panicked: broken"},
		"an error that is a nil pointer": {func(*gorm.DB, consumer.Message) error { return (*fs.PathError)(nil) },
			"handler panicked: runtime error"},
		"too slow": {func(tx *gorm.DB, m consumer.Message) error {
			<-tx.Statement.Context.Done()
			return tx.Statement.Context.Err()
		}, "handler timeout: over 2s"},
		"too slow and deaf": {func(tx *gorm.DB, _ consumer.Message) error { <-tx.Statement.Context.Done(); return nil },
			"handler timeout: over 2s"},
		"a CHECK refuses":                   {text(minus), "positive"},
		"a swallowed CHECK":                 {swallow(text(minus)), "positive"},
		"a swallowed CHECK in SQL by hand":  {hand(minus, write), "positive"},
		"a swallowed NULL in SQL by hand":   {hand("INSERT INTO effect VALUES (NULL, '')", write), "cannot be null"},
		"a statement larger than MySQL has": {text("SELECT LENGTH('" + strings.Repeat("x", 200_000) + "')"), "too large"},
		"a swallowed error of a row in SQL by hand": {func(tx *gorm.DB, m consumer.Message) error {
			_ = consumer.SQL(tx).QueryRowContext(tx.Statement.Context, "SELECT 9223372036854775807 + ?", 1).Scan(new(int))
			return nil
		}, "out of range"},
		"what comes behind a swallowed error": {func(tx *gorm.DB, m consumer.Message) error {
			_ = hand(minus)(tx, m)
			db, ctx := consumer.SQL(tx), tx.Statement.Context
			rows, err := db.QueryContext(ctx, "SELECT 1")
			if err == nil {
				_ = rows.Close()
			}
			_, errOfExec := db.ExecContext(ctx, write)
			if err == nil || errOfExec == nil || db.QueryRowContext(ctx, "SELECT 1").Scan(new(int)) == nil {
				return errors.New("it was not refused")
			}
			return nil
		}, "positive"},
		"a statement while the rows of a query are open": {func(tx *gorm.DB, m consumer.Message) error {
			rows, err := consumer.SQL(tx).QueryContext(tx.Statement.Context,
				"SELECT n FROM positive UNION ALL SELECT 2 UNION ALL SELECT 3")
			if err != nil {
				return err
			}
			defer rows.Close()
			for rows.Next() {
				if err := insert(tx, m.Key); err != nil {
					return err
				}
			}
			return rows.Err()
		}, "must be read or closed"},
		"a prepared statement, whose errors nobody would see": {func(tx *gorm.DB, m consumer.Message) error {
			_, _ = tx.Statement.ConnPool.PrepareContext(tx.Statement.Context, write)
			return nil
		}, "no prepared statements"},
		"blames a message that is not there": {func(*gorm.DB, consumer.Message) error {
			return consumer.Blame(consumer.BlamedMessage{Index: 99, Err: errors.New("what")})
		}, "message 99"},
	}
	w := newWorld(t)
	w.cfg.HandlerTimeout = 2 * time.Second
	w.dsn += "?maxAllowedPacket=100000"
	w.exec("CREATE TABLE positive (n INT PRIMARY KEY, CHECK (n >= 0)) ENGINE=InnoDB")
	w.exec("INSERT INTO positive VALUES (0)")
	w.handler = whole(func(tx *gorm.DB, m consumer.Message) error {
		if way, bad := ways[m.Key]; bad {
			return errors.Join(insert(tx, m.Key), way.handle(tx, m))
		}
		return insert(tx, m.Key)
	})
	bad, good := slices.Collect(maps.Keys(ways)), keys("good", 20)
	w.startWith(slices.Concat(good[:10], bad, good[10:])...)
	w.rests(good, bad...)
	for name, tc := range ways {
		w.wantRow(name, wanted{Attempts: 3, Reason: "exhausted", Says: tc.remark})
	}
	got := w.outcomes()
	delete(got, "in_progress") // copies that were a little early
	w.want("outcomes", got, map[string]int{"applied": 20, "retried": 2 * len(bad), "dead_lettered": len(bad)})
	is(w, "the number is", w.number("SELECT n FROM positive"), 0)
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
}

// call calls a procedure.
func call(name string) does {
	return func(tx *gorm.DB, m consumer.Message) error { return tx.Exec("CALL "+name+"(?)", m.Key).Error }
}

// Given messages among forty whose calls end the transaction, each in its way, when all are sent, and sent again, then
// each of the others has its effect once, nobody says success without one, and each of those is a letter which names
// the statement.
func TestACallThatEndsItsTransactionHarmsNobodyElse(t *testing.T) {
	type way struct {
		handle does
		names  string // the statement
		effect int    // of its own
	}
	fails := func(*gorm.DB, consumer.Message) error { return errors.New("out of paper") }
	ways := map[string]way{
		"COMMIT":                    {text("COMMIT"), "COMMIT", 0},
		"COMMIT, hidden, unheeded":  {swallow(text("/*! commit */")), "commit", 0},
		"COMMIT, and another error": {then(text("COMMIT"), fails), "COMMIT", 0},
		"ROLLBACK":                  {text("ROLLBACK"), "ROLLBACK", 0},
		"gorm's Commit":             {func(tx *gorm.DB, _ consumer.Message) error { return tx.Commit().Error }, "COMMIT", 0},
		"gorm's Rollback, unheeded": {swallow(func(tx *gorm.DB, _ consumer.Message) error { return tx.Rollback().Error }),
			"ROLLBACK", 0},
		"COMMIT, prepared": {func(tx *gorm.DB, _ consumer.Message) error {
			_, err := tx.Statement.ConnPool.PrepareContext(tx.Statement.Context, "COMMIT")
			return err
		}, "COMMIT", 0},
		"COMMIT by tx.ConnPool": {func(tx *gorm.DB, _ consumer.Message) error {
			rows, err := tx.ConnPool.QueryContext(tx.Statement.Context, "COMMIT")
			if err == nil {
				err = rows.Close()
			}
			return err
		}, "COMMIT", 0},
		"COMMIT as a row": {func(tx *gorm.DB, _ consumer.Message) error {
			return consumer.SQL(tx).QueryRowContext(tx.Statement.Context, "COMMIT").Scan(new(int))
		}, "COMMIT", 0},
		"a procedure, commits and fails":             {call("commits_and_fails"), "CALL commits_and_fails", 1},
		"a procedure, commits":                       {call("commits"), "CALL commits", 1},
		"a procedure, commits, then a panic":         {then(call("commits"), panics("oops")), "CALL commits", 1},
		"a procedure, commits and misses a table":    {call("commits_and_misses"), "CALL commits_and_misses", 1},
		"a procedure, DDL":                           {call("commits_by_ddl"), "CALL commits_by_ddl", 1},
		"a procedure, begins another":                {call("begins_another"), "CALL begins_another", 1},
		"a procedure, rolls back":                    {call("rolls_back"), "CALL rolls_back", 0},
		"a procedure, leaves a session":              {call("leaves_autocommit"), "CALL leaves_autocommit", 0},
		"a procedure, commits and meets a duplicate": {swallow(call("commits_and_repeats")), "CALL commits_and_repeats", 1},
	}
	type one struct {
		whole   bool // the handler takes the whole batch, and blames nobody
		engines int  // and copies
	}
	each(t, named(one{false, 1}, one{false, 2}, one{true, 1}), func(t *testing.T, w *world, tc one) {
		bad, good := slices.Sorted(maps.Keys(ways)), keys("good", 40)
		w.oneBatch(len(ways) + 40)
		w.exec("CREATE TABLE taken (n INT PRIMARY KEY) ENGINE=InnoDB")
		w.exec("INSERT INTO taken VALUES (1)")
		for name, body := range procedures {
			w.exec(fmt.Sprintf("CREATE PROCEDURE %s(name VARCHAR(99)) BEGIN %s; END", name, body))
		}
		w.handler = by(tc.whole, func(tx *gorm.DB, m consumer.Message) error {
			if way, bad := ways[m.Key]; bad {
				return way.handle(tx, m)
			}
			return insert(tx, m.Key)
		})
		all := slices.Clone(good)
		for i, k := range bad {
			all = slices.Insert(all, 2*i+1, k)
		}
		w.publish("{}", all...)
		for range tc.engines {
			w.start()
		}
		for range 1 + tc.engines { // and once more, when all is over
			w.ended(dedup.Dead, bad...)
			w.ended(dedup.Success, good...)
			w.quiet()
			w.publish("{}", all...)
		}
		w.quiet()
		want := once(good...)
		for name, way := range ways {
			w.wantRow(name, wanted{Status: dedup.Dead, Attempts: way.effect, Reason: "permanent", Says: `"` + way.names})
			if way.effect > 0 {
				want[name] = way.effect
			}
		}
		w.want("effects", w.effects(), want)
		w.want("letters", w.letters(), once(bad...))
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
	w.doing(func(tx *gorm.DB, m consumer.Message) error {
		ctx := tx.Statement.Context
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
	w.doing(func(tx *gorm.DB, m consumer.Message) error {
		if m.Key != all[19] {
			return nil
		}
		_, err := consumer.BehindTheGuard(tx).ExecContext(tx.Statement.Context, "ROLLBACK")
		return errors.Join(err, errors.New("out of paper"))
	})
	w.judged(all, map[string]int{"applied": 20, "dead_lettered": 20}, all[:20]...)
	w.wantRow(all[0], wanted{Reason: "permanent", Says: "has ended its transaction"})
}

func message(key, body string) rabbit.Message {
	return rabbit.Message{MessageID: key, Body: []byte(body), DeliveryMode: rabbit.Persistent}
}

// neverReturns waits for release, whatever its context says: its name is to be seen in stacks.
func neverReturns(release <-chan struct{}) { <-release }

// Given 40 messages and two consumers, when the handler never returns for one of them, when it has changed a row that
// others need, then all others keep their effects and their attempts, and that one becomes a letter which says where
// the handler stands.
func TestAHandlerThatNeverReturnsStopsNobodyElse(t *testing.T) {
	each(t, map[string]bool{"each": false, "a batch": true}, func(t *testing.T, w *world, all bool) {
		w.patience = 2 * time.Minute
		w.cfg.HandlerTimeout, w.cfg.Lease = 2*time.Second, 6*time.Second
		w.cfg.BatchSize, w.cfg.Prefetch, w.cfg.MaxAttempts = 40, 80, 2
		w.exec("CREATE TABLE shelf (id INT PRIMARY KEY, touched INT NOT NULL) ENGINE=InnoDB")
		w.exec("INSERT INTO shelf VALUES (1, 0)")
		release := make(chan struct{})
		orders := keys("order", 40)
		guilty, innocent := orders[7], without(orders, orders[7])
		w.handler = by(all, func(tx *gorm.DB, m consumer.Message) error {
			if err := tx.Exec("UPDATE shelf SET touched = touched + 1 WHERE id = 1").Error; err != nil {
				return err
			}
			if m.Key == guilty {
				neverReturns(release)
				return tx.Statement.Context.Err()
			}
			return insert(tx, m.Key)
		})
		w.publish("{}", orders...)
		engines := []*running{w.launch(), w.launch()}
		free := sync.OnceFunc(func() { close(release) })
		defer free()

		w.ended(dedup.Dead, guilty)
		w.applied(innocent...)
		attempts := once(innocent...)
		attempts[guilty] = 2
		w.want("attempts", w.attempts(orders...), attempts)
		is(w, "changes of the row that all change", w.number("SELECT touched FROM shelf"), 39)
		w.wantRow(guilty, wanted{Says: "neverReturns"})
		for _, says := range []string{"the handler does not return", guilty, "neverReturns"} {
			w.logged(says)
		}
		stuck, ends := 0, []string{}
		for _, e := range engines {
			s := e.State()
			if slices.ContainsFunc(s.Degraded, func(why string) bool { return strings.Contains(why, "has not returned") }) {
				stuck++
				assert.AtLeast(t, s.Still, w.cfg.HandlerTimeout, "Still beside a call that has not returned")
			}
		}
		is(w, "engines with a call that is stuck, by their metrics", w.counts("rollbackd_degraded")[w.cfg.Queue], stuck)
		for _, e := range engines { // a goroutine that cannot be joined is told of
			if err := e.drained(); errors.Is(err, consumer.ErrStuck) {
				ends = append(ends, err.Error())
			} else {
				assert.OK(t, err, "Run:")
			}
		}
		is(w, "ends with a stuck call", len(ends), stuck)
		assert.Has(t, strings.Join(ends, "\n"), guilty, "the ends; that of a call with many need not name it")
		free()
		w.eventually("the handler has returned after all", func() bool {
			return w.counts("rollbackd_degraded")[w.cfg.Queue] == 0
		})
		w.want("effects", w.effects(), once(innocent...))
	})
}

// A handler that returns from no call any more cannot blame its messages one after the other: Run ends, and a new
// process goes on.
func TestManyCallsThatNeverReturnEndRun(t *testing.T) {
	w := newWorld(t)
	w.cfg.Lanes, w.cfg.BatchSize, w.cfg.Prefetch = 4, 10, 20
	w.cfg.HandlerTimeout, w.cfg.Lease = 2*time.Second, 6*time.Second
	release := make(chan struct{})
	var calls sync.WaitGroup
	healthy := w.handler
	w.handler = handling(func(*gorm.DB, []consumer.Message) error {
		calls.Add(1)
		defer calls.Done()
		neverReturns(release)
		return nil
	})
	all := keys("order", 100)
	w.publish("{}", all...)
	r := w.launch()
	assert.Error(t, r.ends(w), consumer.ErrStuck, "Run")
	is(w, "messages are dead letters", w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 3"), 0)
	close(release)
	calls.Wait()
	w.handler = healthy
	w.start()
	w.applied(all...)
}

// A handler that ends its goroutine has failed, as with a panic: its lane goes on. A body that makes Validate run
// without an end is a malformed one.
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
		says     string
	}
	release := make(chan struct{})
	each(t, map[string]one{
		"handle": {func(w *world) consumer.Handler {
			return whole(func(tx *gorm.DB, m consumer.Message) error { exits(m); return insert(tx, m.Key) })
		}, 2, "Goexit"},
		"validate": {func(w *world) consumer.Handler {
			return &validating{w.handler, func(m *consumer.Message) error { exits(*m); return nil }}
		}, 0, "Goexit"},
		"validate, for ever": {func(w *world) consumer.Handler {
			return &validating{w.handler, func(m *consumer.Message) error {
				if m.Key == guilty {
					neverReturns(release)
				}
				return nil
			}}
		}, 0, ""},
		"calls": {func(w *world) consumer.Handler {
			return consumer.Calls(func(_ context.Context, m consumer.Message) error {
				exits(m)
				w.exec("INSERT INTO effect (k, body) VALUES (?, '')", m.Key)
				return nil
			}, consumer.CallOptions{})
		}, 2, "Goexit"},
	}, func(t *testing.T, w *world, c one) {
		w.hasty()
		w.oneBatch(40)
		w.cfg.BatchLinger, w.cfg.MaxAttempts = 100*time.Millisecond, 2
		w.handler = c.handler(w)
		w.publish("{}", all...)
		r := w.launch()
		innocent := without(all, guilty)
		w.ended(dedup.Dead, guilty)
		w.applied(innocent...)
		want := once(innocent...)
		want[guilty] = c.attempts
		w.want("attempts", w.attempts(all...), want)
		w.wantRow(guilty, wanted{Says: c.says})
		err := r.drained()
		assert.That(t, errors.Is(err, consumer.ErrStuck) == (c.says == ""), "Run = %v", err)
		if c.says == "" {
			close(release)
			w.logged("returned after all")
		}
	})
}

// shopService is somebody's service: it knows a message again by its key, and does what it was told to do.
type shopService struct {
	calls, applied tally                                                               // by key
	answer         atomic.Pointer[func(ctx context.Context, m consumer.Message) error] // before the effect
}

func (s *shopService) call(ctx context.Context, m consumer.Message) error {
	s.calls.add(m.Key)
	if answer := s.answer.Load(); answer != nil && *answer != nil {
		if err := (*answer)(ctx, m); err != nil {
			return err
		}
	}
	s.applied.add(m.Key)
	return nil
}

func (s *shopService) answering(f func(ctx context.Context, m consumer.Message) error) {
	s.answer.Store(&f)
}

// calling makes the world's handler one that calls a service.
func (w *world) calling(o consumer.CallOptions) *shopService {
	s := &shopService{}
	o.ProbeAfter = cmp.Or(o.ProbeAfter, 100*time.Millisecond)
	w.handler = consumer.Calls(s.call, o)
	return s
}

// beside lets other messages succeed, one after the other, until it is so.
func (w *world) beside(so func() bool) (sent []string) {
	w.t.Helper()
	for !so() {
		sent = append(sent, fmt.Sprintf("beside-%04d", len(sent)))
		require.That(w.t, len(sent) <= 2000, "it is tried for ever")
		w.publish("{}", sent[len(sent)-1])
		w.ended(dedup.Success, sent[len(sent)-1])
	}
	return sent
}

// attempts are the attempts in the rows of the keys.
func (w *world) attempts(keys ...string) map[string]int {
	w.t.Helper()
	got := map[string]int{}
	for _, k := range keys {
		got[k] = w.row(k).Attempts
	}
	return got
}

// Given a service that answers one call in each way, then each has its attempts and its end, and the answers are
// counted by their words.
func TestACallThatFailsIsMadeMaxAttemptsTimes(t *testing.T) {
	w := newWorld(t)
	s := w.calling(consumer.CallOptions{})
	s.answering(func(_ context.Context, m consumer.Message) error {
		switch {
		case m.Key == "fails":
			return fmt.Errorf("attempt %d of %s: out of paper", m.Attempt, m.MessageID)
		case m.Key == "refused":
			return consumer.Permanent(errors.New("no such goods"))
		case m.Key == "panics":
			panic("oops")
		case m.Key == "nil":
			return (*fs.PathError)(nil)
		case m.Key == "later" && s.calls.of()[m.Key] == 1:
			return consumer.Later(errors.New("slow down"), time.Millisecond)
		}
		return nil
	})
	good := keys("good", 20)
	w.startWith(append(good, "fails", "refused", "panics", "nil", "later")...)
	w.ended(dedup.Success, append(good, "later")...)
	w.died("fails", "refused", "panics", "nil")
	want := once(append(good, "refused")...)
	want["fails"], want["panics"], want["nil"], want["later"] = 3, 3, 3, 2
	w.want("calls", s.calls.of(), want)
	w.want("attempts", w.attempts("fails", "refused", "panics", "later"),
		map[string]int{"fails": 3, "refused": 1, "panics": 3, "later": 1})
	w.want("calls by answer", w.counts("rollbackd_calls_total"), map[string]int{
		"applied": 21, "permanent": 1, "failed": 9, "later": 1,
	})
	events := w.events("fails")
	is(w, "the last event says", events[len(events)-1].Error, "attempt 3 of fails: out of paper")
}

func TestAnAbsentServicePausesConsumingAndCostsNoAttempt(t *testing.T) {
	each(t, map[string]func(error) error{
		"unavailable": consumer.Unavailable, "unanswered": consumer.Unanswered, "misconfigured": consumer.Misconfigured,
	}, func(t *testing.T, w *world, answer func(error) error) {
		w.cfg.GiveBackAfter = 500 * time.Millisecond
		s := w.calling(consumer.CallOptions{Concurrency: 4, Timeout: time.Second, ProbeAfter: 300 * time.Millisecond})
		s.answering(func(context.Context, consumer.Message) error { return answer(errors.New("nobody is there")) })
		all := keys("order", 60)
		r := w.startWith(all...)
		w.paused(r, consumer.DependencyService)
		began := time.Now()
		w.logged(`msg="deliveries given back"`)
		asked := len(s.calls.of())
		w.eventually("others ask all the same", func() bool { return len(s.calls.of()) > asked+3 })
		assert.That(t, waitsFor(r, consumer.DependencyService), "state %+v, want the service among what is missing",
			r.State())
		sum := 0
		for _, n := range s.calls.of() {
			sum += n
		}
		assert.AtMost(t, sum, 2*5+4+int(time.Since(began)/(300*time.Millisecond)), "calls of a service that is not there")
		assert.AtMost(t, w.number("SELECT COALESCE(MAX(consumer_times), 0) FROM consumer_log"), 1, "attempts")
		s.answering(nil)
		w.ended(dedup.Success, all...)
		w.recovered(r)
		w.want("effects", once(slices.Collect(maps.Keys(s.applied.of()))...), once(all...))
		w.want("attempts", w.attempts(all...), once(all...))
		is(w, "letters", w.dead(), 0)
	})
}

// Given a message for which the service is never there, or never answers, which may be its own fault or the message's:
// while others succeed, three such calls are an attempt.
func TestAMessageThatFindsTheServiceAbsentWhileOthersSucceedFails(t *testing.T) {
	type one struct {
		answer  func(context.Context) error
		timeout time.Duration
		calls   int // at least
		says    string
	}
	each(t, map[string]one{
		"absent": {func(context.Context) error { return consumer.Unavailable(errors.New("502")) }, time.Second, 6, "502"},
		"silent": {func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, 300 * time.Millisecond, 2,
			"perhaps applied"},
	}, func(t *testing.T, w *world, tc one) {
		w.cfg.MaxAttempts, w.cfg.RetryDelays = 2, w.cfg.RetryDelays[:1]
		s := w.calling(consumer.CallOptions{Timeout: tc.timeout})
		s.answering(func(ctx context.Context, m consumer.Message) error {
			if m.Key == "bad" {
				return tc.answer(ctx)
			}
			return nil
		})
		w.startWith("bad")
		w.beside(func() bool { return w.row("bad").Status == dedup.Dead })
		w.quiet()
		assert.AtLeast(t, s.calls.of()["bad"], tc.calls, "calls")
		w.wantRow("bad", wanted{Attempts: 2})
		events := w.events("bad")
		assert.Has(t, events[len(events)-1].Error, tc.says, "the last event says")
	})
}

func TestALetterOfACallThatNeverCameBackSaysPerhapsApplied(t *testing.T) {
	w := newWorld(t)
	w.hasty()
	w.cfg.MaxAttempts, w.cfg.RetryDelays = 1, w.cfg.RetryDelays[:1]
	w.calling(consumer.CallOptions{})
	w.publish("{}", "order")
	// given two processes that died between call and mark: beside the first call others may have run
	w.crashAt(consumer.PointEffect)
	w.crashAt(consumer.PointEffect)
	w.start()
	w.ended(dedup.Dead, "order")
	w.quiet()
	letter := w.letter()
	reason, why := letter.Headers["x-rollbackd-reason"], fmt.Sprint(letter.Headers["x-rollbackd-error"])
	assert.That(t, reason == string(dedup.ReasonCrashed) && strings.HasPrefix(why, "perhaps applied: "),
		"the letter says %v: %s", reason, why)
	w.wantRow("order", wanted{Says: "perhaps applied: "})
}

// Given a MySQL that goes away when the service has applied a group, and stays away until the deliveries are given
// back, when it is back, then the group is marked and nobody is called for again.
func TestAMarkThatCouldNotBeWrittenIsOwed(t *testing.T) {
	w := newWorld(t)
	w.oneBatch(20)
	w.cfg.GiveBackAfter, w.cfg.Lease = 300*time.Millisecond, 20*time.Second
	s := w.calling(consumer.CallOptions{})
	all := keys("order", 20)
	w.publish("{}", all...)
	l := w.proxied()
	r, release := w.into(consumer.PointEffect, w.start)
	l.mysql.Refuse(true)
	l.mysql.Cut()
	release()
	w.logged(`msg="deliveries given back"`)
	l.mysql.Refuse(false)
	w.ended(dedup.Success, all...)
	w.recovered(r)
	w.quiet()
	w.want("calls", s.calls.of(), once(all...))
	w.want("attempts", w.attempts(all...), once(all...))
}

func TestNoCallStartsThatItsLeaseMayNotOutlast(t *testing.T) {
	w := newWorld(t)
	w.hasty()
	w.oneBatch(30)
	s := w.calling(consumer.CallOptions{Concurrency: 2, Timeout: time.Second})
	s.answering(func(ctx context.Context, _ consumer.Message) error { return wait.For(ctx, 400*time.Millisecond) })
	all := keys("order", 30)
	w.startWith(all...)
	w.ended(dedup.Success, all...)
	w.quiet()
	w.want("calls", s.calls.of(), once(all...))
	w.want("attempts", w.attempts(all...), once(all...))
	w.end(map[string]int{"applied": 30})
	assert.That(t, w.number("SELECT COUNT(*) FROM consumer_log_event WHERE `from` = 0 AND `to` = 2") != 0,
		"nothing was un-claimed: the test did not meet what it is about")
}
