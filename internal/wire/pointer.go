package wire

import (
	"encoding/json"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// maxJSONDepth bounds the scanner's recursion.
const maxJSONDepth = 1000

// lookUp finds the string or integer literal at a JSON pointer. It exists because encoding/json would make different keys
// equal: it replaces invalid UTF-8 and lone surrogates, lets the last of two equal fields win and matches names without case.
// found is false when nothing stands there. flaw says why the body is no JSON document, names a field on the way twice, or
// holds something else there (a float, an object, null …).
func lookUp(body []byte, steps []string) (value string, found bool, flaw string) {
	if !utf8.Valid(body) {
		return "", false, "is not valid UTF-8"
	}
	s := scanner{b: body}
	if err := s.value(steps, true, 0); err != nil {
		return "", false, err.Error()
	}
	if s.space(); s.i < len(body) {
		return "", false, fmt.Sprintf("has something behind its JSON document, at byte %d", s.i)
	}
	return s.result, s.found, s.flaw
}

// scanner reads one JSON document from front to back, strictly by RFC 8259, and keeps what stands at the pointer.
type scanner struct {
	b      []byte
	i      int
	result string
	found  bool
	flaw   string // what stands at the pointer cannot be a key
}

// value reads one value. on means that the pointer has led here and steps are left of it.
func (s *scanner) value(steps []string, on bool, depth int) error {
	if depth > maxJSONDepth {
		return fmt.Errorf("nests deeper than %d", maxJSONDepth)
	}
	s.space()
	if s.i >= len(s.b) {
		return s.broken()
	}
	here := on && len(steps) == 0
	switch c := s.b[s.i]; {
	case c == '{':
		s.unusable(here, "an object")
		return s.object(steps, on && !here, depth)
	case c == '[':
		s.unusable(here, "an array")
		return s.array(steps, on && !here, depth)
	case c == '"':
		raw, escaped, err := s.text()
		if err == nil && here {
			s.found, s.result = true, unescape(raw, escaped)
		}
		return err
	case c == '-' || '0' <= c && c <= '9':
		return s.number(here)
	}
	for _, word := range []string{"true", "false", "null"} {
		if n := len(word); len(s.b)-s.i >= n && string(s.b[s.i:s.i+n]) == word {
			s.i += n
			s.unusable(here, word)
			return nil
		}
	}
	return s.broken()
}

func (s *scanner) unusable(here bool, what string) {
	if here {
		s.found, s.flaw = true, "has "+what+" for a key"
	}
}

func (s *scanner) object(steps []string, on bool, depth int) error {
	seen := false
	for first := true; ; first = false {
		s.i++ // { or ,
		s.space()
		if first && s.at('}') {
			s.i++
			return nil
		}
		name, escaped, err := s.text()
		if err != nil {
			return err
		}
		match := on && (!escaped && string(name) == steps[0] || escaped && unescape(name, true) == steps[0])
		if match && seen {
			return fmt.Errorf("has the field %s twice", quote(steps[0]))
		}
		seen = seen || match
		if s.space(); !s.at(':') {
			return s.broken()
		}
		s.i++
		if err := s.value(rest(steps), match, depth+1); err != nil {
			return err
		}
		if s.space(); s.at('}') {
			s.i++
			return nil
		}
		if !s.at(',') {
			return s.broken()
		}
	}
}

func (s *scanner) array(steps []string, on bool, depth int) error {
	for n := 0; ; n++ {
		s.i++ // [ or ,
		s.space()
		if n == 0 && s.at(']') {
			s.i++
			return nil
		}
		match := on && steps[0] == strconv.Itoa(n)
		if err := s.value(rest(steps), match, depth+1); err != nil {
			return err
		}
		if s.space(); s.at(']') {
			s.i++
			return nil
		}
		if !s.at(',') {
			return s.broken()
		}
	}
}

func rest(steps []string) []string {
	if len(steps) == 0 {
		return nil
	}
	return steps[1:]
}

// text reads a string and returns what stands between its quotes.
func (s *scanner) text() (raw []byte, escaped bool, err error) {
	if !s.at('"') {
		return nil, false, s.broken()
	}
	s.i++
	start := s.i
	for s.i < len(s.b) {
		switch c := s.b[s.i]; {
		case c == '"':
			s.i++
			return s.b[start : s.i-1], escaped, nil
		case c < 0x20:
			return nil, false, s.broken()
		case c == '\\':
			escaped = true
			if err := s.escape(); err != nil {
				return nil, false, err
			}
		default:
			s.i++
		}
	}
	return nil, false, s.broken()
}

func (s *scanner) escape() error {
	if s.i+1 >= len(s.b) {
		return s.broken()
	}
	switch s.b[s.i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.i += 2
		return nil
	case 'u':
		unit, ok := s.unit()
		if !ok {
			return s.broken()
		}
		if unit < 0xD800 || unit > 0xDFFF {
			return nil
		}
		low, ok := s.unit()
		if unit > 0xDBFF || !ok || low < 0xDC00 || low > 0xDFFF {
			return fmt.Errorf("has a lone surrogate before byte %d", s.i)
		}
		return nil
	}
	return s.broken()
}

// unit reads one \uXXXX.
func (s *scanner) unit() (uint64, bool) {
	if len(s.b)-s.i < 6 || s.b[s.i] != '\\' || s.b[s.i+1] != 'u' {
		return 0, false
	}
	for _, c := range s.b[s.i+2 : s.i+6] { // ParseUint takes signs and underscores too
		if !('0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F') {
			return 0, false
		}
	}
	n, err := strconv.ParseUint(string(s.b[s.i+2:s.i+6]), 16, 16)
	s.i += 6
	return n, err == nil
}

func (s *scanner) number(here bool) error {
	start := s.i
	if s.at('-') {
		s.i++
	}
	switch {
	case s.at('0'):
		s.i++
	case !s.digits():
		return s.broken()
	}
	whole := true
	if s.at('.') {
		whole = false
		s.i++
		if !s.digits() {
			return s.broken()
		}
	}
	if s.at('e') || s.at('E') {
		whole = false
		s.i++
		if s.at('+') || s.at('-') {
			s.i++
		}
		if !s.digits() {
			return s.broken()
		}
	}
	switch {
	case here && whole:
		s.found, s.result = true, string(s.b[start:s.i])
	default:
		s.unusable(here, "a number that is no integer literal")
	}
	return nil
}

func (s *scanner) digits() bool {
	start := s.i
	for s.i < len(s.b) && '0' <= s.b[s.i] && s.b[s.i] <= '9' {
		s.i++
	}
	return s.i > start
}

func (s *scanner) space() {
	for s.i < len(s.b) && (s.b[s.i] == ' ' || s.b[s.i] == '\t' || s.b[s.i] == '\n' || s.b[s.i] == '\r') {
		s.i++
	}
}

func (s *scanner) at(c byte) bool { return s.i < len(s.b) && s.b[s.i] == c }

func (s *scanner) broken() error {
	if s.i >= len(s.b) {
		return fmt.Errorf("is no JSON document: it ends too early, after %d bytes", len(s.b))
	}
	return fmt.Errorf("is no JSON document: wrong character at byte %d", s.i)
}

// unescape decodes what text has checked.
func unescape(raw []byte, escaped bool) string {
	if !escaped {
		return string(raw)
	}
	var out string
	if err := json.Unmarshal(append(append([]byte{'"'}, raw...), '"'), &out); err != nil {
		return string(raw) // cannot be: the scanner accepts less than encoding/json
	}
	return out
}
