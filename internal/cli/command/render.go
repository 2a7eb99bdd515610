package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"github.com/rollbackd/rollbackd/internal/screen"
)

// The forms of output.
const (
	FormTable    = "table"
	FormJSON     = "json"
	FormMarkdown = "markdown" // of the documentation's table
)

// InForms are those that every list knows; NoForm is for a command that prints no list.
var InForms, NoForm = []string{FormTable, FormJSON}, []string{}

// output is the value of the flag -o.
type output struct {
	Chosen  string
	allowed []string
}

// String, Set and Type make output a flag's value.
func (o *output) String() string { return o.Chosen }

// Set chooses a form. Another one is refused while flags are parsed, hence as wrong usage.
func (o *output) Set(s string) error {
	if !slices.Contains(o.allowed, s) {
		return fmt.Errorf("must be one of %s", strings.Join(o.allowed, ", "))
	}
	o.Chosen = s
	return nil
}

// Type is shown in the usage text.
func (*output) Type() string { return "FORM" }

// MaxShown is how many letters or keys of a kind are named on a screen.
const MaxShown = 10

// Table is what a list looks like on a screen.
type Table struct {
	Header []string
	Rows   [][]string
}

// Add appends a row; its cells are formatted as by fmt.Sprint.
func (t *Table) Add(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		row[i] = fmt.Sprint(c)
	}
	t.Rows = append(t.Rows, row)
}

// Render writes a list in the chosen form: t for a screen, or value as JSON.
func (c *Call) Render(value any, t Table) error { return c.Print(value, func(p *Page) { p.Table(t) }) }

// Print writes a value in the chosen form: as JSON, or for a screen what write makes of it.
func (c *Call) Print(value any, write func(*Page)) error {
	c.Progress.End()
	if c.Output.Chosen == FormJSON {
		return WriteJSON(c.Stdout, value)
	}
	var p Page
	write(&p)
	if _, err := p.WriteTo(c.Stdout); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}

// Page is what a person gets to see: texts and tables.
type Page struct{ bytes.Buffer }

// Table adds a table.
func (p *Page) Table(t Table) { _ = screen.WriteTable(p, t.Header, t.Rows) } // into memory

// Addf adds a text.
func (p *Page) Addf(format string, a ...any) { fmt.Fprintf(p, format, a...) }

// Fact adds a row of a name and a value, if there is a value.
func (t *Table) Fact(name, value string) {
	if value != "" {
		t.Add(name, value)
	}
}

// WriteJSON writes v indented, with a nil list as [], so that readers always get a list. As in a table nothing in it
// acts on a terminal; what is escaped reads the same.
func WriteJSON(w io.Writer, v any) error {
	if rv := reflect.ValueOf(v); rv.Kind() == reflect.Slice && rv.IsNil() {
		v = []struct{}{}
	}
	enc := json.NewEncoder(Escaping{w})
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}

// Escaping writes JSON on as [screen.JSON] has it.
type Escaping struct{ io.Writer }

// Write takes whole characters at a time, as encoding/json writes them.
func (w Escaping) Write(p []byte) (int, error) {
	if _, err := w.Writer.Write(screen.JSON(p)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Fitting is a remark as a list shows it: cut on a terminal, whole for whoever reads on.
func (a *App) Fitting(remark string) string {
	if onTerminal(a.Stdout) {
		return screen.Shorten(remark, 80)
	}
	return remark
}
