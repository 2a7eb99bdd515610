package screen

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// WriteTable aligns the columns. Nothing in a cell reaches the terminal as a control character: keys and errors come
// from strangers. An empty cell is shown as -, so that columns can be counted.
func WriteTable(w io.Writer, header []string, rows [][]string) error {
	var buf bytes.Buffer // tabwriter wants a writer that does not fail half-way
	columns := tabwriter.NewWriter(&buf, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{header}, rows...) {
		for i, c := range row {
			if c == "" {
				c = "-"
			}
			if i > 0 {
				_, _ = io.WriteString(columns, "\t")
			}
			_, _ = io.WriteString(columns, Printable(c))
		}
		_, _ = io.WriteString(columns, "\n")
	}
	if err := columns.Flush(); err != nil {
		return fmt.Errorf("align the output: %w", err)
	}
	if _, err := buf.WriteTo(w); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}

// Printable is s with everything escaped that is not a visible character or a plain space: control and formatting
// characters (they can move the cursor or turn the writing round) and bytes that are no UTF-8.
func Printable(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r < utf8.RuneSelf:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		i += size
	}
	return b.String()
}

// Shorten cuts text after so many characters.
func Shorten(s string, characters int) string {
	n := 0
	for i := range s {
		if n == characters-1 && len(s) > i+1 {
			return s[:i] + "…"
		}
		n++
	}
	return s
}

// Date is a time as lists have it; "" for none.
func Date(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.Format(time.RFC3339)
}

// Plural is a number with the word for what it counts.
func Plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// JSON is text of encoding/json with every character escaped that is none a person sees: that leaves DEL, the control
// characters U+0080 to U+009F and the formatting ones as they are. Beyond ASCII a character stands inside a string.
func JSON(text []byte) []byte {
	acts := func(r rune) bool { return r >= 0x7f && !unicode.IsPrint(r) }
	if !bytes.ContainsFunc(text, acts) {
		return text
	}
	escaped := make([]byte, 0, len(text)+64)
	for _, r := range string(text) {
		if !acts(r) {
			escaped = utf8.AppendRune(escaped, r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			escaped = fmt.Appendf(escaped, `\u%04x`, unit)
		}
	}
	return escaped
}

// Moment reads a time, in UTC where it names no zone, or a duration before now; an empty text is no time.
func Moment(text string, now time.Time) (at time.Time, ok bool) {
	text = strings.TrimSpace(text)
	if text == "" {
		return at, true
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return now.Add(-ago).UTC(), true
	}
	for _, layout := range []string{
		time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02T15:04", "2006-01-02 15:04", "2006-01-02",
	} {
		if at, err := time.Parse(layout, text); err == nil {
			return at.UTC(), true
		}
	}
	return at, false
}
