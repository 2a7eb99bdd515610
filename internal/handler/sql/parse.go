package sql

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"github.com/rollbackd/rollbackd/internal/strictjson"
)

// Limits of a file and of what one message makes of it.
const (
	maxFileBytes  = 1 << 20
	maxStatements = 200
	// MaxItems is how many items of a list a message may have.
	MaxItems = 1000
)

// File is a parsed file. It does not change, but for what Check learns of its tables.
type File struct {
	// Name is the file's, as it was given.
	Name     string
	sections []*section
	// ours are tables that no statement may write.
	ours []string
	// allowCall is set by "-- allow call".
	allowCall bool
	plan      atomic.Pointer[plan]
	triggers  atomic.Bool // of tables that it names: they may write where a statement changes no row
}

// section is statements that run once for a message, or once for each item of a list.
type section struct {
	each       bool
	list       path // of the items
	statements []*Statement
	fields     []field
}

// field is a value that statements of a section name.
type field struct {
	path   path
	ofItem bool // it is the item's, and only when it has none the message's
}

// Statement is one statement of a file.
type Statement struct {
	At     Position
	verb   string // in capitals
	tokens []token
	parts  []part
	expect *expectation // nil: any number of rows will do
}

// part is a piece of a statement: text, or a parameter.
type part struct {
	text  string
	param param // nil: it is text
	add   int   // of a shape: the number of the addend that stands here, from 1; 0: none
}

// param is the value of a parameter in a run.
type param func(run) any

// path is the steps of a JSON pointer.
type path []string

// String is the pointer, without the slash in front.
func (p path) String() string { return strings.Join(p, ".") }

// reservedPrefix begins the names that are no fields.
const reservedPrefix = "rollbackd_"

var reservedNames = map[string]param{
	"rollbackd_key":   func(r run) any { return r.msg.Key },
	"rollbackd_tag":   func(r run) any { return r.msg.Tag },
	"rollbackd_group": func(r run) any { return r.msg.Group },
	// the fast path counts its attempt when it has failed
	"rollbackd_attempt": func(r run) any { return number(strconv.Itoa(max(1, r.msg.Attempt))) },
}

// Verdict is what a number of rows that was not expected means for the message.
type Verdict string

// The verdicts.
const (
	Done      Verdict = "done"      // there is nothing to do: the message is marked success
	Retry     Verdict = "retry"     // a failed attempt
	Permanent Verdict = "permanent" // no retry can help: a dead letter
)

// expectation is what "-- expect" says.
type expectation struct {
	at     Position
	counts []int64
	orMore bool // than the last of counts
	other  Verdict
	text   string
}

func (e *expectation) met(rows int64) bool {
	return slices.Contains(e.counts, rows) || e.orMore && rows >= e.counts[len(e.counts)-1]
}

// String is the numbers, in words.
func (e *expectation) String() string {
	words := strings.ReplaceAll(strings.Trim(fmt.Sprint(e.counts), "[]"), " ", " or ")
	if e.orMore {
		words += " or more"
	}
	return words
}

// ErrFile says that the file cannot be read.
var ErrFile = errors.New("the SQL file")

// Load reads and parses the file with this name. Ours are the tables in the schema of the log that are rollbackd's.
func Load(name string, ours []string) (*File, error) {
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrFile, err)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%w: %s is no file", ErrFile, name)
	case info.Size() > maxFileBytes:
		return nil, fmt.Errorf("%w: %s has %d bytes, at most %d are allowed", ErrFile, name, info.Size(), maxFileBytes)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFile, err)
	}
	f, err := Parse(name, string(text))
	if err != nil {
		return nil, err
	}
	f.ours = ours
	return f, nil
}

// LoadQuery reads the file with this name for whoever looks instead of handling messages. It must hold one SELECT,
// which locks nothing, with each of these parameters, in the order of the alphabet, and no others. In its text a ?
// stands in the place of each; places are their names. Its error is an [*Error] with line and column, or [ErrFile].
func LoadQuery(name string, params ...string) (text string, places []string, err error) {
	f, err := Load(name, nil)
	if err != nil {
		return "", nil, err
	}
	var in *section
	var s *Statement
	for in, s = range f.all {
	}
	if f.count() > 1 || in.each || s.expect != nil || s.writes() {
		return "", nil, f.refuse(s.At, "the file must hold one SELECT, and no directive")
	}
	for i, t := range s.tokens {
		if t.is("LOCK") || i > 0 && s.tokens[i-1].is("FOR") && (t.is("UPDATE") || t.is("SHARE")) {
			return "", nil, f.refuse(t.at, "%s is refused: the SELECT may lock no rows", t.text)
		}
		if t.isParam() {
			places = append(places, t.text)
		}
	}
	if !slices.Equal(slices.Compact(slices.Sorted(slices.Values(places))), params) {
		return "", nil, f.refuse(s.At, "the SELECT must have the parameters :%s, and no others", strings.Join(params, ", :"))
	}
	for _, p := range s.parts {
		if p.param != nil {
			p.text = " ? "
		}
		text += p.text
	}
	return text, places, nil
}

// Parse reads a file's text. Its error is an [*Error] with line and column. No server is asked: see [File.Check].
func Parse(name, text string) (*File, error) {
	text = strings.TrimPrefix(text, "\ufeff")
	p := &parser{file: &File{Name: name}, text: text, lexer: newLexer(text)}
	if !utf8.ValidString(text) {
		return nil, p.file.refuse(Position{1, 1}, "the file is not UTF-8")
	}
	if err := p.parse(); err != nil {
		return nil, err
	}
	return p.file, p.file.checkOrder()
}

type parser struct {
	file  *File
	text  string
	lexer *lexer
	open  []token    // of the statement that is being read
	last  *Statement // to which a comment "-- expect" belongs
	early *expectation
}

func (f *File) refuse(at Position, format string, args ...any) error {
	return &Error{f.Name, at, fmt.Errorf(format, args...)}
}

func (p *parser) parse() error {
	for {
		t, err := p.lexer.next()
		switch {
		case err != nil:
		case t.kind == kindLine, t.kind == kindBlock:
			err = p.comment(t)
		case t.kind == kindEnd, t.mark(";"):
			if err := p.endStatement(); err != nil {
				return err
			}
			if t.kind == kindEnd && p.file.count() == 0 {
				err = errors.New("the file has no statement")
			} else if t.kind == kindEnd {
				return nil
			}
		default:
			p.open = append(p.open, t)
		}
		if err != nil {
			return &Error{p.file.Name, t.at, err}
		}
	}
}

func (f *File) count() (n int) {
	for range f.all {
		n++
	}
	return n
}

// all calls yield with every statement and its section.
func (f *File) all(yield func(*section, *Statement) bool) {
	for _, in := range f.sections {
		for _, s := range in.statements {
			if !yield(in, s) {
				return
			}
		}
	}
}

// endStatement takes what was read since the last semicolon.
func (p *parser) endStatement() error {
	if len(p.open) == 0 {
		return nil
	}
	s := &Statement{At: p.open[0].at, tokens: p.open, expect: p.early}
	p.open, p.early = nil, nil
	if len(p.file.sections) == 0 {
		p.file.sections = []*section{{}}
	}
	in := p.file.sections[len(p.file.sections)-1]
	if err := p.file.admit(s); err != nil {
		return err
	}
	if p.file.count() == maxStatements {
		return p.file.refuse(s.At, "more than %d statements", maxStatements)
	}
	for i, t := range s.tokens {
		if i > 0 { // white space stays as it was written, and a comment becomes a space
			between := p.text[s.tokens[i-1].end:t.start]
			if strings.TrimSpace(between) != "" {
				between = " "
			}
			s.parts = append(s.parts, part{text: between})
		}
		one := part{text: p.text[t.start:t.end]}
		if t.isParam() {
			var err error
			if one.param, err = in.resolve(t); err != nil {
				return &Error{p.file.Name, t.at, err}
			}
			s.tokens[i].param = one.param
		}
		s.parts = append(s.parts, one)
	}
	in.statements, p.last = append(in.statements, s), s
	return nil
}

// resolve finds the field of a parameter; a new one is added.
func (s *section) resolve(t token) (param, error) {
	if t.kind == kindParam && strings.HasPrefix(strings.ToLower(t.text), reservedPrefix) {
		if value := reservedNames[t.text]; value != nil {
			return value, nil
		}
		return nil, fmt.Errorf(":%[1]s is none of :rollbackd_key, :rollbackd_tag, :rollbackd_group, :rollbackd_attempt "+
			"(a field of this name is :{/%[1]s})", t.text)
	}
	steps, err := parsePointer(strings.TrimPrefix(t.text, "/"))
	switch {
	case err != nil:
		return nil, err
	case t.text == "" && !s.each:
		return nil, errors.New(`:{} is the item of a list: it must stand in a section "-- for each"`)
	}
	f := field{steps, s.each && !strings.HasPrefix(t.text, "/")}
	i := slices.IndexFunc(s.fields, func(g field) bool { return f.ofItem == g.ofItem && slices.Equal(f.path, g.path) })
	if i < 0 {
		i, s.fields = len(s.fields), append(s.fields, f)
	}
	return func(r run) any { return r.values[i] }, nil
}

// parsePointer splits a JSON pointer without its first slash.
func parsePointer(s string) (path, error) {
	if s == "" {
		return nil, nil
	}
	steps, ok := strictjson.Steps(s)
	if !ok {
		return nil, fmt.Errorf("in the pointer /%s a ~ must be followed by 0 or 1", s)
	}
	return steps, nil
}
