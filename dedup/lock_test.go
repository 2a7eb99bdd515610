package dedup

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rollbackd/rollbackd/internal/stack"
)

func TestLockKeepsASecondWorkerOff(t *testing.T) {
	t.Parallel()
	l := newLock(t, stack.Redis(t), RedisLockOptions{})

	wantHolds(t, l.lock(t, "a", "one", "two"), Mine, Mine)
	wantHolds(t, l.lock(t, "b", "two", "three", "one"), HeldByOther, Mine, HeldByOther)

	if got := l.show(t, "two"); got.Hold != HeldByOther || got.Token != "a" || got.TTL <= 0 || got.TTL > 10*time.Second {
		t.Errorf("Show = %+v, want it held by a for at most 10s", got)
	}
	for r, want := range map[LockResult]uint64{LockMine: 3, LockHeld: 2, LockDone: 0, LockFailed: 0, LockBypassed: 0} {
		if got := l.Attempts(r); got != want {
			t.Errorf("Attempts(%v) = %d, want %d", r, got, want)
		}
	}
}

func TestLockHasOneWinnerPerKey(t *testing.T) {
	t.Parallel()
	l := newLock(t, stack.Redis(t), RedisLockOptions{})
	const workers, keys = 8, 200
	names := make([]string, keys)
	for i := range names {
		names[i] = fmt.Sprint("key", i)
	}
	all := l.keys(names...)
	won := make([][]Held, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			var err error
			if won[w], err = l.Lock(t.Context(), fmt.Sprint("worker", w), all); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i := range keys {
		winners := 0
		for w := range workers {
			if won[w][i].Hold == Mine {
				winners++
			}
		}
		if winners != 1 {
			t.Errorf("%s was locked by %d workers, want 1", names[i], winners)
		}
	}
}

func TestLockAgainWithTheSameTokenIsMine(t *testing.T) {
	t.Parallel()
	l := newLock(t, stack.Redis(t), RedisLockOptions{})
	wantHolds(t, l.lock(t, "a", "one"), Mine)
	wantHolds(t, l.lock(t, "a", "one", "two"), Mine, Mine)
}

func TestLockOfADeadWorkerExpires(t *testing.T) {
	t.Parallel()
	l := newLock(t, stack.Redis(t), RedisLockOptions{LockTTL: 100 * time.Millisecond}) // not running: nobody renews
	wantHolds(t, l.lock(t, "dead", "one"), Mine)
	await(t, "the lock expires", func() bool { return l.lock(t, "b", "one")[0] == Mine })
}

func TestRenewedLockOutlivesItsTTL(t *testing.T) {
	t.Parallel()
	l := newLock(t, stack.Redis(t), RedisLockOptions{LockTTL: 300 * time.Millisecond})
	stop := l.run(t)
	wantHolds(t, l.lock(t, "a", "one", "two"), Mine, Mine)
	since := time.Now()
	if err := l.Release(t.Context(), "a", l.keys("two")); err != nil {
		t.Fatal(err)
	}

	await(t, "three lifetimes of the lock", func() bool {
		if l.lock(t, "b", "one")[0] != HeldByOther {
			t.Fatal("the lock in hand was lost")
		}
		return time.Since(since) > 900*time.Millisecond
	})

	stop()
	await(t, "a stopped worker's lock expires", func() bool { return l.lock(t, "b", "one")[0] == Mine })
}

func TestReleaseIsTheOwnersAlone(t *testing.T) {
	t.Parallel()
	l := newLock(t, stack.Redis(t), RedisLockOptions{})
	l.lock(t, "a", "one", "two")
	l.lock(t, "b", "three")
	if err := l.client.ScriptFlush(t.Context()).Err(); err != nil { // the script must not be needed to stand in Redis
		t.Fatal(err)
	}

	if err := l.Release(t.Context(), "a", l.keys("one", "three", "four")); err != nil {
		t.Fatal(err)
	}

	wantHolds(t, l.lock(t, "c", "one", "two", "three", "four"), Mine, HeldByOther, HeldByOther, Mine)
}

func TestDoneMarkerEndsLaterCopies(t *testing.T) {
	t.Parallel()
	l := newLock(t, stack.Redis(t), RedisLockOptions{DoneTTL: time.Minute})
	one, two := sha256.Sum256([]byte("one")), sha256.Sum256([]byte("two"))
	keys := l.keys("one", "two", "three")
	l.lock(t, "a", "one", "three")
	l.lock(t, "b", "two") // written over as well: the success is committed, whoever works on it still

	if err := l.Done(t.Context(), []Mark{{keys[0], one}, {keys[1], two}}); err != nil {
		t.Fatal(err)
	}
	if err := l.Release(t.Context(), "a", keys); err != nil { // leaves markers alone
		t.Fatal(err)
	}

	got, err := l.Lock(t.Context(), "c", keys)
	if err != nil {
		t.Fatal(err)
	}
	want := []Held{{Hold: DoneMarker, BodyHash: one}, {Hold: DoneMarker, BodyHash: two}, {Hold: Mine}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("Lock after Done (-want +got):\n%s", d)
	}
	s := l.show(t, "one")
	if s.Hold != DoneMarker || !cmp.Equal(s.Hash, one[:]) || s.TTL <= 50*time.Second || s.TTL > time.Minute {
		t.Errorf("Show = %+v, want the done marker of %x for about a minute", s, one)
	}
	if s := l.show(t, "nobody's"); s.Hold != 0 {
		t.Errorf("Show = %+v, want a free key", s)
	}
}

func TestDoneMarkerCostsWhatTheDocsSay(t *testing.T) {
	t.Parallel()
	l := newLock(t, stack.Redis(t), RedisLockOptions{})
	k := l.keys("one")[0]
	if err := l.Done(t.Context(), []Mark{{Key: k}}); err != nil {
		t.Fatal(err)
	}
	if n := l.client.MemoryUsage(t.Context(), k.String()).Val(); n == 0 || n > 160 {
		t.Errorf("a done marker takes %d bytes by MEMORY USAGE, the docs say about 152", n)
	}
}

func TestInstallationsOnOneRedisNeverMeet(t *testing.T) {
	t.Parallel()
	url := stack.Redis(t)
	a, b := newLock(t, url, RedisLockOptions{}), newLock(t, url, RedisLockOptions{})
	a.lock(t, "a", "locked")
	if err := a.Done(t.Context(), []Mark{{Key: a.keys("done")[0]}}); err != nil {
		t.Fatal(err)
	}
	wantHolds(t, b.lock(t, "b", "locked", "done"), Mine, Mine)
}

// A value that rollbackd did not write must cost time only: taken for a done marker it would lose the message.
func TestForeignValueIsHeldAndNeverDone(t *testing.T) {
	t.Parallel()
	l := newLock(t, stack.Redis(t), RedisLockOptions{})
	hash := strings.Repeat("h", sha256.Size)
	for i, value := range []string{"", "1", "done", "done:", "done:" + hash[1:], "done:" + hash + "h", "Done:" + hash, "lock:", hash, "a"} {
		name := fmt.Sprint("foreign", i)
		if err := l.client.Set(t.Context(), l.keys(name)[0].String(), value, 0).Err(); err != nil {
			t.Fatal(err)
		}
		if got := l.lock(t, "a", name); got[0] != HeldByOther {
			t.Errorf("with the value %q Lock = %v, want held by other", value, got[0])
		}
		if s := l.show(t, name); s.Hold != HeldByOther || s.Token != "" || s.TTL >= 0 {
			t.Errorf("with the value %q Show = %+v, want it held by nobody known, for ever", value, s)
		}
	}
	if err := l.client.LPush(t.Context(), l.keys("list")[0].String(), "x").Err(); err != nil {
		t.Fatal(err)
	}
	wantHolds(t, l.lock(t, "a", "list", "mine"), HeldByOther, Mine)
	if err := l.Release(t.Context(), "a", l.keys("list", "mine")); err != nil {
		t.Errorf("Release = %v", err)
	}
	if s := l.show(t, "list"); s.Hold != HeldByOther {
		t.Errorf("Show of a list = %+v, want it held", s)
	}
	if up, _, cause := l.Up(); !up {
		t.Errorf("a foreign key was taken for a failure of redis: %v", cause)
	}
}

func TestKeyOfNoLockKeyIsRefused(t *testing.T) {
	t.Parallel()
	l := newLock(t, stack.Redis(t), RedisLockOptions{})
	bad := []LockKey{l.keys("one")[0], NoLock{}.LockKey(Key{})}
	if _, err := l.Lock(t.Context(), "a", bad); err == nil {
		t.Error("Lock of a zero key succeeded: all of them would share one lock")
	}
	if err := l.Release(t.Context(), "a", bad); err == nil {
		t.Error("Release of a zero key succeeded")
	}
	if err := l.Done(t.Context(), []Mark{{Key: bad[1]}}); err == nil {
		t.Error("Done of a zero key succeeded: one marker would end all of them")
	}
	if _, err := l.Show(t.Context(), bad[1]); err == nil {
		t.Error("Show of a zero key succeeded")
	}
	if s := l.show(t, "one"); s.Hold != 0 {
		t.Errorf("the good key beside the refused one: %+v, want it free", s)
	}
}

func TestNothingToLock(t *testing.T) {
	t.Parallel()
	l := newLock(t, "redis://127.0.0.1:1", RedisLockOptions{OnError: LockPause}) // nobody listens there
	held, err := l.Lock(t.Context(), "a", nil)
	if err := errors.Join(err, l.Release(t.Context(), "a", nil), l.Done(t.Context(), nil)); err != nil || len(held) != 0 {
		t.Errorf("empty calls = %v, %v, want nothing", held, err)
	}
}
