package lock

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

func TestNoneFindsEveryNameFree(t *testing.T) {
	t.Parallel()
	var l Locker = None{}
	names := []Name{NameOf("s", "g", "t", "one"), NameOf("s", "g", "t", "two")}
	for _, token := range []string{"a", "b"} {
		held := require.Get(l.Lock(t.Context(), token, names))(t)
		assert.That(t, held[0].Hold == Mine && held[1].Hold == Mine, "%s finds %v, want both its own", token, held)
		require.OK(t, l.Done(t.Context(), []Mark{{Name: names[0]}}))
	}
	require.OK(t, l.Release(t.Context(), "a", names))
	s, err := l.Show(t.Context(), names[0])
	assert.That(t, err == nil && s.Hold == 0, "Show = %+v, %v, want it free", s, err)
	if up, _, cause := l.Up(); up || cause != nil || l.Attempts(ResultMine) != 0 {
		t.Errorf("Up = %v, %v with %d attempts, want that nobody is asked and nothing is wrong", up, cause,
			l.Attempts(ResultMine))
	}
}

func TestNameIsOfTheSchemaAndTheWholeIdentity(t *testing.T) {
	t.Parallel()
	// The form is fixed: while a fleet is upgraded, old and new daemons must meet at the same key.
	const want = "rollbackd:HCx_2_Xq6Z4zrf9bkeo9F4C4mgywebjT_hYrWNa5pVY"
	first := NameOf("8f14e45f-ceea-467f-a123-6d9d5d2b9c11", "stock-rollback", "cancelled", "20261121-0001")
	assert.Is(t, first.String(), want, "NameOf = %q", first)
	seen := map[Name]string{}
	for _, parts := range [][4]string{
		{"s", "g", "t", "k"}, {"S", "g", "t", "k"}, {"s", "G", "t", "k"}, {"s", "g", "T", "k"}, {"s", "g", "t", "K"},
		{"sg", "t", "k", ""}, {"s", "gt", "k", ""}, {"s", "g", "tk", ""}, {"s", "g", "", "tk"}, {"", "sg", "t", "k"},
		{"s", "g", "t", "k "}, {"s", "g", "t", "k\x00"}, {"s", "g", "t", "é"}, {"s", "g", "t", "e\u0301"},
		{"s", strings.Repeat("g", 100), strings.Repeat("t", 100), strings.Repeat("k", 255)},
		{"s", strings.Repeat("g", 100), strings.Repeat("t", 100), strings.Repeat("k", 2000)},
	} {
		n := NameOf(parts[0], parts[1], parts[2], parts[3])
		before, ok := seen[n]
		assert.That(t, !ok, "%q and %s share the name %v", parts, before, n)
		seen[n] = fmt.Sprintf("%q", parts)
	}
}

// The locks of two installations on one server would meet.
func TestWithoutASchemaThereIsNoName(t *testing.T) {
	t.Parallel()
	if n := NameOf("", "g", "t", "k"); n != (Name{}) || n.Check() == nil {
		t.Errorf("NameOf without a schema = %v, Check = %v, want the zero name, refused", n, n.Check())
	}
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	for what, o := range map[string]Options{
		"lock TTL":    {LockTTL: -time.Second},
		"done TTL":    {DoneTTL: -1},
		"timeout":     {Timeout: -1},
		"renewed for": {MaxHold: time.Second},
		"policy":      {OnError: "hope"},
	} {
		if _, err := NewRedis(nil, o); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("NewRedis(%+v) = %v, want an error about the %s", o, err, what)
		}
	}
}
