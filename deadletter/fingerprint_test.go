package deadletter_test

import (
	"testing"
	"unicode/utf8"

	"github.com/rollbackd/rollbackd/deadletter"
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
		assert.Is(t, deadletter.Fingerprint(text), want, "%q", text)
	}
}

func FuzzFingerprint(f *testing.F) {
	for _, s := range []string{"a 'b' 1", "0199a2b3-beef-7abc-8def-0123456789ab", "\xff\"", "#-#", "-#T"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := deadletter.Fingerprint(s)
		if !utf8.ValidString(got) {
			t.Errorf("%q: %q is not UTF-8", s, got)
		}
		assert.AtMost(t, len(got), 4*len(s)+4, "%q: %q is longer", s, got)
	})
}
