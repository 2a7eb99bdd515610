package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/rollbackd/rollbackd/internal/screen"
)

// The forms of output.
const (
	outputTable    = "table"
	outputJSON     = "json"
	outputMarkdown = "markdown" // of the documentation's table
)

// inForms are those that every list knows; noForm is for a command that prints no list.
var inForms, noForm = []string{outputTable, outputJSON}, []string{}

// output is the value of the flag -o.
type output struct {
	chosen  string
	allowed []string
}

// String, Set and Type make output a flag's value.
func (o *output) String() string { return o.chosen }

// Set chooses a form. Another one is refused while flags are parsed, hence as wrong usage.
func (o *output) Set(s string) error {
	if !slices.Contains(o.allowed, s) {
		return fmt.Errorf("must be one of %s", strings.Join(o.allowed, ", "))
	}
	o.chosen = s
	return nil
}

// Type is shown in the usage text.
func (*output) Type() string { return "FORM" }

// table is what a list looks like on a screen.
type table struct {
	header []string
	rows   [][]string
}

// add appends a row; its cells are formatted as by fmt.Sprint.
func (t *table) add(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		row[i] = fmt.Sprint(c)
	}
	t.rows = append(t.rows, row)
}

// render writes a list in the chosen form: t for a screen, or value as JSON.
func (c *call) render(value any, t table) error { return c.print(value, func(p *page) { p.table(t) }) }

// print writes a value in the chosen form: as JSON, or for a screen what write makes of it.
func (c *call) print(value any, write func(*page)) error {
	c.progress.end()
	if c.out.chosen == outputJSON {
		return writeJSON(c.stdout, value)
	}
	var p page
	write(&p)
	if _, err := p.WriteTo(c.stdout); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}

// page is what a person gets to see: texts and tables.
type page struct{ bytes.Buffer }

// table adds t, and f adds a text.
func (p *page) table(t table)             { _ = screen.WriteTable(p, t.header, t.rows) } // into memory
func (p *page) f(format string, a ...any) { fmt.Fprintf(p, format, a...) }

// fact adds a row of a name and a value, if there is a value.
func (t *table) fact(name, value string) {
	if value != "" {
		t.add(name, value)
	}
}

// writeJSON writes v indented, with a nil list as [], so that readers always get a list. As in a table nothing in it
// acts on a terminal; what is escaped reads the same.
func writeJSON(w io.Writer, v any) error {
	if rv := reflect.ValueOf(v); rv.Kind() == reflect.Slice && rv.IsNil() {
		v = []struct{}{}
	}
	enc := json.NewEncoder(escaping{w})
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}

// escaping writes JSON on with every character escaped that is none a person sees. encoding/json leaves DEL, the
// control characters U+0080 to U+009F and the formatting ones as they are; beyond ASCII a character stands inside a
// string.
type escaping struct{ io.Writer }

// Write takes whole characters at a time, as encoding/json writes them.
func (w escaping) Write(p []byte) (int, error) {
	if !bytes.ContainsFunc(p, acts) {
		return w.Writer.Write(p)
	}
	escaped := make([]byte, 0, len(p)+64)
	for _, r := range string(p) {
		switch {
		case !acts(r):
			escaped = utf8.AppendRune(escaped, r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			escaped = fmt.Appendf(escaped, `\u%04x\u%04x`, high, low)
		default:
			escaped = fmt.Appendf(escaped, `\u%04x`, r)
		}
	}
	if _, err := w.Writer.Write(escaped); err != nil {
		return 0, err
	}
	return len(p), nil
}

// acts reports whether a character of JSON may act on a terminal. Below DEL encoding/json has escaped what is inside
// strings.
func acts(r rune) bool { return r >= 0x7f && !unicode.IsPrint(r) }

func printable(s string) string { return screen.Printable(s) }

func shorten(s string, characters int) string { return screen.Shorten(s, characters) }

// fitting is a remark as a list shows it: cut on a terminal, whole for whoever reads on.
func (a *app) fitting(remark string) string {
	if onTerminal(a.stdout) {
		return shorten(remark, 80)
	}
	return remark
}

// date is a time as lists have it; "" for none.
func date(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.Format(time.RFC3339)
}

// plural is a number with the word for what it counts.
func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}
