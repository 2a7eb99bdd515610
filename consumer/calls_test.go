package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
)

// shopService is somebody's service: it knows a message again by its key, and does what it was told to do.
type shopService struct {
	mu      sync.Mutex
	calls   map[string]int                                      // by key; guarded by mu
	applied map[string]int                                      // effects by key; guarded by mu
	answer  func(ctx context.Context, m consumer.Message) error // before the effect; nil: well; guarded by mu
	order   []string                                            // keys as they came; guarded by mu
	busy    int                                                 // calls at this moment; guarded by mu
	most    int                                                 // of busy; guarded by mu
}

func newShopService() *shopService {
	return &shopService{calls: map[string]int{}, applied: map[string]int{}}
}

func (s *shopService) call(ctx context.Context, m consumer.Message) error {
	s.mu.Lock()
	s.calls[m.Key]++
	s.order = append(s.order, m.Key)
	s.busy++
	s.most = max(s.most, s.busy)
	answer := s.answer
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.busy--
	}()
	if answer != nil {
		if err := answer(ctx, m); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.applied[m.Key] == 0 {
		s.applied[m.Key]++
	}
	return nil
}

func (s *shopService) answering(f func(ctx context.Context, m consumer.Message) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = f
}

func (s *shopService) callsOf() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.calls)
}

func (s *shopService) effectsOf() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.applied)
}

func (s *shopService) times(key string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[key]
}

// calling makes the world's handler one that calls a service.
func (w *world) calling(o consumer.CallOptions) *shopService {
	s := newShopService()
	if o.ProbeAfter == 0 {
		o.ProbeAfter = 100 * time.Millisecond
	}
	w.handler = consumer.Calls(s.call, o)
	return s
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

func TestEachMessageIsCalledForOnceAndItsCopiesNever(t *testing.T) {
	w := newWorld(t)
	s := w.calling(consumer.CallOptions{Concurrency: 8})
	all := keys("order", 300)
	w.publish("{}", all...)
	w.startWith(all...)
	w.settled(600)
	w.want("calls", s.callsOf(), once(all...))
	w.want("attempts", w.attempts(all...), once(all...))
	w.ended(dedup.Success, all...)
	w.quiet()
	if s.most > 8 {
		t.Errorf("%d calls at a time, want 8 at most", s.most)
	}
	if w.number("SELECT COUNT(*) FROM consumer_log WHERE msg_body IS NOT NULL") > 0 {
		t.Error("rows of success keep their bodies")
	}
	// and copies that come later, of which Redis knows nothing any more
	client, _ := w.redisOf()
	ok(t, client.FlushAll(t.Context()).Err())
	w.publish("{}", all[:50]...)
	w.settled(650)
	w.want("calls", s.callsOf(), once(all...))
}

func TestACallThatFailsIsMadeMaxAttemptsTimes(t *testing.T) {
	w := newWorld(t)
	s := w.calling(consumer.CallOptions{})
	bad, refused, panics := "fails", "refused", "panics"
	s.answering(func(_ context.Context, m consumer.Message) error {
		switch m.Key {
		case bad:
			return fmt.Errorf("attempt %d: out of paper", m.Attempt)
		case refused:
			return consumer.Permanent(errors.New("no such goods"))
		case panics:
			panic("oops")
		}
		return nil
	})
	good := keys("good", 20)
	w.startWith(append(good, bad, refused, panics)...)
	w.ended(dedup.Dead, bad, refused, panics)
	w.ended(dedup.Success, good...)
	w.quiet()
	is(w, "letters", w.dead(), 3)
	want := once(append(good, refused)...)
	want[bad], want[panics] = 3, 3
	w.want("calls", s.callsOf(), want)
	w.want("attempts", w.attempts(bad, refused, panics), map[string]int{bad: 3, refused: 1, panics: 3})
	events := w.events(bad)
	if last := events[len(events)-1]; last.Error != "attempt 3: out of paper" {
		t.Errorf("the last event says %q", last.Error)
	}
}

// Given a service that says later of one message for ever, without a time, then it is called for in growing pauses; the
// row says why, its age is that of the message, and its story has one line of all these calls.
func TestAMessageThatIsPutOffForEverIsSeen(t *testing.T) {
	w := newWorld(t)
	s := w.calling(consumer.CallOptions{})
	var mu sync.Mutex
	var came []time.Time
	var late bool
	s.answering(func(context.Context, consumer.Message) error {
		mu.Lock()
		defer mu.Unlock()
		came = append(came, time.Now())
		if len(came) > 6 && !late {
			return nil
		}
		return consumer.Later(errors.New("it runs still"), 0)
	})
	late = true
	w.startWith("order")
	w.eventually("six calls", func() bool { return s.times("order") >= 6 })
	w.eventually("its row says why", func() bool { return w.row("order").Remark == "put off: it runs still" })
	w.eventually("its row is failed, and as old as the message", func() bool {
		row := w.row("order")
		return row.Status == dedup.Failed && row.Attempts == 0 && row.At.Equal(row.CreatedAt)
	})
	is(w, "lines in its story", len(w.events("order")), 2)
	mu.Lock()
	late = false
	longest := slices.Max(w.cfg.RetryDelays)
	for i := 4; i < len(came); i++ {
		if gap := came[i].Sub(came[i-1]); gap < longest-longest/20 {
			t.Errorf("call %d came %v after the one before it, want the longest delay, %v", i+1, gap, longest)
		}
	}
	mu.Unlock()
	w.ended(dedup.Success, "order")
	w.want("attempts", w.attempts("order"), map[string]int{"order": 1})
	w.quiet()
}

func TestLaterIsNoAttemptAndWaitsLongEnough(t *testing.T) {
	w := newWorld(t)
	s := w.calling(consumer.CallOptions{})
	var mu sync.Mutex
	came := map[string][]time.Time{}
	s.answering(func(_ context.Context, m consumer.Message) error {
		mu.Lock()
		defer mu.Unlock()
		came[m.Key] = append(came[m.Key], time.Now())
		if m.Attempt != 1 {
			t.Errorf("attempt %d, want 1 always", m.Attempt)
		}
		if len(came[m.Key]) < 5 {
			return consumer.Later(errors.New("slow down"), 250*time.Millisecond)
		}
		return nil
	})
	w.startWith("order")
	w.ended(dedup.Success, "order")
	w.quiet()
	w.want("calls", s.callsOf(), map[string]int{"order": 5})
	w.want("attempts", w.attempts("order"), map[string]int{"order": 1})
	mu.Lock()
	defer mu.Unlock()
	for i, at := range came["order"][1:] {
		if gap := at.Sub(came["order"][i]); gap < 290*time.Millisecond {
			t.Errorf("call %d came %v after the one before it, want the retry queue of 300ms", i+2, gap)
		}
	}
}

func TestAnAbsentServicePausesConsumingAndCostsNoAttempt(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		err  func(error) error
	}{
		{"unavailable", consumer.Unavailable}, {"unanswered", consumer.Unanswered},
		{"misconfigured", consumer.Misconfigured},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			w.cfg.GiveBackAfter = 500 * time.Millisecond
			s := w.calling(consumer.CallOptions{Concurrency: 4, Timeout: time.Second, ProbeAfter: 300 * time.Millisecond})
			s.answering(func(context.Context, consumer.Message) error { return test.err(errors.New("nobody is there")) })
			all := keys("order", 200)
			r := w.startWith(all...)
			w.paused(r, consumer.DependencyService)
			began := time.Now()
			w.logged(`msg="deliveries given back"`)
			asked := len(s.callsOf())
			w.eventually("others ask all the same", func() bool { return len(s.callsOf()) > asked+3 })
			if !waitsFor(r, consumer.DependencyService) {
				t.Errorf("state %+v, want the service among what is missing", r.State())
			}
			sum := 0
			for _, n := range s.callsOf() {
				sum += n
			}
			if most := 2*5 + 4 + int(time.Since(began)/(300*time.Millisecond)); sum > most {
				t.Errorf("%d calls of a service that is not there, want %d at most", sum, most)
			}
			if n := w.number("SELECT COALESCE(MAX(consumer_times), 0) FROM consumer_log"); n > 1 {
				t.Errorf("%d attempts, want none but one that is on its way", n)
			}
			s.answering(nil)
			w.ended(dedup.Success, all...)
			w.recovered(r)
			w.want("effects", s.effectsOf(), once(all...))
			w.want("attempts", w.attempts(all...), once(all...))
			if w.dead() > 0 {
				t.Errorf("%d letters", w.dead())
			}
		})
	}
}

func TestAMessageThatFindsTheServiceAbsentWhileOthersSucceedFails(t *testing.T) {
	w := newWorld(t)
	w.cfg.MaxAttempts, w.cfg.RetryDelays = 2, w.cfg.RetryDelays[:1]
	s := w.calling(consumer.CallOptions{})
	s.answering(func(_ context.Context, m consumer.Message) error {
		if m.Key == "bad" {
			return consumer.Unavailable(errors.New("502, whenever it is this one"))
		}
		return nil
	})
	w.startWith("bad")
	for i := 0; ; i++ { // others succeed all the time
		key := fmt.Sprintf("good-%04d", i)
		w.publish("{}", key)
		w.ended(dedup.Success, key)
		if w.number("SELECT COUNT(*) FROM consumer_log WHERE msg_key = 'bad' AND consumer_status = 3") == 1 {
			break
		}
		if i > 2000 {
			t.Fatal("it is tried for ever")
		}
	}
	w.quiet()
	if n := s.times("bad"); n < 6 {
		t.Errorf("%d calls, want 6 at least: three for each of two attempts", n)
	}
}

// A call without an answer may be the service's fault or the message's.
func TestAnUnansweredCallIsAnAttemptWhileOthersSucceed(t *testing.T) {
	w := newWorld(t)
	s := w.calling(consumer.CallOptions{Timeout: 500 * time.Millisecond})
	s.answering(func(ctx context.Context, m consumer.Message) error {
		if m.Key == "hangs" {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	})
	w.startWith("hangs")
	for i := 0; w.dead() == 0; i++ { // others succeed all the time
		key := fmt.Sprintf("good-%04d", i)
		w.publish("{}", key)
		w.ended(dedup.Success, key)
		if i > 1000 {
			t.Fatal("it is tried for ever")
		}
	}
	w.ended(dedup.Dead, "hangs")
	w.quiet()
	w.want("attempts", w.attempts("hangs"), map[string]int{"hangs": w.cfg.MaxAttempts})
	events := w.events("hangs")
	if last := events[len(events)-1]; !strings.Contains(last.Error, "perhaps applied") {
		t.Errorf("the last event says %q, want that it is perhaps applied", last.Error)
	}
}

func TestACrashBetweenCallAndMarkCallsAgainForTheSameMessage(t *testing.T) {
	w := newWorld(t)
	w.oneBatch(10)
	s := w.calling(consumer.CallOptions{})
	all := keys("order", 10)
	w.publish("{}", all...)
	w.crashAt(consumer.PointEffect)
	w.want("calls", s.callsOf(), once(all...))
	w.start()
	w.ended(dedup.Success, all...)
	w.quiet()
	for key, n := range s.callsOf() {
		if n != 2 {
			t.Errorf("%d calls for %s, want 2", n, key)
		}
	}
	w.want("effects", s.effectsOf(), once(all...))
	for key, n := range w.attempts(all...) {
		if n != 2 {
			t.Errorf("%d attempts of %s, want 2", n, key)
		}
	}
}

// One of the calls may have killed the process: the others are not dead for it.
func TestTheLastCallOfAMessageThatWasClaimedWithOthersIsMadeAgainAlone(t *testing.T) {
	w := newWorld(t)
	w.oneBatch(3)
	s := w.calling(consumer.CallOptions{})
	all := keys("order", 3)
	w.publish("{}", all...)
	// given a process that dies with the last attempts of three
	w.crashAt(consumer.PointClaimed)
	w.exec("UPDATE consumer_log SET consumer_times = ?, consumer_timestamp = UTC_TIMESTAMP(6) - INTERVAL 1 HOUR",
		w.cfg.MaxAttempts)
	w.start()
	w.ended(dedup.Success, all...)
	w.want("calls", s.callsOf(), once(all...))
	for _, k := range all {
		if row := w.row(k); row.Attempts != w.cfg.MaxAttempts || !row.RunsAlone() {
			t.Errorf("%s is %+v, want its last attempt, marked", k, row)
		}
	}
}

func TestALetterOfACallThatNeverCameBackSaysPerhapsApplied(t *testing.T) {
	w := newWorld(t)
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
	if reason != string(dedup.ReasonCrashed) || !strings.HasPrefix(why, "perhaps applied: ") {
		t.Errorf("the letter says %v: %s", reason, why)
	}
	w.wantRow("order", wanted{Says: "perhaps applied: "})
}

func TestALostCommitOfAClaimOrAMarkIsLookedUp(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2} {
		t.Run(fmt.Sprintf("commit %d", n), func(t *testing.T) {
			w := newWorld(t)
			w.oneBatch(20)
			s := w.calling(consumer.CallOptions{})
			all := keys("order", 20)
			w.publish("{}", all...)
			l := w.proxied()
			dropped := l.mysql.DropReply(nthCommit(n))
			w.start()
			await(t, dropped, "the reply is lost")
			w.ended(dedup.Success, all...)
			w.quiet()
			w.want("calls", s.callsOf(), once(all...))
			w.want("attempts", w.attempts(all...), once(all...))
		})
	}
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
	w.want("calls", s.callsOf(), once(all...))
	w.want("attempts", w.attempts(all...), once(all...))
}

func TestNoCallStartsThatItsLeaseMayNotOutlast(t *testing.T) {
	w := newWorld(t)
	w.oneBatch(30)
	s := w.calling(consumer.CallOptions{Concurrency: 2, Timeout: time.Second})
	s.answering(func(ctx context.Context, _ consumer.Message) error {
		select { // each call takes its time
		case <-time.After(400 * time.Millisecond):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	all := keys("order", 30)
	w.startWith(all...)
	w.ended(dedup.Success, all...)
	w.quiet()
	w.want("calls", s.callsOf(), once(all...))
	w.want("attempts", w.attempts(all...), once(all...))
	w.want("outcomes", w.outcomes(), map[string]int{"applied": 30})
	if w.number("SELECT COUNT(*) FROM consumer_log_event WHERE `from` = 0 AND `to` = 2") == 0 {
		t.Error("nothing was un-claimed: the test did not meet what it is about")
	}
}
