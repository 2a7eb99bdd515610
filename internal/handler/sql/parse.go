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
	sections []section
	// ours are tables that no statement may write.
	ours []string
	// allowCall is set by "-- allow call".
	allowCall bool
	// paths are what is read from a message, in the order of their slots.
	paths []path
	// plan is how statements are joined; nil: they are not.
	plan     atomic.Pointer[plan]
	unjoined atomic.Pointer[[]Unjoined] // why not
}

// section is statements that run once for a message, or once for each item of a list.
type section struct {
	each       bool
	list       path // of the items
	statements []*Statement
	paths      []path // what is read from an item, in the order of their slots
}

// Statement is one statement of a file.
type Statement struct {
	At Position
	// Text is the statement as it was written, without comments; parameters have their names.
	Text   string
	verb   string // in capitals
	tokens []token
	pieces []piece
	expect *expectation // nil: any number of rows will do
}

// piece is literal text, and behind it a parameter.
type piece struct {
	text  string
	param *param // nil behind the last
}

// param is where the value of a parameter comes from.
type param struct {
	at       Position
	name     string // as it is written, with its colon
	reserved reserved
	item     int // slot of the item; -1: none
	message  int // slot of the message; -1: none
}

// path is the steps of a JSON pointer.
type path []string

// String is the pointer, without the slash in front.
func (p path) String() string { return strings.Join(p, ".") }

// reserved is a parameter that is no field.
type reserved uint8

const (
	reservedNone reserved = iota
	reservedKey
	reservedTag
	reservedGroup
	reservedAttempt
)

// reservedPrefix begins the names that are no fields.
const reservedPrefix = "rollbackd_"

var reservedNames = map[string]reserved{
	"rollbackd_key": reservedKey, "rollbackd_tag": reservedTag, "rollbackd_group": reservedGroup,
	"rollbackd_attempt": reservedAttempt,
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
	words := make([]string, len(e.counts))
	for i, n := range e.counts {
		words[i] = strconv.FormatInt(n, 10)
	}
	if e.orMore {
		words = append(words, "more")
	}
	return strings.Join(words, " or ")
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

// Parse reads a file's text. Its error is an [*Error] with line and column. No server is asked: see [File.Check].
func Parse(name, text string) (*File, error) {
	text = strings.TrimPrefix(text, "\ufeff")
	p := &parser{file: &File{Name: name}, text: text, lexer: newLexer(text)}
	if !utf8.ValidString(text) {
		return nil, p.refuse(Position{1, 1}, errors.New("the file is not UTF-8"))
	}
	if err := p.parse(); err != nil {
		return nil, err
	}
	if err := p.file.checkOrder(); err != nil {
		return nil, err
	}
	return p.file, nil
}

type parser struct {
	file  *File
	text  string
	lexer *lexer
	open  []token    // of the statement that is being read
	last  *Statement // to which a comment "-- expect" belongs
	early *expectation
}

func (p *parser) refuse(at Position, err error) error { return &Error{p.file.Name, at, err} }

func (f *File) refuse(at Position, format string, args ...any) error {
	return &Error{f.Name, at, fmt.Errorf(format, args...)}
}

func (p *parser) parse() error {
	for {
		t, err := p.lexer.next()
		if err != nil {
			return p.refuse(p.lexer.pos, err)
		}
		switch {
		case t.kind == kindEnd:
			if err := p.endStatement(); err != nil {
				return err
			}
			if p.file.count() == 0 {
				return p.refuse(t.at, errors.New("the file has no statement"))
			}
			return nil
		case t.kind == kindComment:
			if err := p.comment(t); err != nil {
				return p.refuse(t.at, err)
			}
		case t.mark(";"):
			if err := p.endStatement(); err != nil {
				return err
			}
		default:
			p.open = append(p.open, t)
		}
	}
}

func (f *File) count() (n int) {
	for _, s := range f.sections {
		n += len(s.statements)
	}
	return n
}

// all calls yield with every statement and its section.
func (f *File) all(yield func(*section, *Statement) bool) {
	for i := range f.sections {
		for _, s := range f.sections[i].statements {
			if !yield(&f.sections[i], s) {
				return
			}
		}
	}
}

// endStatement takes what was read since the last semicolon.
func (p *parser) endStatement() error {
	tokens := p.open
	p.open = nil
	if len(tokens) == 0 {
		return nil
	}
	if len(p.file.sections) == 0 {
		p.file.sections = append(p.file.sections, section{})
	}
	in := &p.file.sections[len(p.file.sections)-1]
	s := &Statement{At: tokens[0].at, tokens: tokens, expect: p.early}
	p.early = nil
	if err := p.file.admit(s); err != nil {
		return err
	}
	if p.file.count() == maxStatements {
		return p.refuse(s.At, fmt.Errorf("more than %d statements", maxStatements))
	}
	if err := p.compile(in, s); err != nil {
		return err
	}
	in.statements = append(in.statements, s)
	p.last = s
	return nil
}

// compile splits a statement at its parameters. White space stays as it was written, and a comment becomes a space.
func (p *parser) compile(in *section, s *Statement) error {
	var shown, text strings.Builder
	for i, t := range s.tokens {
		if i > 0 {
			between := p.text[s.tokens[i-1].end:t.start]
			if strings.TrimSpace(between) != "" {
				between = " "
			}
			shown.WriteString(between)
			text.WriteString(between)
		}
		shown.WriteString(p.text[t.start:t.end])
		if t.kind != kindParam {
			text.WriteString(p.text[t.start:t.end])
			continue
		}
		prm, err := p.file.resolve(in, t)
		if err != nil {
			return p.refuse(t.at, err)
		}
		s.pieces = append(s.pieces, piece{text.String(), prm})
		text.Reset()
	}
	s.pieces = append(s.pieces, piece{text: text.String()})
	s.Text = strings.Join(strings.Fields(shown.String()), " ")
	return nil
}

// resolve gives a parameter its slots.
func (f *File) resolve(in *section, t token) (*param, error) {
	prm := &param{at: t.at, name: ":" + t.text, item: -1, message: -1}
	pointer := t.text
	if t.braced {
		prm.name = ":{" + t.text + "}"
	} else if strings.HasPrefix(strings.ToLower(t.text), reservedPrefix) {
		if prm.reserved = reservedNames[t.text]; prm.reserved == reservedNone {
			return nil, fmt.Errorf("%s is none of :rollbackd_key, :rollbackd_tag, :rollbackd_group, :rollbackd_attempt "+
				"(a field of this name is :{/%s})", prm.name, t.text)
		}
		return prm, nil
	}
	rooted := strings.HasPrefix(pointer, "/")
	steps, err := parsePointer(strings.TrimPrefix(pointer, "/"))
	switch {
	case err != nil:
		return nil, err
	case pointer == "" && in.each:
		prm.item = slot(&in.paths, nil) // the item itself
		return prm, nil
	case pointer == "":
		return nil, errors.New(`:{} is the item of a list: it must stand in a section "-- for each"`)
	}
	if in.each && !rooted {
		prm.item = slot(&in.paths, steps)
	}
	prm.message = slot(&f.paths, steps)
	return prm, nil
}

// slot is the place of a path among all; a new one is added.
func slot(all *[]path, p path) int {
	if i := slices.IndexFunc(*all, func(q path) bool { return slices.Equal(p, q) }); i >= 0 {
		return i
	}
	*all = append(*all, p)
	return len(*all) - 1
}

// parsePointer splits a JSON pointer (RFC 6901) without its first slash.
func parsePointer(s string) (path, error) {
	if s == "" {
		return nil, nil
	}
	steps := strings.Split(s, "/")
	for i, step := range steps {
		if strings.Contains(strings.NewReplacer("~0", "", "~1", "").Replace(step), "~") {
			return nil, fmt.Errorf("in the pointer /%s a ~ must be followed by 0 or 1", s)
		}
		steps[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(step)
	}
	return steps, nil
}
