package deadletter

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
)

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
