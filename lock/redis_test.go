package lock

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestDoneMarkerCostsWhatTheDocsSay(t *testing.T) {
	t.Parallel()
	l := newLock(t, stack.Redis(t), Options{})
	k := l.names("one")[0]
	if err := l.Done(t.Context(), []Mark{{Name: k}}); err != nil {
		t.Fatal(err)
	}
	if n := l.client.MemoryUsage(t.Context(), k.String()).Val(); n == 0 || n > 160 {
		t.Errorf("a done marker takes %d bytes by MEMORY USAGE, the docs say about 152", n)
	}
}

// A value that rollbackd did not write is no lock to wait for, because nobody ends it, and tells of no success.
func TestForeignValueIsNeitherHeldNorDone(t *testing.T) {
	t.Parallel()
	l := newLock(t, stack.Redis(t), Options{})
	hash := strings.Repeat("h", sha256.Size)
	for i, value := range []string{"", "1", "done", "done:", "done:" + hash[1:], "done:" + hash + "h", "Done:" + hash,
		"lock:", hash, "a"} {
		name := fmt.Sprint("foreign", i)
		if err := l.client.Set(t.Context(), l.names(name)[0].String(), value, 0).Err(); err != nil {
			t.Fatal(err)
		}
		if got := l.lock(t, "a", name); got[0] != Foreign {
			t.Errorf("with the value %q Lock = %v, want foreign", value, got[0])
		}
		if s := l.show(t, name); s.Hold != Foreign || s.Token != "" || s.TTL >= 0 {
			t.Errorf("with the value %q Show = %+v, want it foreign, for ever", value, s)
		}
	}
	if err := l.client.LPush(t.Context(), l.names("list")[0].String(), "x").Err(); err != nil {
		t.Fatal(err)
	}
	wantHolds(t, l.lock(t, "a", "list", "mine"), Foreign, Mine)
	if err := l.Release(t.Context(), "a", l.names("list", "mine")); err != nil {
		t.Errorf("Release = %v", err)
	}
	if s := l.show(t, "list"); s.Hold != Foreign {
		t.Errorf("Show of a list = %+v, want it foreign", s)
	}
	if err := l.Done(t.Context(), []Mark{{Name: l.names("list")[0]}}); err != nil { // of whatever type the key is
		t.Errorf("Done = %v", err)
	}
	wantHolds(t, l.lock(t, "a", "list"), DoneMarker)
	if up, _, cause := l.Up(); !up {
		t.Errorf("a foreign key was taken for a failure of redis: %v", cause)
	}
}

// A lock that would stand for longer than a lock does ends with nobody's work: who waited for it would wait for ever.
func TestALockWithoutAnEndInSightIsForeign(t *testing.T) {
	t.Parallel()
	l := newLock(t, stack.Redis(t), Options{LockTTL: 10 * time.Second})
	l.lock(t, "mine", "own")
	for name, ttl := range map[string]time.Duration{"live": 10 * time.Second, "late": time.Minute, "endless": 0} {
		if err := l.client.Set(t.Context(), l.names(name)[0].String(), "lock:other", ttl).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.client.Persist(t.Context(), l.names("own")[0].String()).Err(); err != nil {
		t.Fatal(err)
	}
	held, err := l.Lock(t.Context(), "a", l.names("live", "late", "endless", "own", "free"))
	if err != nil {
		t.Fatal(err)
	}
	want := []Held{
		{Hold: HeldByOther, Holder: "other"}, {Hold: Foreign}, {Hold: Foreign},
		{Hold: HeldByOther, Holder: "mine"}, // this process renews it, which gives it an end again
		{Hold: Mine},
	}
	if d := cmp.Diff(want, held); d != "" {
		t.Errorf("Lock (-want +got):\n%s", d)
	}
	if got := l.Attempts(ResultForeign); got != 2 {
		t.Errorf("Attempts(foreign) = %d, want 2", got)
	}
	l.run(t)
	await(t, "the lock in hand has an end", func() bool { return l.show(t, "own").TTL > 0 })
}

// The probe's own name may be taken too: that is no failure of redis.
func TestAForeignValueUnderTheProbesNameIsNoFailure(t *testing.T) {
	t.Parallel()
	server := stack.OwnRedis(t)
	l := newLock(t, server.URL(), Options{OnError: Pause})
	must(t, l.client.LPush(t.Context(), probeKey, "x").Err())
	l.health.fail(errors.New("told so by the test"))
	l.run(t)
	await(t, "redis is asked again", func() bool { up, _, _ := l.Up(); return up })
}

// While a fleet is upgraded, former and new daemons read each other's values and run scripts that mean the same.
func TestValuesAndScriptsStandInRedisAsTheyAlwaysDid(t *testing.T) {
	t.Parallel()
	l := newLock(t, stack.Redis(t), Options{})
	l.lock(t, "host/1/x/0/7", "locked")
	body := sha256.Sum256([]byte("{}"))
	must(t, l.Done(t.Context(), []Mark{{Name: l.names("done")[0], BodyHash: body}}))
	for key, want := range map[string]string{"locked": "lock:host/1/x/0/7", "done": "done:" + string(body[:])} {
		if got := l.client.Get(t.Context(), l.names(key)[0].String()).Val(); got != want {
			t.Errorf("under %s stands %q, want %q", key, got, want)
		}
	}
	const release = `if redis.call("get",KEYS[1])==ARGV[1] then return redis.call("del",KEYS[1]) end return 0`
	const renew = `if redis.call("get",KEYS[1])==ARGV[1] then return redis.call("pexpire",KEYS[1],ARGV[2]) end return 0`
	if releaseScript != release || renewScript != renew || probeKey != "rollbackd:probe" {
		t.Errorf("scripts %q, %q, probe %q", releaseScript, renewScript, probeKey)
	}
}
