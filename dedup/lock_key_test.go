package dedup

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestNoLockFindsEveryKeyFree(t *testing.T) {
	t.Parallel()
	var l Locker = NoLock{}
	keys := []LockKey{l.LockKey(Key{"g", "t", "one"}), l.LockKey(Key{"g", "t", "two"})}
	for _, token := range []string{"a", "b"} {
		held, err := l.Lock(t.Context(), token, keys)
		if err != nil {
			t.Fatal(err)
		}
		wantHolds(t, holdsOf(held), Mine, Mine)
		if err := l.Done(t.Context(), []Mark{{Key: keys[0]}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Release(t.Context(), "a", keys); err != nil {
		t.Fatal(err)
	}
}

func TestLockKeyIsOfTheSchemaAndTheWholeIdentity(t *testing.T) {
	t.Parallel()
	// The form is fixed: while a fleet is upgraded, old and new daemons must meet at the same key.
	const want = "rollbackd:HCx_2_Xq6Z4zrf9bkeo9F4C4mgywebjT_hYrWNa5pVY"
	first := newLockKey("8f14e45f-ceea-467f-a123-6d9d5d2b9c11", Key{"stock-rollback", "cancelled", "20261121-0001"})
	if first.String() != want {
		t.Errorf("LockKey = %q, want %q", first, want)
	}
	seen := map[LockKey]string{}
	for _, parts := range [][4]string{
		{"s", "g", "t", "k"}, {"S", "g", "t", "k"}, {"s", "G", "t", "k"}, {"s", "g", "T", "k"}, {"s", "g", "t", "K"},
		{"sg", "t", "k", ""}, {"s", "gt", "k", ""}, {"s", "g", "tk", ""}, {"s", "g", "", "tk"}, {"", "sg", "t", "k"},
		{"s", "g", "t", "k "}, {"s", "g", "t", "k\x00"}, {"s", "g", "t", "é"}, {"s", "g", "t", "e\u0301"},
		{"s", strings.Repeat("g", 100), strings.Repeat("t", 100), strings.Repeat("k", 255)},
		{"s", strings.Repeat("g", 100), strings.Repeat("t", 100), strings.Repeat("k", 2000)},
	} {
		k := newLockKey(parts[0], Key{parts[1], parts[2], parts[3]})
		if before, ok := seen[k]; ok {
			t.Errorf("%q and %s share the key %v", parts, before, k)
		}
		seen[k] = fmt.Sprintf("%q", parts)
	}
}

func TestRedisLockOptionsAreChecked(t *testing.T) {
	t.Parallel()
	for what, o := range map[string]RedisLockOptions{
		"schema id":   {},
		"lock TTL":    {SchemaID: "s", LockTTL: -time.Second},
		"done TTL":    {SchemaID: "s", DoneTTL: -1},
		"timeout":     {SchemaID: "s", Timeout: -1},
		"renewed for": {SchemaID: "s", MaxHold: time.Second},
		"policy":      {SchemaID: "s", OnError: "hope"},
	} {
		if _, err := NewRedisLock(nil, o); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("NewRedisLock(%+v) = %v, want an error about the %s", o, err, what)
		}
	}
}
