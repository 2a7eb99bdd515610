package locktest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/lock"
)

// patient is the timeout of those who shall not go on without an answer, however much else the machine has to do, and
// awake has nothing else.
const patient = 8 * time.Second

var awake = lock.Options{Timeout: patient}

func oneHolder(t *testing.T, w *World) {
	a, b := w.Worker("a", awake), w.Worker("b", awake)
	a.Finds(lock.Mine, "", "one")
	b.Finds(lock.HeldByOther, "a", "one")
	if s := b.Look("one"); s.Hold != lock.HeldByOther || s.Token != "a" || s.TTL <= 0 || s.TTL > 10*time.Second {
		t.Errorf("Show = %+v, want it held by a for at most 10s", s)
	}
	assert.Is(t, b.Look("nobody's").Hold, 0, "Show")

	const workers, count = 8, 200
	keys := make([]string, count)
	for i := range keys {
		keys[i] = fmt.Sprint("key", i)
	}
	won := make([][]lock.Held, workers)
	var wg sync.WaitGroup
	for i := range workers {
		p := w.Worker(fmt.Sprint("worker", i), awake)
		wg.Go(func() { won[i], _ = p.Lock(t.Context(), p.token, w.Names(keys...)) })
	}
	wg.Wait()
	for k := range count {
		winners := 0
		for i := range workers {
			if won[i] != nil && won[i][k].Hold == lock.Mine {
				winners++
			}
		}
		assert.Is(t, winners, 1, "%s was locked by workers at once", keys[k])
	}
}

func sameToken(_ *testing.T, w *World) {
	a := w.Worker("a", awake)
	a.Finds(lock.Mine, "", "one")
	a.Finds(lock.Mine, "", "one")
	w.Worker("a", awake).Finds(lock.Mine, "", "one") // whichever connection it came over
}

func release(_ *testing.T, w *World) {
	a, b, c := w.Worker("a", awake), w.Worker("b", awake), w.Worker("c", awake)
	a.Find("one", "two")
	b.Find("three")
	a.GiveBack("one", "three", "nobody's")
	c.Finds(lock.Mine, "", "one")
	c.Finds(lock.HeldByOther, "a", "two")
	c.Finds(lock.HeldByOther, "b", "three")
	c.Finds(lock.Mine, "", "nobody's")
}

func expiry(_ *testing.T, w *World) {
	short := lock.Options{LockTTL: 150 * time.Millisecond} // not running: nobody renews
	dead, b := w.Worker("dead", short), w.Worker("b", awake)
	dead.Finds(lock.Mine, "", "one")
	w.Die(w.T, dead.Locker)
	w.Await("the lock expires", func() bool { return b.Find("one")[0].Hold == lock.Mine })
	dead.GiveBack("one")
	w.Worker("c", awake).Finds(lock.HeldByOther, "b", "one") // the late release was of a lock that is another's
}

func renewal(_ *testing.T, w *World) {
	short := lock.Options{LockTTL: 2 * time.Second} // a busy machine may be late for a renewal by more than a second
	a, b := w.Worker("a", short), w.Worker("b", short)
	stop := a.Runs()
	a.Find("one", "two")
	a.GiveBack("two")
	since := time.Now()
	w.Await("three lifetimes of the lock", func() bool {
		b.Finds(lock.HeldByOther, "a", "one")
		return time.Since(since) > 6*time.Second
	})
	stop()
	w.Die(w.T, a.Locker)
	w.Await("a stopped worker's lock expires", func() bool { return b.Find("one")[0].Hold == lock.Mine })
}

func forgotten(_ *testing.T, w *World) {
	short := lock.Options{LockTTL: 300 * time.Millisecond, MaxHold: 600 * time.Millisecond}
	a, b := w.Worker("a", short), w.Worker("b", short)
	a.Runs()
	a.Finds(lock.Mine, "", "one")
	w.Await("it expires although its worker runs", func() bool { return b.Find("one")[0].Hold == lock.Mine })
}

func doneFrees(_ *testing.T, w *World) {
	a, b, c := w.Worker("a", awake), w.Worker("b", awake), w.Worker("c", awake)
	a.Find("one", "free")
	b.Find("two") // the success is committed, whoever works on it still
	a.Ends(1, "one", "two")
	a.GiveBack("one", "two", "free")
	c.Finds(w.afterDone(), "", "one")
	c.Finds(w.afterDone(), "", "two")
	c.Finds(lock.Mine, "", "free")
}

func doneMarker(t *testing.T, w *World) {
	if !w.Marks() {
		t.Skip("this lock leaves no done markers")
	}
	o := lock.Options{DoneTTL: time.Minute, Timeout: patient}
	a, b, c := w.Worker("a", o), w.Worker("b", o), w.Worker("c", o)
	a.Find("one", "free")
	b.Find("two") // written over as well: the success is committed, whoever works on it still
	a.Ends(1, "one")
	a.Ends(2, "two")
	a.GiveBack("one", "two", "free") // leaves markers alone
	for key, body := range map[string]byte{"one": 1, "two": 2} {
		if got := c.Find(key)[0]; got.Hold != lock.DoneMarker || got.BodyHash != hash(body) || got.Holder != "" {
			t.Errorf("%s: %+v, want the done marker of body %d", key, got, body)
		}
	}
	c.Finds(lock.Mine, "", "free")
	want := hash(1)
	s := c.Look("one")
	assert.That(t, s.Hold == lock.DoneMarker && string(s.Hash) == string(want[:]) && s.TTL > 50*time.Second &&
		s.TTL <= time.Minute, "Show = %+v, want the done marker for about a minute", s)
	a.Ends(3, "one") // the last word is the right one: a marker may have lied
	assert.Is(t, c.Find("one")[0].BodyHash, hash(3), "after another mark")
	w.Worker("d", lock.Options{DoneTTL: 50 * time.Millisecond}).Ends(4, "short")
	w.Await("a marker goes away", func() bool { return c.Find("short")[0].Hold == lock.Mine })
}

// A value that rollbackd did not write is no lock to wait for, because nobody ends it, and tells of no success.
func foreign(t *testing.T, w *World) {
	a, b := w.Worker("a", awake), w.Worker("b", awake)
	w.Spoil(t, w.Names("spoilt")[0])
	w.Forget(t, w.Names("endless")[0])
	for _, key := range []string{"spoilt", "endless"} {
		a.Finds(lock.Foreign, "", key)
	}
	s := a.Look("spoilt")
	assert.That(t, s.Hold == lock.Foreign && s.Token == "" && s.Hash == nil, "Show = %+v, want it foreign", s)
	a.GiveBack("spoilt") // is not ours
	b.Finds(lock.Foreign, "", "spoilt")
	a.Ends(1, "spoilt") // a success is told over whatever stands there
	b.Finds(w.afterDone(), "", "spoilt")
	_, _, cause := a.Up()
	assert.That(t, cause == nil, "a foreign value was taken for a failure of the server: %v", cause)
}

func manyNames(t *testing.T, w *World) {
	a, b, c := w.Worker("a", awake), w.Worker("b", awake), w.Worker("c", awake)
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
	a.Find(held...)
	b.Ends(1, done...)
	c.Find(own...)
	w.Spoil(t, w.Names(keys[8])[0])
	want[8] = lock.Foreign
	for i, got := range c.Find(keys...) {
		require.Is(t, got.Hold, want[i], "name %d of %d", i, count)
	}
}

func lostReply(t *testing.T, w *World) {
	l, lose, lost := w.OpenLossy(t, lock.Options{})
	a := w.Of(l, "a")
	a.Finds(lock.Mine, "", "warm up")
	lose()
	a.Finds(lock.Mine, "", "one")
	require.Is(t, lost(), 1, "replies were lost")
	w.Worker("b", awake).Finds(lock.HeldByOther, "a", "one")
	_, _, cause := a.Up()
	assert.That(t, cause == nil, "one lost reply was taken for a failure: %v", cause)
}

func proceed(t *testing.T, w *World) {
	a := w.Worker("a", lock.Options{OnError: lock.Proceed})
	a.Runs()
	a.Find("one")
	w.Stop(t)
	const calls = 1000
	start := time.Now()
	for range calls { // as many timeouts would take minutes
		a.Finds(lock.Mine, "", "one") // nobody can be asked
		a.Ends(1, "one")
		a.GiveBack("one")
	}
	took := time.Since(start)
	assert.That(t, took <= 20*time.Second, "%d calls without a server took %v", calls, took)
	if up, since, cause := a.Up(); up || cause == nil || time.Since(since) > time.Minute {
		t.Errorf("Up = %v, %v, %v, want down since now, and why", up, since, cause)
	}
	assert.Is(t, a.Attempts(lock.ResultFailed)+a.Attempts(lock.ResultBypassed), calls,
		"names are counted as failed or bypassed")
	w.Start(t)
	w.Await("the server is asked again", func() bool { up, _, _ := a.Up(); return up })
	a.Finds(lock.Mine, "", "two")
	w.Worker("b", awake).Finds(lock.HeldByOther, "a", "two")
}

func pause(t *testing.T, w *World) {
	a := w.Worker("a", lock.Options{OnError: lock.Pause})
	a.Runs()
	a.Find("one")
	w.Stop(t)
	start := time.Now()
	for range 1000 {
		held, err := a.Lock(t.Context(), "a", w.Names("one", "two"))
		require.That(t, errors.Is(err, lock.ErrUnavailable) && held == nil, "Lock = %v, %v, want ErrUnavailable", held, err)
	}
	took := time.Since(start)
	assert.That(t, took <= 10*time.Second, "1000 calls took %v, want one timeout at most", took)
	_, err := a.Show(t.Context(), w.Names("one")[0])
	assert.That(t, err != nil, "Show without a server succeeded")
	w.Start(t)
	w.Await("the server is asked again", func() bool {
		_, err := a.Lock(t.Context(), "a", w.Names("two"))
		if err != nil && !errors.Is(err, lock.ErrUnavailable) {
			t.Fatal(err)
		}
		return err == nil
	})
}

// What a server that stands still is asked for ends in time; when it goes on, nothing of before is in anybody's way.
func frozen(t *testing.T, w *World) {
	o := lock.Options{Timeout: 300 * time.Millisecond, LockTTL: 2 * time.Second}
	a, other := w.Worker("a", o), w.Worker("b", o)
	o.OnError = lock.Pause
	pausing := w.Worker("c", o)
	a.Runs()
	other.Runs()
	keys := Keys(10)
	a.Find(keys...)
	a.GiveBack(keys...) // a thread of a server may answer for a moment
	a.As("in hand").Find(keys[:5]...)
	w.Freeze(t)
	a.GoesOnWithout(keys[5:]...)
	_, err := pausing.Lock(t.Context(), "c", w.Names("one"))
	assert.That(t, errors.Is(err, lock.ErrUnavailable) && strings.Contains(err.Error(), "took over 300ms"),
		"Lock = %v, want ErrUnavailable and why", err)
	_, err = pausing.Show(t.Context(), w.Names("one")[0])
	assert.That(t, err != nil, "Show without an answer succeeded")
	w.Thaw(t)
	a.IsAsked()
	other.IsAsked()
	a.As("in hand").GiveBack(keys[:5]...)
	w.Await("nothing is in the way", func() bool { return other.Mine(keys...) == len(keys) })
}

func ended(t *testing.T, w *World) {
	for _, policy := range []lock.Policy{lock.Proceed, lock.Pause} {
		a := w.Worker("a", lock.Options{OnError: policy})
		why := errors.New("the lane stops")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(why)
		names := w.Names("one")
		_, err := a.Lock(ctx, "a", names)
		for what, err := range map[string]error{
			"Lock": err, "Release": a.Release(ctx, "a", names), "Done": a.Done(ctx, []lock.Mark{{Name: names[0]}}),
		} {
			assert.That(t, errors.Is(err, why) && !errors.Is(err, lock.ErrUnavailable),
				"%s: %s = %v, want the caller's own cause", policy, what, err)
		}
		_, _, cause := a.Up()
		assert.That(t, cause == nil, "%s: the server was given up: %v", policy, cause)
	}
}

func zeroName(t *testing.T, w *World) {
	a := w.Worker("a", awake)
	bad := append(w.Names("one"), lock.Name{})
	_, err := a.Lock(t.Context(), "a", bad)
	assert.That(t, err != nil, "Lock of the zero name succeeded: all of them would share one lock")
	err = a.Release(t.Context(), "a", bad)
	assert.That(t, err != nil, "Release of the zero name succeeded")
	err = a.Done(t.Context(), []lock.Mark{{Name: bad[1]}})
	assert.That(t, err != nil, "Done of the zero name succeeded: one marker would end all of them")
	_, err = a.Show(t.Context(), bad[1])
	assert.That(t, err != nil, "Show of the zero name succeeded")
	assert.Is(t, a.Look("one").Hold, 0, "the good name beside the refused one")
}

func noNames(t *testing.T, w *World) {
	a := w.Worker("a", lock.Options{OnError: lock.Pause})
	w.Stop(t)
	held, err := a.Lock(t.Context(), "a", nil)
	err = errors.Join(err, a.Release(t.Context(), "a", nil), a.Done(t.Context(), nil))
	assert.That(t, err == nil && len(held) == 0, "empty calls = %v, %v, want nothing", held, err)
}

func runsOnce(t *testing.T, w *World) {
	a := w.Worker("a", awake)
	a.Runs()()
	err := a.Run(t.Context())
	assert.That(t, err != nil, "the second Run succeeded")
}

func counted(t *testing.T, w *World) {
	a, b := w.Worker("a", awake), w.Worker("b", awake)
	a.Find("one", "two")
	a.Ends(1, "three")
	w.Spoil(t, w.Names("four")[0])
	b.Find("one", "two", "three", "four", "five")
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
		assert.Is(t, b.Attempts(r), want, "Attempts(%v)", r)
	}
}

func schemas(_ *testing.T, w *World) {
	a, b := w.Worker("a", awake), w.Worker("b", awake)
	a.Find("locked")
	a.Ends(1, "done")
	w.Schema += " made anew"
	b.Finds(lock.Mine, "", "locked")
	b.Finds(lock.Mine, "", "done")
}
