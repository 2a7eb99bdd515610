package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Limits of a document. Reading goes into objects and lists by recursion and keeps the names of those that are open, so
// MaxDepth bounds the stack and MaxBytes the memory.
const (
	MaxBytes = 256 << 10
	MaxDepth = 1000 // objects and lists, one inside the other
)

// Scanner reads a document in one pass and builds no values that nobody asked for. It stands in front of a value, of
// which [Scanner.Peek] tells the kind; the caller then reads it, or steps over it.
type Scanner struct {
	body  []byte
	at    int // the next byte
	depth int // objects and lists that are open
}

// New stands in front of a document's value. It refuses what is over MaxBytes and what is no UTF-8.
func New(body []byte) (Scanner, error) { return within(body, MaxBytes) }

func within(body []byte, most int) (Scanner, error) {
	switch {
	case len(body) == 0:
		return Scanner{}, errors.New("the body is empty")
	case len(body) > most:
		return Scanner{}, fmt.Errorf("the body has %d bytes, may have %d", len(body), most)
	case bytes.HasPrefix(body, []byte("\xef\xbb\xbf")):
		return Scanner{}, errors.New("the body begins with a byte order mark")
	case !utf8.Valid(body):
		return Scanner{}, fmt.Errorf("the body is not UTF-8: byte %d", validPrefix(body))
	}
	s := Scanner{body: body}
	s.at = skipSpace(s.body, 0)
	return s, nil
}

func validPrefix(body []byte) (n int) {
	for {
		r, size := utf8.DecodeRune(body[n:])
		if r == utf8.RuneError && size <= 1 {
			return n
		}
		n += size
	}
}

// End says what stands behind the document's value, if anything does.
func (s *Scanner) End() error {
	if s.at = skipSpace(s.body, s.at); s.at < len(s.body) {
		return s.want("the end of the body after the message")
	}
	return nil
}

// Peek is the first byte of the value, 0 at the end of the document.
func (s *Scanner) Peek() byte {
	if s.at < len(s.body) {
		return s.body[s.at]
	}
	return 0
}

// Field reads on in an object, up to the value of its next field; more is false at the object's end.
func (s *Scanner) Field(o *Object) (name []byte, more bool, err error) {
	if more, err = s.member(o.begun, '{', '}', "a JSON object"); err != nil || !more {
		return nil, false, err
	}
	o.begun = true
	start := s.at
	if s.Peek() != '"' {
		return nil, false, s.want("a field's name")
	}
	name, escaped, err := s.text()
	if err != nil {
		return nil, false, err
	}
	at := s.at
	if !o.add(s.body, name, at-1, escaped) {
		return nil, false, fmt.Errorf("byte %d: field %q comes twice", start, cut(name))
	}
	if at = skipSpace(s.body, at); at == len(s.body) || s.body[at] != ':' {
		s.at = at
		return nil, false, s.want("a colon")
	}
	s.at = skipSpace(s.body, at+1)
	return name, true, nil
}

// Element reads on in a list, up to its element number i; more is false at the list's end.
func (s *Scanner) Element(i int) (more bool, err error) {
	return s.member(i > 0, '[', ']', "a JSON list")
}

// member moves to the next member of what opens and ends with these bytes, or behind its end.
func (s *Scanner) member(begun bool, open, end byte, what string) (more bool, err error) {
	at := skipSpace(s.body, s.at)
	s.at = at
	c := s.Peek()
	switch {
	case begun && c == ',':
		s.at = skipSpace(s.body, at+1)
		return true, nil
	case begun && c == end:
	case begun:
		return false, s.want("a comma or '" + string(end) + "'")
	case c != open:
		return false, s.want(what)
	case s.depth == MaxDepth:
		return false, fmt.Errorf("byte %d: nested deeper than %d", at, MaxDepth)
	default:
		s.depth++
		if at = skipSpace(s.body, at+1); at == len(s.body) || s.body[at] != end {
			s.at = at
			return true, nil
		}
	}
	s.at = at + 1
	s.depth--
	return false, nil
}

// Natural reads an integer literal from 1 to most: digits only, no sign, fraction, exponent or leading zero. It does
// not move when something else stands there.
func (s *Scanner) Natural(most int64) (n int64, ok bool) {
	const mostDigits = 19 // they fit into 64 bits; what more of them add up to is not looked at
	end, sum := s.at, uint64(0)
	for end < len(s.body) && s.body[end]-'0' <= 9 {
		sum = sum*10 + uint64(s.body[end]-'0')
		end++
	}
	digits := end - s.at
	if digits == 0 || digits > mostDigits || s.body[s.at] == '0' || sum > uint64(most) ||
		end < len(s.body) && strings.IndexByte(" \t\r\n,]}", s.body[end]) < 0 {
		return 0, false
	}
	s.at = end
	return int64(sum), true
}

// Skip steps over the value. It is read as strictly as any other.
func (s *Scanner) Skip() error {
	switch c := s.Peek(); {
	case c == '"':
		_, _, err := s.literal()
		return err
	case c == '{', c == '[':
		_, err := s.inside(nil)
		return err
	case c == '-' || c-'0' <= 9:
		return s.number()
	}
	for _, word := range [...]string{"true", "false", "null"} {
		if bytes.HasPrefix(s.body[s.at:], []byte(word)) {
			s.at += len(word)
			return nil
		}
	}
	return s.want("a value")
}

// number steps over a number of JSON's grammar.
func (s *Scanner) number() error {
	s.step('-')
	bad := !s.step('0') && !s.digits()
	bad = bad || s.step('.') && !s.digits()
	if !bad && (s.step('e') || s.step('E')) {
		_ = s.step('+') || s.step('-')
		bad = !s.digits()
	}
	if bad {
		return s.want("a digit")
	}
	return nil
}

// step steps over this byte, if it stands here.
func (s *Scanner) step(c byte) bool {
	here := s.Peek() == c
	if here {
		s.at++
	}
	return here
}

func (s *Scanner) digits() bool {
	start := s.at
	for s.Peek()-'0' <= 9 {
		s.at++
	}
	return s.at > start
}

// skipSpace is the index of the next byte that is no space. It is split so that the usual case, no space, is inlined.
func skipSpace(body []byte, at int) int {
	if at < len(body) && body[at] <= ' ' {
		return skipSpaces(body, at)
	}
	return at
}

func skipSpaces(body []byte, at int) int {
	for at < len(body) && (body[at] == ' ' || body[at] == '\t' || body[at] == '\r' || body[at] == '\n') {
		at++
	}
	return at
}

// Object is an object that is being read, and the names of its fields so far. Its zero value has not begun.
type Object struct {
	begun bool
	n     int
	few   [8]struct{ start, end int32 } // where the first names stand, as long as nothing in them is escaped
	many  map[string]struct{}           // else all names
}

// add reports whether name is new. It stands in the body up to end, unless it was escaped there.
func (o *Object) add(body, name []byte, end int, escaped bool) bool {
	if o.many == nil {
		for _, f := range o.few[:o.n] {
			if string(body[f.start:f.end]) == string(name) {
				return false
			}
		}
		if o.n < len(o.few) && !escaped {
			o.few[o.n].start, o.few[o.n].end = int32(end-len(name)), int32(end)
			o.n++
			return true
		}
		o.many = make(map[string]struct{}, 2*len(o.few))
		for _, f := range o.few[:o.n] {
			o.many[string(body[f.start:f.end])] = struct{}{}
		}
	}
	if _, seen := o.many[string(name)]; seen {
		return false
	}
	o.many[string(name)] = struct{}{}
	return true
}

// Text reads the string that begins here. What it returns is part of the document where nothing is escaped.
func (s *Scanner) Text() ([]byte, error) {
	text, _, err := s.text()
	return text, err
}

func (s *Scanner) text() (text []byte, escaped bool, err error) {
	literal, escaped, err := s.literal()
	switch {
	case err != nil:
		return nil, false, err
	case !escaped:
		return literal[1 : len(literal)-1], false, nil
	}
	unquoted, err := Unquote(literal)
	return []byte(unquoted), true, err
}

// Unquote gives the text of a string that a Scanner has accepted, quotes and all. encoding/json replaces nothing in it.
func Unquote(literal []byte) (string, error) {
	if bytes.IndexByte(literal, '\\') < 0 {
		return string(literal[1 : len(literal)-1]), nil
	}
	var text string
	if err := json.Unmarshal(literal, &text); err != nil {
		return "", fmt.Errorf("read the string %s: %w", cut(literal), err)
	}
	return text, nil
}

// literal steps over a string.
func (s *Scanner) literal() (quoted []byte, escaped bool, err error) {
	start := s.at
	for i := start + 1; i < len(s.body); i++ {
		switch c := s.body[i]; {
		case c > '\\': // most letters
		case c == '"':
			s.at = i + 1
			return s.body[start:s.at], escaped, nil
		case c == '\\':
			s.at, escaped = i, true
			if err := s.escape(); err != nil {
				return nil, false, err
			}
			i = s.at - 1
		case c < ' ':
			s.at = i
			return nil, false, s.want("no raw control character in a string")
		}
	}
	s.at = len(s.body)
	return nil, false, s.want("the end of a string")
}

// escape steps over one escape sequence, or over the two that make a surrogate pair.
func (s *Scanner) escape() error {
	start := s.at
	s.at++ // its backslash
	switch s.Peek() {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.at++
		return nil
	case 'u':
		unit, ok := unicodeEscape(s.body[start:])
		if !ok {
			break
		}
		s.at = start + 6
		if !utf16.IsSurrogate(unit) {
			return nil
		}
		low, _ := unicodeEscape(s.body[s.at:])
		if utf16.DecodeRune(unit, low) == utf8.RuneError {
			return fmt.Errorf("byte %d: half a surrogate pair", start)
		}
		s.at += 6
		return nil
	}
	return s.want("an escape sequence")
}

// unicodeEscape reads \uXXXX.
func unicodeEscape(b []byte) (unit rune, ok bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(b[2:6]), 16, 16)
	return rune(n), err == nil
}

// want says what should stand here.
func (s *Scanner) want(what string) error {
	found := "the end"
	if s.at < len(s.body) {
		r, _ := utf8.DecodeRune(s.body[s.at:])
		found = strconv.QuoteRune(r)
	}
	return fmt.Errorf("byte %d: want %s, found %s", s.at, what, found)
}

// Refuse says what is wrong with the value, of which it repeats the beginning.
func (s *Scanner) Refuse(what string) error {
	value := s.body[s.at:]
	if len(value) > 0 && value[0] == '"' {
		if end := bytes.IndexByte(value[1:], '"'); end >= 0 {
			value = value[:end+2]
		}
	} else if end := bytes.IndexAny(value, ",]} \t\r\n"); end > 0 {
		value = value[:end]
	}
	if len(value) == 0 {
		return s.want("a value")
	}
	return errors.New(string(cut(value)) + " " + what)
}

// cut shortens what an error repeats of the body, to whole characters.
func cut(text []byte) []byte {
	const most = 40
	if len(text) <= most {
		return text
	}
	end := most
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return append(bytes.Clone(text[:end]), "…"...)
}
