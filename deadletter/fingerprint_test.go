package deadletter

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/rollbackd/rollbackd/internal/test/assert"
)

func TestErrorsOfOneKindHaveOneFingerprint(t *testing.T) {
	for text, want := range map[string]string{
		"":                               "",
		"shelf is locked":                "shelf is locked",
		"sku 1001: 7 is more than 3":     "sku #: # is more than #",
		"order 20261121-0001 is shipped": "order # is shipped",
		`key "A-17" has another body`:    `key "…" has another body`,
		"Duplicate entry 'x-1' for key 'PRIMARY'":                  `Duplicate entry "…" for key "…"`,
		"the service didn't answer, it can't":                      "the service didn't answer, it can't",
		"order 0199a2b3-beef-7abc-8def-0123456789ab unknown":       "order # unknown",
		"order 0199a2b3-beef-dead-cafe-0123456789ab unknown":       "order # unknown",
		"at 2026-11-22T21:50:01.123Z from 10.0.0.17:5672":          "at # from #",
		"hash deadbeef01 of 0x1F":                                  "hash # of #",
		"column `a``b` is utf8mb4":                                 `column "…""…" is utf#mb#`,
		"two  spaces\nand a line":                                  "two spaces and a line",
		"parked after 10 replays of at most 10: shelf 4 is locked": "shelf # is locked",
		"an open \" quote":                                         "an open \" quote",
		"größe 5 von »x«":                                          "größe # von »x«",
		"feedface has no digit":                                    "feedface has no digit",
	} {
		assert.Is(t, Fingerprint(text), want, "%q", text)
	}
}

func FuzzFingerprint(f *testing.F) {
	for _, s := range []string{"a 'b' 1", "0199a2b3-beef-7abc-8def-0123456789ab", "\xff\"", "#-#", "-#T"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := Fingerprint(s)
		if !utf8.ValidString(got) {
			t.Errorf("%q: %q is not UTF-8", s, got)
		}
		assert.AtMost(t, len(got), 4*len(s)+4, "%q: %q is longer", s, got)
	})
}

// Given any error, then the fixed word of its fingerprint stands in it: a search for it leaves none of a kind out.
func TestTheFixedWordOfAFingerprintStandsInItsErrors(t *testing.T) {
	pieces := []string{
		"shelf", "sku7", "7sku", "0xff", "deadbeef", "12", "2026-11-22T09:42:04Z", "T", "Z", "-", ":", ".", "_", "/", "+",
		"#", `"`, `'`, "`", "…", " ", "\t", "\n", "  ", "3f2a-abcd-99", "it's", `"a b"`, "ä", "\u00a0", "名",
		"parked after 3: ", "a1b2",
	}
	r := rand.New(rand.NewPCG(1, 2))
	found := 0
	for range 20_000 {
		var b strings.Builder
		for range 1 + r.IntN(12) {
			b.WriteString(pieces[r.IntN(len(pieces))])
		}
		text := b.String() + strings.Repeat("x", r.IntN(2)*400)
		word := fixed(Fingerprint(text))
		if !strings.Contains(text, word) {
			t.Fatalf("%q: its fingerprint %q has the fixed word %q", text, Fingerprint(text), word)
		}
		if word != "" {
			found++
		}
	}
	assert.AtLeast(t, found, 10_000, "have a fixed word")
	assert.Is(t, fixed("shelf # of order dead-# is locked"), "locked", "the longest word")
}
