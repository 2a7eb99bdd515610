package deadletter

import (
	"regexp"
	"strings"
)

// maxFingerprint is how many bytes of an error are looked at: errors of one kind begin alike.
const maxFingerprint = 400

var (
	// parts are what may be a letter's own: what stands in quotes, space, and words. An apostrophe behind a word opens
	// nothing.
	parts = regexp.MustCompile("\"[^\"]*\"|`[^`]*`|'[^']*'|#'|[ \t\n\r]+|[0-9A-Za-z]+'?")
	// number is a word that is all a number: decimal, hexadecimal if it is long, or a group of a UUID.
	number = regexp.MustCompile(`^(?:\d+|[0-9A-Fa-f]{4}|[0-9A-Fa-f]{8,}|0[xX](?:[0-9A-Fa-f]{2}|[0-9A-Fa-f]{6,}))Z?$`)
	digits = regexp.MustCompile(`\d+`)
	// joined are several # with marks between them: dates, times, addresses, UUIDs. A group of a UUID without a digit
	// stands between two of them and is taken too.
	joined = regexp.MustCompile(`#(?:[-:._/T+Z#]*#|(?:-[0-9A-Fa-f]{4})+-[-:._/T+Z#]*#)+`)
)

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
	text = parts.ReplaceAllStringFunc(text, func(part string) string {
		word := strings.TrimSuffix(part, "'")
		switch {
		case strings.ContainsAny(part[:1], "\"`'"):
			return `"…"`
		case strings.TrimSpace(part) == "":
			return " "
		case !digits.MatchString(word):
			return part
		case number.MatchString(word):
			return "#" + part[len(word):]
		}
		return digits.ReplaceAllLiteralString(part, "#")
	})
	return strings.TrimSpace(joined.ReplaceAllLiteralString(text, "#"))
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
