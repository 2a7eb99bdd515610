package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/rollbackd/rollbackd/stock"
)

// maxDepth bounds the nesting of a message, itself included. Unknown fields are skipped by recursion, so this bounds the
// stack too.
const maxDepth = 100

// outside is scanner.item while no item is being read.
const outside = -1

// endOfValue is what may follow a number: JSON has no other way to end one. The zero byte stands for the end of the body.
const endOfValue = " \t\r\n,]}\x00"

// scanner reads a JSON body in one pass, without building values that nobody asked for.
type scanner struct {
	body []byte
	at   int // the next byte

	request       stock.Request
	hasOrder      bool
	sku, quantity int64 // of the item being read; 0 while absent

	item  int    // the item being read, for errors
	field string // the known field being read, for errors; empty in an unknown one
}

// checkBytes refuses what is no UTF-8 JSON text before anything is read: encoding/json and others replace invalid UTF-8,
// which makes different order numbers equal.
func (s *scanner) checkBytes() error {
	switch {
	case len(s.body) == 0:
		return errors.New("the body is empty")
	case len(s.body) > maxBodyBytes:
		return fmt.Errorf("the body has %d bytes, may have %d", len(s.body), maxBodyBytes)
	case bytes.HasPrefix(s.body, []byte("\xef\xbb\xbf")):
		return errors.New("the body begins with a byte order mark")
	case !utf8.Valid(s.body):
		at := 0
		for at < len(s.body) {
			r, size := utf8.DecodeRune(s.body[at:])
			if r == utf8.RuneError && size == 1 {
				break
			}
			at += size
		}
		return fmt.Errorf("the body is not UTF-8: byte %d", at)
	}
	return nil
}

// peek is the next byte, 0 at the end. A 0 inside the body is no JSON either.
func (s *scanner) peek() byte {
	if s.at < len(s.body) {
		return s.body[s.at]
	}
	return 0
}

func (s *scanner) space() {
	for s.at < len(s.body) {
		switch s.body[s.at] {
		case ' ', '\t', '\r', '\n':
			s.at++
		default:
			return
		}
	}
}

// object reads an object and calls field at each value, with the name before it. No name may come twice.
func (s *scanner) object(field func(s *scanner, name []byte) error) error {
	if s.peek() != '{' {
		return s.syntax("a JSON object")
	}
	s.at++
	var seen nameSet
	for n := 0; ; n++ {
		s.space()
		if n == 0 && s.peek() == '}' {
			s.at++
			return nil
		}
		name, err := s.name()
		if err != nil {
			return err
		}
		if !seen.add(name) {
			return s.locate(fmt.Errorf("field %q comes twice", cut(name)))
		}
		if err := field(s, name); err != nil {
			return err
		}
		s.field = ""
		if over, err := s.next('}'); over || err != nil {
			return err
		}
	}
}

// name reads the name of a field and what is before its value.
func (s *scanner) name() ([]byte, error) {
	if s.peek() != '"' {
		return nil, s.syntax("a field's name")
	}
	name, escaped, err := s.text()
	if err == nil && escaped {
		name, err = s.unescape(name)
	}
	if err != nil {
		return nil, err
	}
	return name, s.colon()
}

func (s *scanner) colon() error {
	s.space()
	if s.peek() != ':' {
		return s.syntax("a colon")
	}
	s.at++
	s.space()
	return nil
}

// list reads a list and calls element at each value.
func (s *scanner) list(element func(s *scanner, i int) error) error {
	s.at++ // its bracket
	for i := 0; ; i++ {
		s.space()
		if i == 0 && s.peek() == ']' {
			s.at++
			return nil
		}
		if err := element(s, i); err != nil {
			return err
		}
		if over, err := s.next(']'); over || err != nil {
			return err
		}
	}
}

// next reads a comma, or the end of the object or list.
func (s *scanner) next(end byte) (over bool, err error) {
	s.space()
	switch s.peek() {
	case ',':
		s.at++
		return false, nil
	case end:
		s.at++
		return true, nil
	}
	return false, s.syntax("a comma or " + strconv.QuoteRune(rune(end)))
}

// nameSet are the names seen in one object.
type nameSet struct {
	few  [8][]byte
	n    int
	many map[string]struct{} // from the ninth name on, those and the first eight
}

// add reports whether name is new.
func (n *nameSet) add(name []byte) bool {
	if n.many == nil {
		for _, other := range n.few[:n.n] {
			if bytes.Equal(name, other) {
				return false
			}
		}
		if n.n < len(n.few) {
			n.few[n.n] = name
			n.n++
			return true
		}
		n.many = make(map[string]struct{}, 2*len(n.few))
		for _, other := range n.few {
			n.many[string(other)] = struct{}{}
		}
	}
	if _, seen := n.many[string(name)]; seen {
		return false
	}
	n.many[string(name)] = struct{}{}
	return true
}
