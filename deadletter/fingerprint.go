package deadletter

import (
	"regexp"
	"strings"
)

// maxFingerprint is how many bytes of an error are looked at: errors of one kind begin alike.
const maxFingerprint = 400

// joined are several # with marks between them: dates, times, addresses, UUIDs. A group of a UUID without a digit
// stands between two of them and is taken too.
var joined = regexp.MustCompile(`#(?:[-:._/T+Z#]*#|(?:-[0-9A-Fa-f]{4})+-[-:._/T+Z#]*#)+`)

// Fingerprint is an error without what differs from one letter to the next, so that errors of one kind are equal:
// numbers, hexadecimal words, UUIDs and times become #, what stands in quotes becomes "…", and the mark of a parked row
// is left out. It is pure; the same text has the same fingerprint on every machine.
func Fingerprint(text string) string {
	if rest, ok := strings.CutPrefix(text, "parked after "); ok {
		if _, cause, ok := strings.Cut(rest, ": "); ok {
			text = cause
		}
	}
	text = strings.ToValidUTF8(text[:min(len(text), maxFingerprint)], "")
	var out strings.Builder
	for rest := text; rest != ""; {
		n, with := 1, rest[:1]
		switch c := rest[0]; {
		case c == '"' || c == '`' || c == '\'' && !endsInWord(out.String()):
			if end := strings.IndexByte(rest[1:], c); end >= 0 {
				n, with = end+2, `"…"`
			}
		case strings.IndexByte(" \t\n\r", c) >= 0:
			if with = " "; strings.HasSuffix(out.String(), " ") {
				with = ""
			}
		case isWord(c):
			n = len(rest) - len(strings.TrimLeftFunc(rest, func(r rune) bool { return r < 0x80 && isWord(byte(r)) }))
			with = without(rest[:n])
		}
		out.WriteString(with)
		rest = rest[n:]
	}
	return strings.TrimSpace(joined.ReplaceAllLiteralString(out.String(), "#"))
}

// fixed is the longest word of a fingerprint that stands as it is in every error of its kind; "" when there is none.
func fixed(fingerprint string) (longest string) {
	for word := range strings.FieldsFuncSeq(fingerprint, func(r rune) bool { return strings.ContainsRune(" #\"…", r) }) {
		if len(word) > len(longest) {
			longest = word
		}
	}
	return longest
}

func isWord(c byte) bool { return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

func endsInWord(s string) bool { return s != "" && (isWord(s[len(s)-1]) || s[len(s)-1] == '#') }

var (
	// own are words that are a number or hexadecimal, such as a group of a UUID, perhaps of a time.
	own = regexp.MustCompile(`^(?:[0-9]+|[0-9A-Fa-f]{4}|[0-9A-Fa-f]{8,}|0[xX](?:[0-9A-Fa-f]{2}|[0-9A-Fa-f]{6,}))Z?$`)

	numbers = regexp.MustCompile(`[0-9]+`)
)

// without is a word of ASCII letters and digits without what is its own: all of it when it is a number or hexadecimal
// with a digit, else each number in it.
func without(word string) string {
	switch {
	case !strings.ContainsAny(word, "0123456789"):
		return word
	case own.MatchString(word):
		return "#"
	}
	return numbers.ReplaceAllLiteralString(word, "#")
}
