package dedup

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
)

func TestKeyValidate(t *testing.T) {
	for _, c := range []struct {
		name string
		key  Identity
		ok   bool
	}{
		{"plain", Identity{"g", "t", "k"}, true},
		{"longest", Identity{strings.Repeat("g", 100), strings.Repeat("t", 100), strings.Repeat("k", 255)}, true},
		{"longest in bytes, not characters", Identity{"g", "t", strings.Repeat("é", 127)}, true},
		{"too many bytes", Identity{"g", "t", strings.Repeat("é", 128)}, false},
		{"group too long", Identity{strings.Repeat("g", 101), "t", "k"}, false},
		{"tag too long", Identity{"g", strings.Repeat("t", 101), "k"}, false},
		{"no group", Identity{"", "t", "k"}, false},
		{"no tag", Identity{"g", "", "k"}, false},
		{"no name", Identity{"g", "t", ""}, false},
		{"space alone", Identity{"g", "t", " "}, true},
		{"emoji", Identity{"g", "t", "😀"}, true},
		{"NUL", Identity{"g", "t", "a\x00"}, false},
		{"newline", Identity{"g", "t", "a\nb"}, false},
		{"delete", Identity{"g", "t", "a\x7f"}, false},
		{"C1 control", Identity{"g", "t", "a\u0085"}, false},
		{"not UTF-8", Identity{"g", "t", "a\xff"}, false},
		{"half a surrogate", Identity{"g", "t", "\xed\xa0\x80"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.key.Validate()
			if ok := err == nil; ok != c.ok || !c.ok && !errors.Is(err, ErrIdentity) {
				t.Errorf("Validate(%v) = %v, want ok %v", c.key, err, c.ok)
			}
		})
	}
}

func TestKeyInALogLineIsThreeAttributes(t *testing.T) {
	var out bytes.Buffer
	slog.New(slog.NewTextHandler(&out, nil)).Info("m", "msg_key", Identity{"g", "t", "k 1"})
	if want := `msg_key.group=g msg_key.tag=t msg_key.key="k 1"`; !strings.Contains(out.String(), want) {
		t.Errorf("%s\nlacks %s", out.String(), want)
	}
}

// Every text collation of MySQL and MariaDB makes some of these equal.
func TestKeysThatDifferInAnyByteAreTwoKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	names := []string{
		"abc", "ABC", "aBc", "äbc", "a\u0308bc", "àbc", "abc ", "abc  ", " abc", "ABC ", "ß", "ss", "😀", "😁", "œ", "oe", "ı",
		"i", "I", "İ",
		"a'b", `a\b`, `a\\b`, "a%b", "a_b", "a?b", "ﬁ", "fi", "１", "1", "\u200b1", "Å", "\u212b", "0", "00",
	}
	var keys []Identity
	for _, name := range names {
		keys = append(keys, key(name), Identity{"g", name, "k"}, Identity{name, "t", "k"})
	}
	var entries []Entry
	for i, k := range keys {
		if i%2 == 0 {
			entries = append(entries, entryOf(k))
		}
	}
	wantError(t, "insert", w.insertSuccess(entries...), nil)
	for i, row := range keys {
		if i%2 == 1 {
			if _, err := w.log.Claim(t.Context(), absent(row), entryOf(row), "o"); err != nil {
				t.Errorf("claim %v: %v", row, err)
			}
		}
	}
	rows := w.lookUp(keys...)
	for i, k := range keys {
		want := []Status{Success, Processing}[i%2]
		if rows[k].Status != want || rows[k].Identity != k || w.read(k).Status != want {
			t.Errorf("%v is %v, want %v", k, rows[k].Status, want)
		}
	}
	if n := w.number("SELECT COUNT(*) FROM consumer_log"); n != len(keys) {
		t.Errorf("%d rows for %d keys", n, len(keys))
	}
}

func TestUnusableKeyIsRefusedBeforeSQL(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bad := key("a\x00")
	_, err := w.log.Claim(t.Context(), absent(bad), entryOf(bad), "o")
	wantError(t, "claim", err, ErrIdentity)
	wantError(t, "insert", w.insertSuccess(entryOf(key("good")), entryOf(bad)), ErrIdentity)
	wantError(t, "dead", w.log.DeadAll(t.Context(), []Letter{{Entry: entryOf(bad), Reason: "malformed"}}), ErrIdentity)
	if n := w.number("SELECT COUNT(*) FROM consumer_log"); n != 0 {
		t.Errorf("%d rows", n)
	}
}
