package daemon

import (
	"bytes"
	"fmt"
)

// unknown steps over the value of a field nobody knows, which is inside depth objects and lists.
func (s *scanner) unknown(depth int) error {
	s.field = ""
	return s.skip(depth)
}

func (s *scanner) skip(depth int) error {
	switch c := s.peek(); {
	case c == '"':
		_, _, err := s.text()
		return err
	case c == '-' || '0' <= c && c <= '9':
		return s.number()
	case c != '{' && c != '[':
		return s.word()
	case depth == maxDepth:
		return s.locate(fmt.Errorf("byte %d: nested deeper than %d", s.at, maxDepth))
	case c == '[':
		return s.list(func(s *scanner, _ int) error { return s.skip(depth + 1) })
	}
	return s.skipObject(depth)
}

// skipObject allows a name twice: it does not matter in what nobody reads.
func (s *scanner) skipObject(depth int) error {
	s.at++ // its brace
	for n := 0; ; n++ {
		s.space()
		if n == 0 && s.peek() == '}' {
			s.at++
			return nil
		}
		if s.peek() != '"' {
			return s.syntax("a field's name")
		}
		if _, _, err := s.text(); err != nil {
			return err
		}
		if err := s.colon(); err != nil {
			return err
		}
		if err := s.skip(depth + 1); err != nil {
			return err
		}
		if over, err := s.next('}'); over || err != nil {
			return err
		}
	}
}

func (s *scanner) word() error {
	for _, w := range [...]string{"true", "false", "null"} {
		if bytes.HasPrefix(s.body[s.at:], []byte(w)) {
			s.at += len(w)
			return nil
		}
	}
	return s.syntax("a value")
}

// number steps over a number of JSON's grammar.
func (s *scanner) number() error {
	if s.peek() == '-' {
		s.at++
	}
	if s.peek() == '0' {
		s.at++
	} else if !s.digits() {
		return s.syntax("a digit")
	}
	if s.peek() == '.' {
		s.at++
		if !s.digits() {
			return s.syntax("a digit")
		}
	}
	if c := s.peek(); c == 'e' || c == 'E' {
		s.at++
		if c := s.peek(); c == '+' || c == '-' {
			s.at++
		}
		if !s.digits() {
			return s.syntax("a digit")
		}
	}
	return nil
}

func (s *scanner) digits() bool {
	start := s.at
	for s.at < len(s.body) && s.body[s.at]-'0' <= 9 {
		s.at++
	}
	return s.at > start
}
