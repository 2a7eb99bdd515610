package sql

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// Position is a place in the file. Both count from 1; Column counts characters.
type Position struct{ Line, Column int }

// String is line:column.
func (p Position) String() string { return fmt.Sprintf("%d:%d", p.Line, p.Column) }

// Error is what is wrong with a file, and where.
type Error struct {
	File string // its name as it was given
	At   Position
	Err  error
}

// Error begins with the place, as compilers write it.
func (e *Error) Error() string { return fmt.Sprintf("%s:%v: %v", e.File, e.At, e.Err) }

// Unwrap is what is wrong.
func (e *Error) Unwrap() error { return e.Err }

type kind int

const (
	kindEnd     kind = iota
	kindLine         // a comment to the end of the line; text is what is inside
	kindHint         // an optimizer hint, as it is written
	kindBlock        // a comment in /* */; text is what is inside
	kindString       // 'text' or "text", as it is written
	kindName         // `quoted`; text is the name itself
	kindWord         // a keyword, an unquoted name or a number: letters, digits, _, $ and all beyond ASCII
	kindParam        // :name; text is the name
	kindPointer      // :{pointer}; text is the pointer
	kindMark         // any other character
)

// lexeme is a token as MySQL and MariaDB read it with the sql_mode of our sessions: a backslash escapes in strings,
// double quotes are strings too, and -- begins a comment only before white space. Its groups are the kinds.
var lexeme = regexp.MustCompile(`(?s)^(?:` + strings.Join([]string{
	`(#[^\n]*|--(?:[\x00-\x09\x0b-\x20\x7f][^\n]*)?(?:\n|$))`,
	`(/\*\+.*?\*/)`,
	`/\*(.*?)\*/`,
	`('(?:[^'\\]|''|\\.)*'|"(?:[^"\\]|""|\\.)*")`,
	"`((?:[^`]|``)*)`",
	`([\w$[:^ascii:]]+)`,
	`:([A-Za-z_[:^ascii:]][\w$[:^ascii:]]*)`,
	`:\{([^}\n]*)\}`,
	"([^\\s\\x00-\\x1f\\x7f'\"`:@?])",
}, "|") + `)`)

// token is a piece of the file. What stands between two of them is white space.
type token struct {
	kind       kind
	text       string
	at         Position
	start, end int   // bytes of the file
	param      param // of a parameter, in a statement
}

// is reports whether t is this keyword, in any case.
func (t token) is(word string) bool { return t.kind == kindWord && strings.EqualFold(t.text, word) }

// mark reports whether t is this character.
func (t token) mark(c string) bool { return t.kind == kindMark && t.text == c }

func (t token) isParam() bool { return t.kind == kindParam || t.kind == kindPointer }

// lexer splits a text into tokens.
type lexer struct {
	text string
	at   int
	pos  Position
}

func newLexer(text string) *lexer { return &lexer{text: text, pos: Position{1, 1}} }

// move goes n bytes on.
func (l *lexer) move(n int) {
	piece := l.text[l.at : l.at+n]
	l.at += n
	if lines := strings.Count(piece, "\n"); lines > 0 {
		l.pos = Position{l.pos.Line + lines, 1}
		piece = piece[strings.LastIndexByte(piece, '\n')+1:]
	}
	l.pos.Column += utf8.RuneCountInString(piece)
}

// next is the next token; its error is one of the place where the lexer stands.
func (l *lexer) next() (token, error) {
	rest := l.text[l.at:]
	l.move(len(rest) - len(strings.TrimLeft(rest, " \t\n\v\f\r")))
	rest = l.text[l.at:]
	t := token{at: l.pos, start: l.at, end: l.at}
	if rest == "" {
		return t, nil
	}
	m := lexeme.FindStringSubmatchIndex(rest)
	if err := refuseLexeme(rest, m); err != nil {
		return t, err
	}
	for t.kind = 1; m[2*t.kind] < 0; t.kind++ {
	}
	t.text = rest[m[2*t.kind]:m[2*t.kind+1]]
	switch t.kind {
	case kindName:
		t.text = strings.ReplaceAll(t.text, "``", "`")
	case kindLine:
		t.text = strings.TrimPrefix(strings.TrimPrefix(t.text, "#"), "--")
		fallthrough
	case kindBlock:
		t.text = strings.TrimSpace(t.text)
	}
	l.move(m[1])
	t.end = l.at
	return t, nil
}

// refuseLexeme says what is wrong at the beginning of a text, of which m is the token, or nil. What the server executes
// of a comment would hide a statement from whoever looks here.
func refuseLexeme(s string, m []int) error {
	begins := func(prefix string) bool { return strings.HasPrefix(s, prefix) }
	switch open := m == nil; {
	case begins("/*") && (open || m[1] == 1):
		return fmt.Errorf("the comment that begins here has no end")
	case begins("/*!"), begins("/*M!"):
		return fmt.Errorf("the server executes what is in %s */: write it without the comment", s[:min(4, len(s))])
	case !open:
		return nil
	case begins("'"), begins(`"`), begins("`"):
		return fmt.Errorf("what begins with %c here has no end", s[0])
	case begins(":{"):
		return fmt.Errorf("the parameter that begins with :{ here has no } on its line")
	case begins(":"):
		return fmt.Errorf("a colon must begin a parameter: :name or :{/pointer}")
	case begins("@"):
		name := lexeme.FindString(s[1:])
		return fmt.Errorf("%q is a variable of the server, which is NULL unless something sets it: write :%s for a field",
			"@"+name, name)
	case begins("?"):
		return fmt.Errorf("a parameter is written :name, not ?")
	}
	return fmt.Errorf("a control character (0x%02x)", s[0])
}
