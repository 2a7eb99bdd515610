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

	"github.com/go-sql-driver/mysql"
	"github.com/google/go-cmp/cmp"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/consumer/consumertest"
	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// notNull is what MySQL answers to an effect without a body.
var notNull = &mysql.MySQLError{
	Number: 1048, SQLState: [5]byte([]byte("23000")), Message: "Column 'body' cannot be null",
}

// part is a play that is performed twice: on servers, and in a rehearsal.
type part struct {
	// Its handler is for one message, or "whole", of all; or it is one that "blame"s, "except"s, or "calls".
	kind    string
	who     who                                                          // what it does after it has written an effect
	make    func(seen func(consumer.Message) (nth int)) consumer.Handler // in place of these
	in      batches
	replays int // of b, then
}

type (
	// who is what a handler does, by key; nth counts its calls for the message, from 1.
	who map[string]func(tx *gorm.DB, nth int) error
	// batches are delivered one after the other, each when all is quiet. None: one of a, b and c.
	batches [][]consumer.Message
)

func msg(key, body string) consumer.Message { return consumertest.Message(tag, key, body) }

func msgs(keys ...string) (all []consumer.Message) {
	for _, k := range keys {
		all = append(all, msg(k, "{}"))
	}
	return all
}

// first has a message fail in its first calls.
func first(times int, err error) func(*gorm.DB, int) error {
	return func(_ *gorm.DB, nth int) error {
		if nth <= times {
			return err
		}
		return nil
	}
}

// sends has it send a text.
func sends(text string) func(*gorm.DB, int) error {
	return func(tx *gorm.DB, _ int) error { return tx.Exec(text).Error }
}

// Waits that a handler asks for are a retry delay: through how many queues another one goes hangs on the time.
const short, long = 100 * time.Millisecond, 300 * time.Millisecond

var (
	errShelf = errors.New("the shelf is locked")
	forGood  = consumer.Permanent(errShelf)
	early    = consumer.Later(errShelf, short)
	soon     = consumer.RetryIn(errShelf, short)
)

// parts are the plays.
var parts = map[string]part{
	"all are applied":                   {},
	"copies, in a batch and later":      {in: batches{msgs("a", "a", "b"), msgs("a", "c")}},
	"one fails once":                    {who: who{"b": first(2, errShelf)}},
	"one fails each time":               {who: who{"b": first(99, errShelf)}, in: batches{msgs("a", "b", "c"), msgs("b")}},
	"one fails for good":                {who: who{"b": first(99, forGood)}},
	"one cannot be read by the handler": {who: who{"b": first(99, consumer.Malformed(errShelf))}},
	"another body":                      {in: batches{msgs("a"), {msg("a", "[]")}, {msg("b", "{}"), msg("b", "[]")}}},
	"nobody can name it":                {in: batches{{msg("a\x00", "{}")}}},
	"a body is too large":               {in: batches{{msg("a", strings.Repeat("x", consumer.MaxBody+1))}}},
	"a panic": {who: who{"b": func(_ *gorm.DB, nth int) error {
		if nth <= 2 {
			panic("oops")
		}
		return nil
	}}},
	"the end of a goroutine": {who: who{"b": func(*gorm.DB, int) error { runtime.Goexit(); return nil }}},
	"a COMMIT of its own":    {who: who{"b": sends("COMMIT")}},
	"an error of a statement that is dropped": {who: who{"b": func(tx *gorm.DB, nth int) error {
		if nth <= 2 {
			tx.Exec("INSERT INTO effect (k, body) VALUES ('b', NULL)")
		}
		return nil
	}}},
	"what nobody can read runs alone": {who: who{"b": sends("CALL nothing()")}},
	"rows of a query that are not read": {who: who{"b": func(tx *gorm.DB, _ int) error {
		_ = tx.Raw("SELECT 1 UNION SELECT 2").Row()
		return tx.Exec("DELETE FROM effect WHERE k = 'nobody'").Error
	}}},
	"two transactions meet once": {
		who: who{"b": first(1, consumer.Contention(errShelf))}, in: batches{msgs("b")},
	},
	"a letter is replayed, and mended":              {who: who{"b": first(2, forGood)}, replays: 2},
	"a letter is replayed in vain":                  {who: who{"b": first(99, errShelf)}, replays: 1},
	"one is too early":                              {who: who{"b": first(3, early)}},
	"one is too early, and does not say until when": {who: who{"b": first(2, consumer.Later(errShelf, 0))}},
	"one that has failed is too early": {who: who{"b": func(_ *gorm.DB, nth int) error {
		return []error{errShelf, consumer.Later(errShelf, long), errShelf, nil}[min(nth, 4)-1]
	}}},
	"copies are too early": {
		who: who{"b": first(2, consumer.Later(errShelf, long))}, in: batches{msgs("b", "a", "b"), msgs("b")},
	},
	"a failed attempt says when the next one comes": {who: who{"b": first(2, consumer.RetryIn(errShelf, long))}},
	"each attempt says when the next one comes":     {who: who{"b": first(99, soon)}, replays: 1},
	"one fails for good, and says when to come":     {who: who{"b": first(99, consumer.RetryIn(forGood, short))}},
	"a whole call is too early": {make: func(seen func(consumer.Message) int) consumer.Handler {
		return handling(func(tx *gorm.DB, all []consumer.Message) error {
			err := insertAll(tx, all)
			for _, m := range all {
				if seen(m) <= 2 {
					err = early
				}
			}
			return err
		})
	}},
	"a batch handler that blames who is too early": {
		kind: "blame", who: who{"b": first(2, early), "d": first(99, soon)}, in: batches{msgs("a", "b", "c", "d", "e")},
	},
	"a batch handler that excepts who is too early": {kind: "except", who: who{"b": first(2, early)}},
	"a batch handler that blames": {
		kind: "blame", who: who{"b": first(99, errShelf), "d": first(99, forGood)},
		in: batches{msgs("a", "b", "c", "d", "e")},
	},
	"a batch handler that excepts": {kind: "except", who: who{"b": first(99, forGood)}},
	"a batch handler that excepts whom it has written for": {
		make: func(seen func(consumer.Message) int) consumer.Handler {
			return handling(func(tx *gorm.DB, all []consumer.Message) error {
				seen(all[0])
				return errors.Join(insertAll(tx, all), consumer.Except(consumer.BlamedMessage{Err: forGood}))
			})
		}, in: batches{msgs("a", "b", "c"), msgs("d")},
	},
	"a batch handler that blames nobody": {
		kind: "whole", who: who{"c": first(99, errShelf)}, in: batches{msgs("a", "b", "c", "d", "e")},
	},
	"typed handlers, by tag": {
		make: func(seen func(consumer.Message) int) consumer.Handler {
			type body struct{ N int }
			return consumer.Mux{
				tag: consumer.JSON(func(_ context.Context, tx *gorm.DB, b body, m consumer.Message) error {
					if seen(m); b.N == 0 {
						return errShelf
					}
					return insert(tx, m.Key)
				}),
				"other": by(false, func(tx *gorm.DB, m consumer.Message) error { seen(m); return insert(tx, m.Key) }),
			}
		}, in: batches{{
			msg("a", `{"N":1}`), msg("b", `{"N":`), msg("c", `{"N":0}`), consumertest.Message("other", "d", "x"),
		}, {consumertest.Message("forgotten", "e", "{}")}},
	},
	"calls": {
		kind: "calls", who: who{"later": first(1, early), "fails": first(99, errShelf), "refused": first(99, forGood)},
		in: batches{msgs("ok", "later", "fails", "refused"), msgs("ok")},
	},
}

// course is how a play went: by key, how the deliveries ended, and with which attempt and replay the handler was
// called, one call after the other unless they are the same; and the effects.
type course struct {
	Ends, Calls map[string][]string
	Effects     map[string]int
}

// performance is a play on its way.
type performance struct {
	course
	mu    sync.Mutex
	times map[string]int
	ended int
}

func newPerformance() *performance {
	return &performance{
		course: course{map[string][]string{}, map[string][]string{}, map[string]int{}}, times: map[string]int{},
	}
}

func (p *performance) end(all ...consumer.Ended) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range all {
		e.Cause, _, _ = strings.Cut(e.Cause, "\n") // without a stack
		p.ended++
		p.Ends[e.Key] = append(p.Ends[e.Key], e.String())
	}
}

func (p *performance) seen(m consumer.Message) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	call := fmt.Sprintf("attempt %d of replay %d", m.Attempt, m.Replays)
	if calls := p.Calls[m.Key]; len(calls) == 0 || calls[len(calls)-1] != call {
		p.Calls[m.Key] = append(calls, call)
	}
	p.times[m.Key]++
	return p.times[m.Key]
}

// count is how many deliveries have ended.
func (p *performance) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended
}

// handler is that of a play in this performance.
func (p *performance) handler(of part) consumer.Handler {
	says := func(tx *gorm.DB, m consumer.Message) error {
		nth := p.seen(m)
		if do := of.who[m.Key]; do != nil {
			return do(tx, nth)
		}
		return nil
	}
	all := func(end func(*gorm.DB, []consumer.Message, func(consumer.Message) error) error) consumer.Handler {
		return handling(func(tx *gorm.DB, msgs []consumer.Message) error {
			return end(tx, msgs, func(m consumer.Message) error { return says(tx, m) })
		})
	}
	switch {
	case of.make != nil:
		return of.make(p.seen)
	case of.kind == "calls":
		return consumer.Calls(func(_ context.Context, m consumer.Message) error { return says(nil, m) },
			consumer.CallOptions{})
	case of.kind == "except":
		return all(excepting)
	case of.kind == "blame":
		return all(writingAndBlaming)
	}
	return by(of.kind == "whole", func(tx *gorm.DB, m consumer.Message) error {
		return errors.Join(insert(tx, m.Key), says(tx, m))
	})
}

// rehearse plays without servers. Each of the steps is how many deliveries have ended then.
func (of part) rehearse(t *testing.T, cfg consumer.Config) (p *performance, steps []int) {
	t.Helper()
	p = newPerformance()
	w := consumertest.New(t, p.handler(of), consumertest.Options{
		Config: cfg, Answer: func(s consumertest.Statement) consumertest.Answer {
			switch {
			case strings.Contains(s.Query, "NULL"):
				return consumertest.Answer{Err: notNull}
			case strings.HasPrefix(s.Query, "SELECT"):
				return consumertest.Answer{Columns: []string{"1"}, Rows: [][]any{{1}, {2}}}
			}
			return consumertest.Answer{Changed: 1}
		},
	})
	rest := func() {
		p.end(w.Advance(time.Minute)...)
		steps = append(steps, p.count())
	}
	for _, batch := range of.in {
		p.end(w.DeliverAll(batch...)...)
		rest()
	}
	for range of.replays {
		p.end(w.Replay("b"))
		rest()
	}
	for _, s := range w.Statements() {
		if strings.HasPrefix(s.Query, "INSERT INTO effect") {
			p.Effects[s.Args[0].(string)]++
		}
	}
	return p, steps
}

// Every way in which a message can go because of its handler, on real servers and in a trial of package consumertest:
// deliveries end in the same way, handlers see the same attempts, and the same effects are committed.
func TestARehearsalGoesAsTheRealPerformance(t *testing.T) {
	each(t, parts, func(t *testing.T, w *world, of part) {
		if of.in == nil {
			of.in = batches{msgs("a", "b", "c")}
		}
		real := newPerformance()
		w.handler = real.handler(of)
		w.cfg.Observe = func(e consumer.Ended) { real.end(e) }
		longest := slices.MaxFunc(of.in, func(a, b []consumer.Message) int { return len(a) - len(b) })
		w.oneBatch(len(longest))
		w.exec("CREATE PROCEDURE nothing() BEGIN END")
		cfg := w.cfg
		cfg.Observe = nil
		rehearsed, steps := of.rehearse(t, cfg)
		for i, want := range steps {
			if i < len(of.in) {
				w.publishAll(of.in[i])
			} else {
				require.Is(t, w.replays("b").Replayed, 1, "replayed")
			}
			if i == 0 {
				w.start()
			}
			w.eventually(fmt.Sprintf("%d deliveries have ended", want), func() bool { return real.count() >= want })
			w.quiet()
		}
		real.Effects = w.effects()
		diff := cmp.Diff(real.course, rehearsed.course)
		assert.That(t, diff == "", "-on servers +in the rehearsal:\n%s", diff)
	})
}

// replays replays letters as a person does.
func (w *world) replays(keys ...string) deadletter.Result {
	w.t.Helper()
	cfg := w.cfg
	cfg.AMQPURLs = []string{w.broker.URL}
	letters := require.Get(cfg.Letters(w.open(w.direct)))(w.t)
	by := deadletter.ReplayOptions{By: "tester"}
	return require.Get(letters.Replay(w.t.Context(), deadletter.Filter{Keys: keys}, by))(w.t)
}

// publishAll publishes messages as a trial delivers them.
func (w *world) publishAll(all []consumer.Message) {
	w.t.Helper()
	var some []rabbit.Message
	for _, m := range all {
		some = append(some, rabbit.Message{
			Type: m.Tag, MessageID: m.Key, Body: m.Body, Headers: rabbit.Table{"x-message-key": m.Key},
			DeliveryMode: rabbit.Persistent,
		})
	}
	w.publishMessages(some...)
}

// rehearsing is an engine that does not run, for a handler.
func (w *world) rehearsing(h consumer.Handler) *consumer.Consumer {
	w.t.Helper()
	cfg := w.cfg
	cfg.AMQPURLs = []string{w.amqpURL}
	c := require.Get(consumer.New(cfg, h, consumer.Options{DB: w.open(w.dsn)}))(w.t)
	w.t.Cleanup(func() { assert.OK(w.t, c.Close()) })
	return c
}

// checksums are those of all tables.
func (w *world) checksums() map[string]string {
	w.t.Helper()
	tables := column[string](w, "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() "+
		"AND table_type = 'BASE TABLE'")
	sums := map[string]string{}
	for _, row := range stack.RowsOf(w.t, w.db, "CHECKSUM TABLE "+strings.Join(tables, ", ")+" EXTENDED") {
		sums[row["Table"]] = row["Checksum"]
	}
	return sums
}

func letter(key, body string) deadletter.Message {
	return deadletter.Message{Identity: id(key), Body: []byte(body)}
}

// Given handlers that write and then end in each way, when a message is rehearsed, then it is said what would become of
// it and which rows would change, and no table has changed.
func TestARehearsalSaysWhatWouldBecomeOfAMessageAndWritesNothing(t *testing.T) {
	type end struct {
		texts   []string                    // what it sends
		end     func(context.Context) error // how it ends; nil: with the errors of these
		want    deadletter.Prospect
		says    string
		changed map[string]int64
	}
	with := func(err error) func(context.Context) error { return func(context.Context) error { return err } }
	all, null := "DELETE FROM effect", []string{"INSERT INTO effect (k, body) VALUES ('a', NULL)"}
	each(t, map[string]end{
		"rows are counted by table": {[]string{"INSERT INTO `effect` (k, body) VALUES ('a', '1'), ('b', '2')",
			"UPDATE LOW_PRIORITY effect e SET body = '3' WHERE k IN ('a', 'stays')", "DELETE FROM effect WHERE k = 'nobody'"},
			nil, deadletter.WouldApply, "", map[string]int64{"effect": 4}},
		"the handler refuses it": {[]string{all}, with(consumer.Permanent(errors.New("no such order"))),
			deadletter.WouldFail, "no such order", nil},
		"the server refuses a statement": {null, nil, deadletter.WouldFail, "1048", nil},
		"an error is swallowed":          {null, with(nil), deadletter.WouldFail, "1048", nil},
		"it panics": {nil, func(context.Context) error { panic("no shelf") }, deadletter.WouldFail,
			"no shelf", nil},
		"a table is missing": {[]string{"DELETE FROM nowhere"}, nil, deadletter.WouldWait, "1146", nil},
		"it is too early": {nil, with(consumer.Later(errors.New("the shelf opens at nine"), 0)), deadletter.WouldWait,
			"at nine", nil},
		"it ends the transaction":    {[]string{all, "COMMIT"}, nil, deadletter.WouldFail, "COMMIT", nil},
		"it may end the transaction": {[]string{all, "CALL commits()"}, nil, deadletter.NotRehearsed, "CALL", nil},
		"others hold the row": {[]string{"UPDATE effect SET body = '3' WHERE k = 'held'"}, nil, deadletter.WouldWait,
			"1205", nil},
		"its time is over": {[]string{"DELETE FROM effect WHERE k = 'stays'"},
			func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, deadletter.WouldFail, "handler timeout", nil},
	}, func(t *testing.T, w *world, one end) {
		w.hasty()
		w.exec("ALTER TABLE effect ADD PRIMARY KEY (k)")
		w.exec("INSERT INTO effect (k, body) VALUES ('stays', '0'), ('held', '0')")
		w.exec("CREATE PROCEDURE commits() COMMIT")
		w.rows(0, 1, "host/1/1/0/1", "k")
		before := w.checksums()
		holder := require.Get(w.db.BeginTx(t.Context(), nil))(t)
		defer func() { _ = holder.Rollback() }()
		require.Get(holder.ExecContext(t.Context(), "SELECT * FROM effect WHERE k = 'held' FOR UPDATE"))(t)
		if !strings.Contains(one.says, "1205") {
			_ = holder.Rollback()
		}
		c := w.rehearsing(consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, _ []consumer.Message) error {
			var errs []error
			for _, text := range one.texts {
				errs = append(errs, tx.Exec(text).Error)
			}
			if one.end != nil {
				return one.end(ctx)
			}
			return errors.Join(errs...)
		}))

		got, err := c.Rehearse(t.Context(), w.db, letter("k", "{}"))

		require.OK(t, err)
		assert.That(t, got.Prospect == one.want && (got.Err == nil) == (one.says == "") &&
			strings.Contains(fmt.Sprint(got.Err), one.says), "%s, %v; want %s, %q", got.Prospect, got.Err, one.want, one.says)
		assert.That(t, maps.Equal(got.Changed, one.changed), "it would change %v, want %v", got.Changed, one.changed)
		after := w.checksums()
		assert.That(t, maps.Equal(before, after), "tables have changed: %v, were %v", after, before)
	})
}

// Given a handler that acts outside MySQL, never returns, or writes to a table without transactions in another schema,
// when a message is rehearsed, then no further one may be, and it is said why.
func TestWhatNoRollbackTakesBackIsNotRehearsed(t *testing.T) {
	w := newWorld(t)
	w.hasty()
	elsewhere := w.open(stack.MySQL(t))
	require.OK(t, elsewhere.Exec("CREATE TABLE audit (k INT) ENGINE=MyISAM").Error)
	schema := stack.One[string](t, require.Get(elsewhere.DB())(t), "SELECT DATABASE()")
	auditing := func(end error) consumer.Handler {
		return handling(func(tx *gorm.DB, _ []consumer.Message) error {
			return errors.Join(tx.Exec("INSERT INTO "+schema+".audit VALUES (1)").Error, end)
		})
	}
	calls := func(context.Context, consumer.Message) error { t.Error("it was called"); return nil }
	release := make(chan struct{})
	defer close(release)
	stuck := handling(func(*gorm.DB, []consumer.Message) error { <-release; return nil })
	for name, tc := range map[string]struct {
		handler consumer.Handler
		says    string
	}{
		"it calls a service":               {consumer.Calls(calls, consumer.CallOptions{}), ""},
		"it never returns":                 {stuck, "the one"},
		"it writes what stays":             {auditing(nil), "no rollback takes back"},
		"it writes what stays, then fails": {auditing(errors.New("no such order")), "no rollback takes back"},
	} {
		got, err := w.rehearsing(tc.handler).Rehearse(t.Context(), w.db, letter("the one", "{}"))
		assert.That(t, errors.Is(err, deadletter.ErrNoRehearsal) && strings.Contains(err.Error(), tc.says) &&
			errors.Is(err, consumer.ErrStuck) == (tc.says == "the one"), "%s: %+v, %v", name, got, err)
	}
}
