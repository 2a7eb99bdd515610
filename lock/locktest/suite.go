package locktest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/lock"
)

// patient is the timeout of those who shall not go on without an answer, however much else the machine has to do.
const patient = 8 * time.Second

func oneHolder(t *testing.T, w *world) {
	a, b := w.worker("a", lock.Options{}), w.worker("b", lock.Options{})
	a.finds("one", lock.Mine)
	b.finds("one", lock.HeldByOther, "a")
	if s := b.show("one"); s.Hold != lock.HeldByOther || s.Token != "a" || s.TTL <= 0 || s.TTL > 10*time.Second {
		t.Errorf("Show = %+v, want it held by a for at most 10s", s)
	}
	if s := b.show("nobody's"); s.Hold != 0 {
		t.Errorf("Show = %+v, want a free name", s)
	}

	const workers, count = 8, 200
	keys := make([]string, count)
	for i := range keys {
		keys[i] = fmt.Sprint("key", i)
	}
	won := make([][]lock.Held, workers)
	var wg sync.WaitGroup
	for i := range workers {
		p := w.worker(fmt.Sprint("worker", i), lock.Options{Timeout: patient})
		wg.Go(func() { won[i], _ = p.Lock(t.Context(), p.token, w.names(keys...)) })
	}
	wg.Wait()
	for k := range count {
		winners := 0
		for i := range workers {
			if won[i] != nil && won[i][k].Hold == lock.Mine {
				winners++
			}
		}
		if winners != 1 {
			t.Errorf("%s was locked by %d workers at once, want 1", keys[k], winners)
		}
	}
}

func sameToken(_ *testing.T, w *world) {
	a := w.worker("a", lock.Options{})
	a.finds("one", lock.Mine)
	a.finds("one", lock.Mine)
	w.worker("a", lock.Options{}).finds("one", lock.Mine) // whichever connection it came over
}

func release(_ *testing.T, w *world) {
	a, b, c := w.worker("a", lock.Options{}), w.worker("b", lock.Options{}), w.worker("c", lock.Options{})
	a.lock("one", "two")
	b.lock("three")
	a.release("one", "three", "nobody's")
	c.finds("one", lock.Mine)
	c.finds("two", lock.HeldByOther, "a")
	c.finds("three", lock.HeldByOther, "b")
	c.finds("nobody's", lock.Mine)
}

func expiry(_ *testing.T, w *world) {
	short := lock.Options{LockTTL: 150 * time.Millisecond} // not running: nobody renews
	dead, b := w.worker("dead", short), w.worker("b", short)
	dead.finds("one", lock.Mine)
	w.Die(w.T, dead.Locker)
	w.await("the lock expires", func() bool { return b.lock("one")[0].Hold == lock.Mine })
	dead.release("one")
	w.worker("c", short).finds("one", lock.HeldByOther, "b") // the late release was of a lock that is another's
}

func renewal(_ *testing.T, w *world) {
	short := lock.Options{LockTTL: 600 * time.Millisecond}
	a, b := w.worker("a", short), w.worker("b", short)
	stop := a.run()
	a.lock("one", "two")
	a.release("two")
	since := time.Now()
	w.await("three lifetimes of the lock", func() bool {
		b.finds("one", lock.HeldByOther, "a")
		return time.Since(since) > 1800*time.Millisecond
	})
	stop()
	w.Die(w.T, a.Locker)
	w.await("a stopped worker's lock expires", func() bool { return b.lock("one")[0].Hold == lock.Mine })
}

func forgotten(_ *testing.T, w *world) {
	short := lock.Options{LockTTL: 300 * time.Millisecond, MaxHold: 600 * time.Millisecond}
	a, b := w.worker("a", short), w.worker("b", short)
	a.run()
	a.finds("one", lock.Mine)
	w.await("it expires although its worker runs", func() bool { return b.lock("one")[0].Hold == lock.Mine })
}

func doneFrees(_ *testing.T, w *world) {
	a, b, c := w.worker("a", lock.Options{}), w.worker("b", lock.Options{}), w.worker("c", lock.Options{})
	a.lock("one", "free")
	b.lock("two") // the success is committed, whoever works on it still
	a.done(1, "one", "two")
	a.release("one", "two", "free")
	c.finds("one", w.afterDone())
	c.finds("two", w.afterDone())
	c.finds("free", lock.Mine)
}

func doneMarker(t *testing.T, w *world) {
	if !w.Marks() {
		t.Skip("this lock leaves no done markers")
	}
	o := lock.Options{DoneTTL: time.Minute}
	a, b, c := w.worker("a", o), w.worker("b", o), w.worker("c", o)
	a.lock("one", "free")
	b.lock("two") // written over as well: the success is committed, whoever works on it still
	a.done(1, "one")
	a.done(2, "two")
	a.release("one", "two", "free") // leaves markers alone
	for key, body := range map[string]byte{"one": 1, "two": 2} {
		if got := c.lock(key)[0]; got.Hold != lock.DoneMarker || got.BodyHash != hash(body) || got.Holder != "" {
			t.Errorf("%s: %+v, want the done marker of body %d", key, got, body)
		}
	}
	c.finds("free", lock.Mine)
	want := hash(1)
	if s := c.show("one"); s.Hold != lock.DoneMarker || string(s.Hash) != string(want[:]) || s.TTL <= 50*time.Second ||
		s.TTL > time.Minute {
		t.Errorf("Show = %+v, want the done marker for about a minute", s)
	}
	a.done(3, "one") // the last word is the right one: a marker may have lied
	if got := c.lock("one")[0]; got.BodyHash != hash(3) {
		t.Errorf("after another mark: %+v, want that of body 3", got)
	}
	w.worker("d", lock.Options{DoneTTL: 50 * time.Millisecond}).done(4, "short")
	w.await("a marker goes away", func() bool { return c.lock("short")[0].Hold == lock.Mine })
}

// A value that rollbackd did not write is no lock to wait for, because nobody ends it, and tells of no success.
func foreign(t *testing.T, w *world) {
	a, b := w.worker("a", lock.Options{}), w.worker("b", lock.Options{})
	w.Spoil(t, w.names("spoilt")[0])
	w.Forget(t, w.names("endless")[0])
	for _, key := range []string{"spoilt", "endless"} {
		a.finds(key, lock.Foreign)
	}
	if s := a.show("spoilt"); s.Hold != lock.Foreign || s.Token != "" || s.Hash != nil {
		t.Errorf("Show = %+v, want it foreign", s)
	}
	a.release("spoilt") // is not ours
	b.finds("spoilt", lock.Foreign)
	a.done(1, "spoilt") // a success is told over whatever stands there
	b.finds("spoilt", w.afterDone())
	if _, _, cause := a.Up(); cause != nil {
		t.Errorf("a foreign value was taken for a failure of the server: %v", cause)
	}
}

func manyNames(t *testing.T, w *world) {
	a, b, c := w.worker("a", lock.Options{}), w.worker("b", lock.Options{}), w.worker("c", lock.Options{})
	const count = 1000
	keys := make([]string, count)
	var held, done, own []string
	want := make([]lock.Hold, count)
	for i := range keys {
		keys[i] = fmt.Sprint(i)
		switch i % 4 {
		case 0:
			want[i] = lock.Mine
		case 1:
			want[i], held = lock.HeldByOther, append(held, keys[i])
		case 2:
			want[i], done = w.afterDone(), append(done, keys[i])
		case 3:
			want[i], own = lock.Mine, append(own, keys[i])
		}
	}
	a.lock(held...)
	b.done(1, done...)
	c.lock(own...)
	w.Spoil(t, w.names(keys[8])[0])
	want[8] = lock.Foreign
	for i, got := range c.lock(keys...) {
		if got.Hold != want[i] {
			t.Fatalf("name %d of %d: %v, want %v", i, count, got.Hold, want[i])
		}
	}
}

func lostReply(t *testing.T, w *world) {
	l, lose, lost := w.OpenLossy(t, lock.Options{})
	a := worker{l, w, "a"}
	a.finds("warm up", lock.Mine)
	lose()
	a.finds("one", lock.Mine)
	if n := lost(); n != 1 {
		t.Fatalf("%d replies were lost, want 1", n)
	}
	w.worker("b", lock.Options{}).finds("one", lock.HeldByOther, "a")
	if _, _, cause := a.Up(); cause != nil {
		t.Errorf("one lost reply was taken for a failure: %v", cause)
	}
}

func proceed(t *testing.T, w *world) {
	a := w.worker("a", lock.Options{OnError: lock.Proceed})
	a.run()
	a.lock("one")
	w.Stop(t)
	const calls = 1000
	start := time.Now()
	for range calls { // as many timeouts would take minutes
		a.finds("one", lock.Mine) // nobody can be asked
		a.done(1, "one")
		a.release("one")
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("%d calls without a server took %v", calls, took)
	}
	if up, since, cause := a.Up(); up || cause == nil || time.Since(since) > time.Minute {
		t.Errorf("Up = %v, %v, %v, want down since now, and why", up, since, cause)
	}
	if n := a.Attempts(lock.ResultFailed) + a.Attempts(lock.ResultBypassed); n != calls {
		t.Errorf("%d names are counted as failed or bypassed, want %d", n, calls)
	}
	w.Start(t)
	w.await("the server is asked again", func() bool { up, _, _ := a.Up(); return up })
	a.finds("two", lock.Mine)
	w.worker("b", lock.Options{}).finds("two", lock.HeldByOther, "a")
}

func pause(t *testing.T, w *world) {
	a := w.worker("a", lock.Options{OnError: lock.Pause})
	a.run()
	a.lock("one")
	w.Stop(t)
	start := time.Now()
	for range 1000 {
		if held, err := a.Lock(t.Context(), "a", w.names("one", "two")); !errors.Is(err, lock.ErrUnavailable) || held != nil {
			t.Fatalf("Lock = %v, %v, want ErrUnavailable", held, err)
		}
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("1000 calls took %v, want one timeout at most", took)
	}
	if _, err := a.Show(t.Context(), w.names("one")[0]); err == nil {
		t.Error("Show without a server succeeded")
	}
	w.Start(t)
	w.await("the server is asked again", func() bool {
		_, err := a.Lock(t.Context(), "a", w.names("two"))
		if err != nil && !errors.Is(err, lock.ErrUnavailable) {
			t.Fatal(err)
		}
		return err == nil
	})
}

func ended(t *testing.T, w *world) {
	for _, policy := range []lock.Policy{lock.Proceed, lock.Pause} {
		a := w.worker("a", lock.Options{OnError: policy})
		why := errors.New("the lane stops")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(why)
		names := w.names("one")
		_, err := a.Lock(ctx, "a", names)
		for what, err := range map[string]error{
			"Lock": err, "Release": a.Release(ctx, "a", names), "Done": a.Done(ctx, []lock.Mark{{Name: names[0]}}),
		} {
			if !errors.Is(err, why) || errors.Is(err, lock.ErrUnavailable) {
				t.Errorf("%s: %s = %v, want the caller's own cause", policy, what, err)
			}
		}
		if _, _, cause := a.Up(); cause != nil {
			t.Errorf("%s: the server was given up: %v", policy, cause)
		}
	}
}

func zeroName(t *testing.T, w *world) {
	a := w.worker("a", lock.Options{})
	bad := append(w.names("one"), lock.Name{})
	if _, err := a.Lock(t.Context(), "a", bad); err == nil {
		t.Error("Lock of the zero name succeeded: all of them would share one lock")
	}
	if err := a.Release(t.Context(), "a", bad); err == nil {
		t.Error("Release of the zero name succeeded")
	}
	if err := a.Done(t.Context(), []lock.Mark{{Name: bad[1]}}); err == nil {
		t.Error("Done of the zero name succeeded: one marker would end all of them")
	}
	if _, err := a.Show(t.Context(), bad[1]); err == nil {
		t.Error("Show of the zero name succeeded")
	}
	if s := a.show("one"); s.Hold != 0 {
		t.Errorf("the good name beside the refused one: %+v, want it free", s)
	}
}

func noNames(t *testing.T, w *world) {
	a := w.worker("a", lock.Options{OnError: lock.Pause})
	w.Stop(t)
	held, err := a.Lock(t.Context(), "a", nil)
	if err := errors.Join(err, a.Release(t.Context(), "a", nil), a.Done(t.Context(), nil)); err != nil || len(held) != 0 {
		t.Errorf("empty calls = %v, %v, want nothing", held, err)
	}
}

func runsOnce(t *testing.T, w *world) {
	a := w.worker("a", lock.Options{})
	a.run()()
	if err := a.Run(t.Context()); err == nil {
		t.Error("the second Run succeeded")
	}
}

func counted(t *testing.T, w *world) {
	a, b := w.worker("a", lock.Options{}), w.worker("b", lock.Options{})
	a.lock("one", "two")
	a.done(1, "three")
	w.Spoil(t, w.names("four")[0])
	b.lock("one", "two", "three", "four", "five")
	counts := map[lock.Result]uint64{
		lock.ResultMine: 1, lock.ResultHeld: 2, lock.ResultForeign: 1, lock.ResultDone: 0, lock.ResultFailed: 0,
		lock.ResultBypassed: 0,
	}
	if w.Marks() {
		counts[lock.ResultDone]++
	} else {
		counts[lock.ResultMine]++
	}
	for r, want := range counts {
		if got := b.Attempts(r); got != want {
			t.Errorf("Attempts(%v) = %d, want %d", r, got, want)
		}
	}
}

func schemas(_ *testing.T, w *world) {
	a, b := w.worker("a", lock.Options{}), w.worker("b", lock.Options{})
	a.lock("locked")
	a.done(1, "done")
	w.schema += " made anew"
	b.finds("locked", lock.Mine)
	b.finds("done", lock.Mine)
}
