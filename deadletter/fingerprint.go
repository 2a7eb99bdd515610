package deadletter

import (
	"strings"
	"unicode"
)

// maxFingerprint is how many bytes of an error are looked at: errors of one kind begin alike.
const maxFingerprint = 400

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
		switch n := 0; {
		case rest[0] == '"' || rest[0] == '`' || rest[0] == '\'' && !endsInWord(out.String()):
			if n = quoted(rest); n > 0 {
				out.WriteString(`"…"`)
				rest = rest[n:]
				continue
			}
			out.WriteByte(rest[0])
			rest = rest[1:]
		case isSpace(rest[0]):
			if s := out.String(); s != "" && !strings.HasSuffix(s, " ") {
				out.WriteByte(' ')
			}
			rest = rest[1:]
		case isWord(rest[0]):
			n = strings.IndexFunc(rest, func(r rune) bool { return r >= 0x80 || !isWord(byte(r)) })
			if n < 0 {
				n = len(rest)
			}
			out.WriteString(without(rest[:n]))
			rest = rest[n:]
		default:
			out.WriteByte(rest[0])
			rest = rest[1:]
		}
	}
	return strings.TrimSpace(joined(out.String()))
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

// quoted is the length of a quoted value at the beginning of s; 0 when there is none.
func quoted(s string) int {
	end := strings.IndexByte(s[1:], s[0])
	if end < 0 {
		return 0
	}
	return end + 2
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

func isWord(c byte) bool { return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

func endsInWord(s string) bool { return s != "" && (isWord(s[len(s)-1]) || s[len(s)-1] == '#') }

// without is a word of ASCII letters and digits without what is its own: all of it when it is a number or hexadecimal,
// else each number in it.
func without(all string) string {
	const leastHex = 8
	word := strings.TrimSuffix(all, "Z") // of a time
	digits, hex := 0, true
	for i := range len(word) {
		c := word[i]
		if c >= '0' && c <= '9' {
			digits++
		} else if lower := c | 0x20; lower < 'a' || lower > 'f' {
			hex = hex && i == 1 && word[0] == '0' && lower == 'x'
		}
	}
	switch {
	case digits == 0:
		return all
	case digits == len(word), hex && (len(word) >= leastHex || len(word) == 4 && digits > 0):
		return "#" // also a group of a UUID that has a digit
	}
	var out strings.Builder
	for i := range len(word) {
		if !unicode.IsDigit(rune(word[i])) {
			out.WriteByte(word[i])
		} else if i == 0 || !unicode.IsDigit(rune(word[i-1])) {
			out.WriteByte('#')
		}
	}
	if word != all {
		out.WriteByte('Z')
	}
	return out.String()
}

// joined makes one # of several with -, :, ., _ or / in between: dates, times, addresses, UUIDs. A group of a UUID
// without a digit stands between two of them and is taken too.
func joined(s string) string {
	var out strings.Builder
	for i := 0; i < len(s); {
		if s[i] != '#' {
			out.WriteByte(s[i])
			i++
			continue
		}
		out.WriteByte('#')
		for i++; ; {
			n := linked(s[i:])
			if n == 0 {
				break
			}
			i += n
		}
	}
	return out.String()
}

// linked is how much of s goes with the # before it: marks and a #, also with four hexadecimal letters and a mark
// before that.
func linked(s string) int {
	n := 0
	for n < len(s) && strings.IndexByte("-:._/T+Z#", s[n]) >= 0 {
		n++
	}
	if n > 0 && strings.IndexByte(s[:n], '#') >= 0 {
		return strings.LastIndexByte(s[:n], '#') + 1
	}
	const group = 4
	if n == 1 && s[0] == '-' && len(s) > group+2 && s[group+1] == '-' && allHex(s[1:group+1]) {
		if more := linked(s[group+1:]); more > 0 {
			return group + 1 + more
		}
	}
	return 0
}

func allHex(s string) bool {
	for i := range len(s) {
		if lower := s[i] | 0x20; (s[i] < '0' || s[i] > '9') && (lower < 'a' || lower > 'f') {
			return false
		}
	}
	return true
}
