package sql

import (
	"fmt"
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

type kind uint8

const (
	kindEnd     kind = iota
	kindWord         // a keyword, an unquoted name or a number: letters, digits, _, $ and all beyond ASCII
	kindName         // `quoted`; text is the name itself
	kindString       // 'text' or "text", as it is written
	kindParam        // :name or :{pointer}; text is the name or the pointer
	kindComment      // to the end of the line, or /* */; text is what is inside
	kindHint         // an optimizer hint, as it is written
	kindMark         // any other character
)

// token is a piece of the file. What stands between two of them is white space.
type token struct {
	kind       kind
	text       string
	at         Position
	start, end int  // bytes of the file
	braced     bool // a parameter that is written with braces
	alone      bool // a comment with nothing before it on its line
}

// is reports whether t is this keyword, in any case.
func (t token) is(word string) bool { return t.kind == kindWord && strings.EqualFold(t.text, word) }

// mark reports whether t is this character.
func (t token) mark(c string) bool { return t.kind == kindMark && t.text == c }

// lexer splits a file as MySQL and MariaDB would with the sql_mode of our sessions: a backslash escapes in strings,
// double quotes are strings too, and -- begins a comment only before white space.
type lexer struct {
	text string
	at   int
	pos  Position
	// fresh is true while nothing but white space was on the line.
	fresh bool
}

func newLexer(text string) *lexer { return &lexer{text: text, pos: Position{1, 1}, fresh: true} }

// move goes n bytes on.
func (l *lexer) move(n int) {
	for _, r := range l.text[l.at : l.at+n] {
		if r == '\n' {
			l.pos.Line, l.pos.Column, l.fresh = l.pos.Line+1, 1, true
			continue
		}
		l.pos.Column++
	}
	l.at += n
}

func (l *lexer) rest() string { return l.text[l.at:] }

func isSpace(c byte) bool { return c == ' ' || c >= '\t' && c <= '\r' }

func isWord(c byte) bool {
	return c == '_' || c == '$' || c >= utf8.RuneSelf ||
		'0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

func startsName(c byte) bool { return isWord(c) && c != '$' && (c < '0' || c > '9') }

// next is the next token; its error is one of the place where the lexer stands.
func (l *lexer) next() (t token, err error) {
	for l.at < len(l.text) && isSpace(l.text[l.at]) {
		l.move(1)
	}
	t = token{at: l.pos, start: l.at, alone: l.fresh}
	size, err := l.measure(&t)
	if err != nil {
		return token{}, err
	}
	l.fresh = false
	l.move(size)
	t.end = l.at
	return t, nil
}

// measure says what the next token is and how many bytes it has.
func (l *lexer) measure(t *token) (size int, err error) {
	s := l.rest()
	if s == "" {
		t.kind = kindEnd
		return 0, nil
	}
	switch c := s[0]; {
	case c == '\'' || c == '"':
		t.kind = kindString
		size, err = quoted(s, c, true)
		if err == nil {
			t.text = s[:size]
		}
		return size, err
	case c == '`':
		t.kind = kindName
		if size, err = quoted(s, c, false); err == nil {
			t.text = strings.ReplaceAll(s[1:size-1], "``", "`")
		}
		return size, err
	case c == '#', strings.HasPrefix(s, "--") && (len(s) == 2 || s[2] <= ' ' || s[2] == 0x7f):
		t.kind = kindComment
		size = len(s)
		if end := strings.IndexByte(s, '\n'); end >= 0 {
			size = end
		}
		t.text = strings.TrimSpace(strings.TrimPrefix(strings.TrimPrefix(s[:size], "#"), "--"))
		return size, nil
	case strings.HasPrefix(s, "/*"):
		return block(s, t)
	case isWord(c):
		t.kind = kindWord
		for size < len(s) && isWord(s[size]) {
			size++
		}
		t.text = s[:size]
		return size, nil
	case c == ':':
		return parameter(s, t)
	case c == '@':
		return 0, fmt.Errorf("%q is a variable of the server, which is NULL unless something sets it: write :%s for a field",
			"@"+word(s[1:]), word(s[1:]))
	case c == '?':
		return 0, fmt.Errorf("a parameter is written :name, not ?")
	case c < ' ' || c == 0x7f:
		return 0, fmt.Errorf("a control character (0x%02x)", c)
	}
	t.kind, t.text = kindMark, s[:1]
	return 1, nil
}

func word(s string) string {
	end := 0
	for end < len(s) && isWord(s[end]) {
		end++
	}
	return s[:end]
}

// quoted is the size of what begins with the quote. Two quotes inside stand for one.
func quoted(s string, quote byte, escapes bool) (int, error) {
	for i := 1; i < len(s); i++ {
		switch {
		case escapes && s[i] == '\\':
			i++
		case s[i] == quote && i+1 < len(s) && s[i+1] == quote:
			i++
		case s[i] == quote:
			return i + 1, nil
		}
	}
	return 0, fmt.Errorf("what begins with %c here has no end", quote)
}

// block is the size of a comment /* */. One that the server executes would hide a statement from whoever looks here.
func block(s string, t *token) (int, error) {
	end := strings.Index(s[2:], "*/")
	switch {
	case end < 0:
		return 0, fmt.Errorf("the comment that begins here has no end")
	case strings.HasPrefix(s, "/*!"), strings.HasPrefix(s, "/*M!"):
		return 0, fmt.Errorf("the server executes what is in %s */: write it without the comment", s[:min(4, len(s))])
	}
	size := end + 4
	t.kind, t.text = kindComment, strings.TrimSpace(s[2:size-2])
	if strings.HasPrefix(s, "/*+") {
		t.kind, t.text = kindHint, s[:size]
	}
	return size, nil
}

// parameter reads :name or :{pointer}.
func parameter(s string, t *token) (int, error) {
	t.kind = kindParam
	switch {
	case len(s) > 1 && startsName(s[1]):
		t.text = word(s[1:])
		return 1 + len(t.text), nil
	case len(s) > 1 && s[1] == '{':
		end := strings.IndexAny(s, "}\n")
		if end < 0 || s[end] == '\n' {
			return 0, fmt.Errorf("the parameter that begins with :{ here has no } on its line")
		}
		t.text, t.braced = s[2:end], true
		return end + 1, nil
	}
	return 0, fmt.Errorf("a colon must begin a parameter: :name or :{/pointer}")
}
