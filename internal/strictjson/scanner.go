package strictjson

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
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
	case c == '{':
		_, err := s.object(nil)
		return err
	case c == '[':
		_, err := s.list(nil)
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
	if s.Peek() == '-' {
		s.at++
	}
	if s.Peek() == '0' {
		s.at++
	} else if !s.digits() {
		return s.want("a digit")
	}
	c := s.Peek()
	if c == '.' {
		s.at++
		if !s.digits() {
			return s.want("a digit")
		}
		c = s.Peek()
	}
	if c == 'e' || c == 'E' {
		s.at++
		if c := s.Peek(); c == '+' || c == '-' {
			s.at++
		}
		if !s.digits() {
			return s.want("a digit")
		}
	}
	return nil
}

func (s *Scanner) digits() bool {
	start, at := s.at, s.at
	for at < len(s.body) && s.body[at]-'0' <= 9 {
		at++
	}
	s.at = at
	return at > start
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
