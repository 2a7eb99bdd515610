package lock

import (
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestProceedGoesOnWithoutADeadRedisAndComesBack(t *testing.T) {
	t.Parallel()
	server := stack.OwnRedis(t)
	l := newLock(t, server.URL(), Options{OnError: Proceed})
	l.run(t)
	wantHolds(t, l.lock(t, "before", "one"), Mine)

	must(t, server.Kill())
	wantHolds(t, l.lock(t, "a", "one", "two"), Mine, Mine) // nobody can be asked
	if up, since, cause := l.Up(); up || cause == nil || time.Since(since) > time.Minute {
		t.Errorf("Up = %v, %v, %v, want down since now and why", up, since, cause)
	}
	// Whether that call or the prober found it out first is chance; from now on nobody asks.
	failed, bypassed := l.Attempts(ResultFailed), l.Attempts(ResultBypassed)
	const batches = 1000
	start := time.Now()
	for range batches { // as many timeouts would take minutes
		wantHolds(t, l.lock(t, "a", "one", "two"), Mine, Mine)
		if err := errors.Join(l.Done(t.Context(), []Mark{{Name: l.names("one")[0]}}),
			l.Release(t.Context(), "a", l.names("two"))); err != nil {
			t.Fatalf("settling without redis = %v, want nil", err)
		}
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("%d batches without redis took %v", batches, took)
	}
	if got := l.Attempts(ResultBypassed) - bypassed; got != 2*batches {
		t.Errorf("Attempts(bypassed) grew by %d, want %d", got, 2*batches)
	}
	if got := l.Attempts(ResultFailed); got != failed || failed+bypassed != 2 {
		t.Errorf("Attempts(error) = %d and bypassed %d of the first call, want 2 in all and no more errors", got, bypassed)
	}

	must(t, server.Start())
	await(t, "redis is asked again", func() bool { up, _, _ := l.Up(); return up })
	wantHolds(t, l.lock(t, "a", "one"), Mine)
	wantHolds(t, l.lock(t, "b", "one"), HeldByOther)
	if lost, back := l.log.count("redis failed"), l.log.count("redis answers again"); lost != 1 || back != 1 {
		t.Errorf("the log tells %d losses and %d returns, want one of each: %q", lost, back, l.log.lines)
	}
}

func TestFrozenRedisBoundsEveryCall(t *testing.T) {
	t.Parallel()
	server := stack.OwnRedis(t)
	l := newLock(t, server.URL(), Options{OnError: Pause, Timeout: 300 * time.Millisecond})
	l.lock(t, "a", "one")

	must(t, server.Freeze())
	start := time.Now()
	_, err := l.Lock(t.Context(), "a", l.names("one"))
	took := time.Since(start)
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "redis took over 300ms") {
		t.Errorf("Lock = %v, want ErrUnavailable and why", err)
	}
	if took > 2*time.Second {
		t.Errorf("Lock on a frozen redis took %v, want about 300ms", took)
	}
	if _, err := l.Show(t.Context(), l.names("one")[0]); err == nil {
		t.Error("Show on a frozen redis succeeded")
	}
	must(t, server.Thaw())
	l.run(t)
	await(t, "redis is asked again", func() bool { up, _, _ := l.Up(); return up })
}

// Redis may answer with an error instead of a result. That is no lock, and above all no done marker.
func TestRefusingRedisIsAFailureAndNothingElse(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]struct{ set, undo []any }{
		"OOM":      {[]any{"config", "set", "maxmemory", "1"}, []any{"config", "set", "maxmemory", "0"}},
		"READONLY": {[]any{"replicaof", "127.0.0.1", "1"}, []any{"replicaof", "no", "one"}},
	} {
		for _, policy := range []Policy{Proceed, Pause} {
			t.Run(name+"/"+string(policy), func(t *testing.T) {
				t.Parallel()
				l := newLock(t, stack.OwnRedis(t).URL(), Options{OnError: policy})
				l.run(t)
				if err := l.client.Do(t.Context(), fault.set...).Err(); err != nil {
					t.Fatal(err)
				}

				held, err := l.Lock(t.Context(), "a", l.names("one", "two"))
				if policy == Proceed {
					if err != nil {
						t.Fatal(err)
					}
					wantHolds(t, holdsOf(held), Mine, Mine)
				} else if !errors.Is(err, ErrUnavailable) {
					t.Errorf("Lock = %v, %v, want ErrUnavailable", held, err)
				}
				_, _, cause := l.Up()
				if cause == nil || !strings.Contains(cause.Error(), name) {
					t.Errorf("Up says %v, want down for %s", cause, name)
				}
				if n := l.renewer.size(); n != 0 {
					t.Errorf("%d locks are renewed, want none: none was taken", n)
				}

				if err := l.client.Do(t.Context(), fault.undo...).Err(); err != nil {
					t.Fatal(err)
				}
				await(t, "redis is asked again", func() bool { up, _, _ := l.Up(); return up })
			})
		}
	}
}

// One key of a pipeline may fail (in a cluster, one node) while others have their answer.
func TestPartialFailureSpoilsOnlyItsKeys(t *testing.T) {
	t.Parallel()
	server := stack.OwnRedis(t)
	admin := newLock(t, server.URL(), Options{})
	done := Mark{Name: admin.names("done")[0], BodyHash: [32]byte{1}}
	admin.lock(t, "other", "held")
	if err := admin.Done(t.Context(), []Mark{done}); err != nil {
		t.Fatal(err)
	}
	acl := []any{"acl", "setuser", "half", "on", ">pw", "+@all", "resetkeys", "~" + probeKey}
	for _, k := range admin.names("held", "done", "free") { // and not "forbidden"
		acl = append(acl, "~"+k.String())
	}
	if err := admin.client.Do(t.Context(), acl...).Err(); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("half", "pw")
	names := []string{"held", "forbidden", "done", "free"}

	proceed := newLock(t, u.String(), Options{})
	proceed.schema = admin.schema
	wantHolds(t, proceed.lock(t, "a", names...), HeldByOther, Mine, DoneMarker, Mine)
	if up, _, _ := proceed.Up(); up {
		t.Error("the failure was not noticed")
	}
	if n := proceed.renewer.size(); n != 1 {
		t.Errorf("%d locks are renewed, want 1: the one taken", n)
	}

	pausing := newLock(t, u.String(), Options{OnError: Pause})
	pausing.schema = admin.schema
	if held, err := pausing.Lock(t.Context(), "a", pausing.names(names...)); !errors.Is(err, ErrUnavailable) ||
		held != nil {
		t.Errorf("Lock = %v, %v, want ErrUnavailable", held, err)
	}
	if n := pausing.renewer.size(); n != 0 {
		t.Errorf("%d locks are renewed after an error, want none: nobody will release them", n)
	}
}

func TestFlushedRedisCostsOnlyTheLocks(t *testing.T) {
	t.Parallel()
	server := stack.OwnRedis(t)
	l := newLock(t, server.URL(), Options{LockTTL: 150 * time.Millisecond})
	l.run(t)
	l.lock(t, "a", "one", "two")
	if err := l.client.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	await(t, "what is lost is no longer renewed", func() bool { return l.renewer.size() == 0 })

	wantHolds(t, l.lock(t, "b", "one"), Mine)
	if err := l.Release(t.Context(), "a", l.names("one", "two")); err != nil {
		t.Fatal(err)
	}
	if s := l.show(t, "one"); s.Token != "b" {
		t.Errorf("after the old holder's release Show = %+v, want it held by b", s)
	}
}

func TestRenewerForgetsWhatIsSettled(t *testing.T) {
	t.Parallel()
	l := newLock(t, stack.Redis(t), Options{})
	l.lock(t, "a", "one", "two", "three")
	l.lock(t, "b", "three", "four") // three is not b's
	for i, step := range []func() error{
		func() error { return l.Release(t.Context(), "b", l.names("one", "three", "four")) }, // its own only
		func() error { return l.Release(t.Context(), "a", l.names("one")) },
		func() error { return l.Done(t.Context(), []Mark{{Name: l.names("two")[0]}}) },
		func() error { return l.Release(t.Context(), "a", l.names("three")) },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
		if got, want := l.renewer.size(), 3-i; got != want {
			t.Errorf("after step %d %d locks are renewed, want %d", i, got, want)
		}
	}
}

// answer is an error reply of Redis.
type answer string

func (a answer) Error() string { return string(a) }

// RedisError marks it as one of the server's.
func (answer) RedisError() {}

func TestHopelessAnswersAreExplained(t *testing.T) {
	for reply, want := range map[answer]string{
		"ERR syntax error":          "redis 7.0 or later", // so Redis 6.2 answers SET with NX and GET
		"MOVED 7566 127.0.0.1:7802": "cluster=true",
	} {
		if err := explain(reply); !strings.Contains(err.Error(), want) || !errors.Is(err, reply) {
			t.Errorf("explain(%s) = %v, want what to do (%s) and the answer", reply, err, want)
		}
	}
}
