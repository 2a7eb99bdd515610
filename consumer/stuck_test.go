package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
)

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
		"each": consumer.Each(one),
		"a batch": consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
			for _, m := range msgs {
				if err := one(ctx, tx, m); err != nil {
					return err
				}
			}
			return nil
		}),
	}
}

// Given 40 messages and two consumers, when the handler never returns for one of them, then all others keep their
// effects and their attempts, and that one becomes a letter which says where the handler stands.
func TestAHandlerThatNeverReturnsStopsNobodyElse(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"each", "a batch"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
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

			innocent := slices.DeleteFunc(slices.Clone(all), func(k string) bool { return k == guilty })
			w.ended(dedup.Success, innocent...)
			w.ended(dedup.Dead, guilty)
			w.want("effects", w.effects(), once(innocent...))
			w.want("attempts", w.attempts(all...), func() map[string]int {
				n := once(innocent...)
				n[guilty] = 2
				return n
			}())
			if n := w.number("SELECT touched FROM shelf"); n != 39 {
				t.Errorf("the row that all change was changed %d times, want 39", n)
			}
			remark := w.text("SELECT remark FROM consumer_log WHERE consumer_status = 3")
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
	t.Parallel()
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
	w.eventually("it has returned", func() bool { return strings.Contains(w.logs.String(), "returned after all") })
	w.start()
	w.ended(dedup.Success, all...)
	w.want("effects", w.effects(), once(all...))
}

// A handler that returns from no call any more cannot blame its messages one after the other: Run ends, and a new
// process goes on.
func TestManyCallsThatNeverReturnEndRun(t *testing.T) {
	t.Parallel()
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
	if n := w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 3"); n != 0 {
		t.Errorf("%d messages are dead letters", n)
	}
	close(release)
	calls.Wait()
	w.handler = healthy
	w.start()
	w.ended(dedup.Success, all...)
	w.want("effects", w.effects(), once(all...))
}

// A handler that ends its goroutine has failed, as with a panic: its lane goes on.
func TestAHandlerThatEndsItsGoroutineHasFailed(t *testing.T) {
	t.Parallel()
	guilty, all := "order-0007", keys("order", 40)
	exits := func(m consumer.Message) {
		if m.Key == guilty {
			runtime.Goexit()
		}
	}
	for name, c := range map[string]struct {
		handler  func(*world) consumer.Handler
		attempts int
	}{
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
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.oneBatch(40)
			w.cfg.BatchLinger, w.cfg.MaxAttempts = 100*time.Millisecond, 2
			w.handler = c.handler(w)
			w.publish("{}", all...)
			w.start()
			innocent := slices.DeleteFunc(slices.Clone(all), func(k string) bool { return k == guilty })
			w.ended(dedup.Success, innocent...)
			w.ended(dedup.Dead, guilty)
			w.want("effects", w.effects(), once(innocent...))
			want := once(innocent...)
			want[guilty] = c.attempts
			w.want("attempts", w.attempts(all...), want)
			remark := w.text("SELECT remark FROM consumer_log WHERE consumer_status = 3")
			if !strings.Contains(remark, "Goexit") {
				t.Errorf("the letter does not say why: %s", remark)
			}
		})
	}
}

// A body that makes Validate run without an end is a malformed one.
func TestAValidatorThatNeverReturnsStopsNobodyElse(t *testing.T) {
	t.Parallel()
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
	innocent := slices.DeleteFunc(slices.Clone(all), func(k string) bool { return k == guilty })
	w.ended(dedup.Success, innocent...)
	w.ended(dedup.Dead, guilty)
	w.want("effects", w.effects(), once(innocent...))
	if err := r.drained(); !errors.Is(err, consumer.ErrStuck) {
		t.Errorf("Run = %v, want ErrStuck", err)
	}
	close(release)
	w.eventually("it has returned", func() bool { return strings.Contains(w.logs.String(), "returned after all") })
}

// Functions of Calls that never return: nobody knows what they have done, which is an attempt when others succeed.
func TestACallThatNeverReturnsStopsNobodyElse(t *testing.T) {
	t.Parallel()
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
	innocent := slices.DeleteFunc(slices.Clone(all), func(k string) bool { return k == guilty })
	w.ended(dedup.Success, innocent...)
	for i := 0; w.status(guilty) != dedup.Dead && !t.Failed(); i++ { // others that succeed meanwhile
		more := fmt.Sprintf("more-%04d", i)
		w.publish("{}", more)
		w.ended(dedup.Success, more)
	}
	if err := r.drained(); !errors.Is(err, consumer.ErrStuck) || !strings.Contains(err.Error(), guilty) {
		t.Errorf("Run = %v, want ErrStuck with %s", err, guilty)
	}
	close(release)
	w.eventually("it has returned", func() bool { return strings.Contains(w.logs.String(), "returned after all") })
}

// text is the one value that a query finds.
func (w *world) text(query string) (s string) {
	w.t.Helper()
	if err := w.db.QueryRowContext(w.t.Context(), query).Scan(&s); err != nil {
		w.t.Fatalf("%s: %v", query, err)
	}
	return s
}

func (w *world) status(key string) dedup.Status {
	w.t.Helper()
	id := dedup.Identity{Group: group, Tag: tag, Key: key}
	rows, err := w.records.LookUp(w.t.Context(), []dedup.Identity{id})
	if err != nil {
		w.t.Fatal(err)
	}
	return rows[id].Status
}
