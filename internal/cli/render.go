package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/rollbackd/rollbackd/internal/screen"
)

// The forms of output that every list knows.
const (
	outputTable = "table"
	outputJSON  = "json"
)

// output is the value of the flag -o; the zero value is not usable, addOutputFlag makes it.
type output struct {
	chosen  string
	allowed []string
}

// addOutputFlag gives cmd the flag -o with the forms table, json and those in more. A form that is not among them is
// refused while flags are parsed, hence as wrong usage.
func addOutputFlag(cmd *cobra.Command, more ...string) *output {
	o := &output{chosen: outputTable, allowed: append([]string{outputTable, outputJSON}, more...)}
	cmd.Flags().VarP(o, "output", "o", "form of the output: "+strings.Join(o.allowed, ", "))
	completes(cmd, "output", o.allowed...)
	return o
}

// completes names the values that a shell offers for a flag.
func completes(cmd *cobra.Command, flag string, values ...string) {
	err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic(err) // there is no such flag
	}
}

// String, Set and Type make output a flag's value.
func (o *output) String() string { return o.chosen }

// Set chooses a form.
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
func (o *output) render(w io.Writer, value any, t table) error {
	if o.chosen == outputJSON {
		return writeJSON(w, value)
	}
	return writeTable(w, t)
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

// writeTable writes t for a screen.
func writeTable(w io.Writer, t table) error { return screen.WriteTable(w, t.header, t.rows) }

func printable(s string) string { return screen.Printable(s) }
