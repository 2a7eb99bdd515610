package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
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
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// notNull is what MySQL answers to an effect without a body.
var notNull = &mysql.MySQLError{
	Number: 1048, SQLState: [5]byte([]byte("23000")), Message: "Column 'body' cannot be null",
}

// part is a play that is performed twice: on servers, and in a rehearsal.
type part struct {
	// do is what the handler does with a message after it has written its effect; nth counts its calls for the message,
	// from 1. It is not for what makes.
	do   func(tx *gorm.DB, m consumer.Message, nth int) error
	make func(seen func(consumer.Message) (nth int)) consumer.Handler
	// batches are delivered one after the other, each when all is quiet; a line of "replay KEY" replays.
	batches [][]consumer.Message
	replay  []string // then
}

func msg(key, body string) consumer.Message { return consumertest.Message(tag, key, body) }

func msgs(keys ...string) (all []consumer.Message) {
	for _, k := range keys {
		all = append(all, msg(k, "{}"))
	}
	return all
}

// failingFor has a message fail in its first calls.
func failingFor(key string, times int, err error) func(*gorm.DB, consumer.Message, int) error {
	return func(_ *gorm.DB, m consumer.Message, nth int) error {
		if m.Key == key && nth <= times {
			return err
		}
		return nil
	}
}

var errShelf = errors.New("the shelf is locked")

// Waits that a handler asks for are a retry delay: through how many queues another one goes hangs on the time.
const short, long = 100 * time.Millisecond, 300 * time.Millisecond

// parts are the plays.
var parts = map[string]part{
	"all are applied":              {batches: [][]consumer.Message{msgs("a", "b", "c")}},
	"copies, in a batch and later": {batches: [][]consumer.Message{msgs("a", "a", "b"), msgs("a", "c")}},
	"one fails once":               {do: failingFor("b", 2, errShelf), batches: [][]consumer.Message{msgs("a", "b", "c")}},
	"one fails each time": {
		do: failingFor("b", 99, errShelf), batches: [][]consumer.Message{msgs("a", "b", "c"), msgs("b")},
	},
	"one fails for good": {
		do: failingFor("b", 99, consumer.Permanent(errShelf)), batches: [][]consumer.Message{msgs("a", "b", "c")},
	},
	"one cannot be read by the handler": {
		do: failingFor("b", 99, consumer.Malformed(errShelf)), batches: [][]consumer.Message{msgs("a", "b")},
	},
	"another body":        {batches: [][]consumer.Message{msgs("a"), {msg("a", "[]")}, {msg("b", "{}"), msg("b", "[]")}}},
	"nobody can name it":  {batches: [][]consumer.Message{{msg("a\x00", "{}")}}},
	"a body is too large": {batches: [][]consumer.Message{{msg("a", strings.Repeat("x", consumer.MaxBody+1))}}},
	"a panic": {
		do: func(_ *gorm.DB, m consumer.Message, nth int) error {
			if m.Key == "b" && nth <= 2 {
				panic("oops")
			}
			return nil
		}, batches: [][]consumer.Message{msgs("a", "b", "c")},
	},
	"the end of a goroutine": {
		do: func(_ *gorm.DB, m consumer.Message, _ int) error {
			if m.Key == "b" {
				runtime.Goexit()
			}
			return nil
		}, batches: [][]consumer.Message{msgs("a", "b", "c")},
	},
	"a COMMIT of its own": {
		do: func(tx *gorm.DB, m consumer.Message, _ int) error {
			if m.Key == "b" {
				return tx.Exec("COMMIT").Error
			}
			return nil
		}, batches: [][]consumer.Message{msgs("a", "b", "c")},
	},
	"an error of a statement that is dropped": {
		do: func(tx *gorm.DB, m consumer.Message, nth int) error {
			if m.Key == "b" && nth <= 2 {
				tx.Exec("INSERT INTO effect (k, body) VALUES (?, NULL)", m.Key)
			}
			return nil
		}, batches: [][]consumer.Message{msgs("a", "b", "c")},
	},
	"what nobody can read runs alone": {
		do: func(tx *gorm.DB, m consumer.Message, _ int) error {
			if m.Key == "b" {
				return tx.Exec("CALL nothing()").Error
			}
			return nil
		}, batches: [][]consumer.Message{msgs("a", "b", "c")},
	},
	"rows of a query that are not read": {
		do: func(tx *gorm.DB, m consumer.Message, _ int) error {
			if m.Key == "b" {
				_ = tx.Raw("SELECT 1 UNION SELECT 2").Row()
				return tx.Exec("DELETE FROM effect WHERE k = 'nobody'").Error
			}
			return nil
		}, batches: [][]consumer.Message{msgs("a", "b", "c")},
	},
	"two transactions meet once": {
		do: failingFor("b", 1, consumer.Contention(errShelf)), batches: [][]consumer.Message{msgs("b")},
	},
	"a letter is replayed, and mended": {
		do: failingFor("b", 2, consumer.Permanent(errShelf)), batches: [][]consumer.Message{msgs("a", "b")},
		replay: []string{"b", "b"},
	},
	"a letter is replayed in vain": {
		do: failingFor("b", 99, errShelf), batches: [][]consumer.Message{msgs("b")}, replay: []string{"b"},
	},
	"one is too early": {
		do: failingFor("b", 3, consumer.Later(errShelf, short)), batches: [][]consumer.Message{msgs("a", "b", "c")},
	},
	"one is too early, and does not say until when": {
		do: failingFor("b", 2, consumer.Later(errShelf, 0)), batches: [][]consumer.Message{msgs("a", "b", "c")},
	},
	"one that has failed is too early": {
		do: func(_ *gorm.DB, m consumer.Message, nth int) error {
			says := []error{errShelf, consumer.Later(errShelf, long), errShelf, nil}
			if m.Key != "b" {
				return nil
			}
			return says[min(nth, len(says))-1]
		}, batches: [][]consumer.Message{msgs("a", "b", "c")},
	},
	"copies are too early": {
		do: failingFor("b", 2, consumer.Later(errShelf, long)), batches: [][]consumer.Message{msgs("b", "a", "b"), msgs("b")},
	},
	"a failed attempt says when the next one comes": {
		do: failingFor("b", 2, consumer.RetryIn(errShelf, long)), batches: [][]consumer.Message{msgs("a", "b", "c")},
	},
	"each attempt says when the next one comes": {
		do: failingFor("b", 99, consumer.RetryIn(errShelf, short)), batches: [][]consumer.Message{msgs("a", "b", "c")},
		replay: []string{"b"},
	},
	"one fails for good, and says when to come": {
		do:      failingFor("b", 99, consumer.RetryIn(consumer.Permanent(errShelf), short)),
		batches: [][]consumer.Message{msgs("a", "b", "c")},
	},
	"a whole call is too early": {
		make: func(seen func(consumer.Message) int) consumer.Handler {
			return consumer.HandlerFunc(func(_ context.Context, tx *gorm.DB, all []consumer.Message) error {
				var early error
				for _, m := range all {
					if seen(m) <= 2 {
						early = consumer.Later(errShelf, short)
					}
				}
				return errors.Join(insertAll(tx, all), early)
			})
		}, batches: [][]consumer.Message{msgs("a", "b", "c")},
	},
	"a batch handler that blames who is too early": {
		make: func(seen func(consumer.Message) int) consumer.Handler {
			return consumer.HandlerFunc(func(_ context.Context, tx *gorm.DB, all []consumer.Message) error {
				return errors.Join(insertAll(tx, all), blaming(all, func(m consumer.Message) error {
					switch nth := seen(m); {
					case m.Key == "b" && nth <= 2:
						return consumer.Later(errShelf, short)
					case m.Key == "d":
						return consumer.RetryIn(errShelf, short)
					}
					return nil
				}))
			})
		}, batches: [][]consumer.Message{msgs("a", "b", "c", "d", "e")},
	},
	"a batch handler that excepts who is too early": {
		make: func(seen func(consumer.Message) int) consumer.Handler {
			return consumer.HandlerFunc(func(_ context.Context, tx *gorm.DB, all []consumer.Message) error {
				var not []consumer.BlamedMessage
				for i, m := range all {
					if nth := seen(m); m.Key == "b" && nth <= 2 {
						not = append(not, consumer.BlamedMessage{Index: i, Err: consumer.Later(errShelf, short)})
					} else if err := insert(tx, m.Key); err != nil {
						return err
					}
				}
				return consumer.Except(not...)
			})
		}, batches: [][]consumer.Message{msgs("a", "b", "c")},
	},
	"a batch handler that blames": {
		make: func(seen func(consumer.Message) int) consumer.Handler {
			return consumer.HandlerFunc(func(_ context.Context, tx *gorm.DB, all []consumer.Message) error {
				for _, m := range all {
					seen(m)
				}
				if err := insertAll(tx, all); err != nil {
					return err
				}
				return blaming(all, func(m consumer.Message) error {
					return map[string]error{"b": errShelf, "d": consumer.Permanent(errShelf)}[m.Key]
				})
			})
		}, batches: [][]consumer.Message{msgs("a", "b", "c", "d", "e", "f", "g")},
	},
	"a batch handler that excepts": {
		make: func(seen func(consumer.Message) int) consumer.Handler {
			return consumer.HandlerFunc(func(_ context.Context, tx *gorm.DB, all []consumer.Message) error {
				var bad []consumer.BlamedMessage
				for i, m := range all {
					if seen(m); m.Key == "b" {
						bad = append(bad, consumer.BlamedMessage{Index: i, Err: consumer.Permanent(errShelf)})
					} else if err := insert(tx, m.Key); err != nil {
						return err
					}
				}
				return consumer.Except(bad...)
			})
		}, batches: [][]consumer.Message{msgs("a", "b", "c")},
	},
	"a batch handler that blames nobody": {
		make: func(seen func(consumer.Message) int) consumer.Handler {
			return consumer.HandlerFunc(func(_ context.Context, tx *gorm.DB, all []consumer.Message) error {
				for _, m := range all {
					if seen(m); m.Key == "c" {
						return errShelf
					}
				}
				return insertAll(tx, all)
			})
		}, batches: [][]consumer.Message{msgs("a", "b", "c", "d", "e")},
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
				"other": consumer.Each(func(_ context.Context, tx *gorm.DB, m consumer.Message) error {
					seen(m)
					return insert(tx, m.Key)
				}),
			}
		}, batches: [][]consumer.Message{{
			msg("a", `{"N":1}`), msg("b", `{"N":`), msg("c", `{"N":0}`), consumertest.Message("other", "d", "x"),
		}, {consumertest.Message("forgotten", "e", "{}")}},
	},
	"calls": {
		make: func(seen func(consumer.Message) int) consumer.Handler {
			return consumer.Calls(func(_ context.Context, m consumer.Message) error {
				nth := seen(m)
				switch {
				case m.Key == "later" && nth == 1:
					return consumer.Later(errShelf, short)
				case m.Key == "fails":
					return errShelf
				case m.Key == "refused":
					return consumer.Permanent(errShelf)
				}
				return nil
			}, consumer.CallOptions{})
		}, batches: [][]consumer.Message{msgs("ok", "later", "fails", "refused"), msgs("ok")},
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
		if stack := strings.Index(e.Cause, "\n"); stack >= 0 {
			e.Cause = e.Cause[:stack]
		}
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
	if of.make != nil {
		return of.make(p.seen)
	}
	return consumer.Each(func(_ context.Context, tx *gorm.DB, m consumer.Message) error {
		nth := p.seen(m)
		if err := insert(tx, m.Key); err != nil || of.do == nil {
			return err
		}
		return of.do(tx, m, nth)
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
	for _, batch := range of.batches {
		p.end(w.DeliverAll(batch...)...)
		p.end(w.Advance(time.Minute)...)
		steps = append(steps, p.count())
	}
	for _, key := range of.replay {
		p.end(w.Replay(key))
		p.end(w.Advance(time.Minute)...)
		steps = append(steps, p.count())
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
		real := newPerformance()
		w.handler = real.handler(of)
		w.cfg.Observe = func(e consumer.Ended) { real.end(e) }
		most := 1
		for _, batch := range of.batches {
			most = max(most, len(batch))
		}
		w.oneBatch(most)
		w.exec("CREATE PROCEDURE nothing() BEGIN END")
		cfg := w.cfg
		cfg.Observe = nil
		rehearsed, steps := of.rehearse(t, cfg)
		letters := require.Get(w.withURL().Letters(w.open(w.direct)))(t)
		for i, want := range steps {
			if i < len(of.batches) {
				w.publishAll(of.batches[i])
			} else {
				key := of.replay[i-len(of.batches)]
				one := deadletter.Filter{Keys: []string{key}}
				res, err := letters.Replay(t.Context(), one, deadletter.ReplayOptions{By: "tester"})
				if err != nil || res.Replayed != 1 {
					t.Fatalf("the replay of %s: %+v, %v", key, res, err)
				}
			}
			if i == 0 {
				w.start()
			}
			w.eventually(fmt.Sprintf("%d deliveries have ended", want), func() bool { return real.count() >= want })
			w.quiet()
		}
		real.Effects = w.effects()
		if diff := cmp.Diff(real.course, rehearsed.course); diff != "" {
			t.Errorf("-on servers +in the rehearsal:\n%s", diff)
		}
	})
}

func (w *world) withURL() consumer.Config {
	cfg := w.cfg
	cfg.AMQPURLs = []string{w.broker.URL}
	return cfg
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
