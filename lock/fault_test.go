package lock

import (
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/stack"
)

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
	for name, fault := range map[string]struct {
		policy    Policy
		set, undo []any
	}{
		"OOM":      {Proceed, []any{"config", "set", "maxmemory", "1"}, []any{"config", "set", "maxmemory", "0"}},
		"READONLY": {Pause, []any{"replicaof", "127.0.0.1", "1"}, []any{"replicaof", "no", "one"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLock(t, stack.OwnRedis(t).URL(), Options{OnError: fault.policy})
			l.run(t)
			if err := l.client.Do(t.Context(), fault.set...).Err(); err != nil {
				t.Fatal(err)
			}

			held, err := l.Lock(t.Context(), "a", l.names("one", "two"))
			if fault.policy == Proceed {
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
