package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
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

// Count appends a row of how many there are, if there are any.
func (t *Table) Count(n int, cells ...any) {
	if n > 0 {
		t.Add(append([]any{n}, cells...)...)
	}
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

const (
	// lineEvery is the pause between two lines where nobody sees a bar: in a file, a pipe, a log.
	lineEvery = 5 * time.Second
	// drawEvery is the pause between two drawings of the bar.
	drawEvery = 100 * time.Millisecond
	barWidth  = 30
)

// progress shows on stderr how far a run has come: a bar on a terminal, elsewhere a line now and then. The standard
// output is left to the result.
type progress struct {
	to    io.Writer
	name  string // of the program
	bar   bool
	last  time.Time // something was shown, or the run began
	drawn int       // characters of the bar on the screen
	now   func() time.Time
}

func (a *App) newProgress() *progress {
	return &progress{to: a.Stderr, name: a.Program, bar: onTerminal(a.Stderr), last: a.Now(), now: a.Now}
}

// Show is called more often than anybody could read.
func (p *progress) Show(at deadletter.Progress) { p.Draw(progressText(at), at.Seen, at.Found) }

// Count shows on a terminal how many there were so far.
func (p *progress) Count(n int, what string) {
	if p.bar {
		p.Draw(fmt.Sprintf("%d %s", n, what), 0, 0)
	}
}

// Draw shows a text, and on a terminal a bar in front of it when it is known how many there are.
func (p *progress) Draw(text string, seen, found int) {
	every := lineEvery
	if p.bar {
		every = drawEvery
	}
	now := p.now()
	if now.Sub(p.last) < every && !(p.bar && p.drawn == 0) {
		return
	}
	p.last = now
	if !p.bar {
		fmt.Fprintf(p.to, "%s: %s\n", p.name, text)
		return
	}
	if found > 0 {
		full := barWidth * min(seen, found) / found
		text = "[" + strings.Repeat("#", full) + strings.Repeat(".", barWidth-full) + "] " + text
	}
	fmt.Fprintf(p.to, "\r%-*s", p.drawn, text) // which covers a longer one
	p.drawn = len(text)
}

// End leaves the bar's line.
func (p *progress) End() {
	if p.drawn > 0 {
		fmt.Fprintln(p.to)
		p.drawn = 0
	}
}

func progressText(at deadletter.Progress) string {
	text := fmt.Sprintf("%d letters", at.Seen)
	if at.Found > 0 {
		text = fmt.Sprintf("%d of %d letters", at.Seen, at.Found)
	}
	text += fmt.Sprintf(", %d done", at.Done)
	if at.Waiting > 0 {
		text += fmt.Sprintf(", %d wait for the daemon", at.Waiting)
	}
	if at.Failed > 0 {
		text += fmt.Sprintf(", %d failed again", at.Failed)
	}
	return text
}
