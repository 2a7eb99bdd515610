package daemon

import (
	"bytes"
	"errors"
	"unicode/utf16"
	"unicode/utf8"
)

// text reads a string and returns what is between its quotes, escapes and all.
func (s *scanner) text() (raw []byte, escaped bool, err error) {
	s.at++ // its quote
	start := s.at
	for s.at < len(s.body) {
		switch c := s.body[s.at]; {
		case c == '"':
			s.at++
			return s.body[start : s.at-1], escaped, nil
		case c < ' ':
			return nil, false, s.syntax("no raw control character in a string")
		case c == '\\':
			escaped = true
			if err := s.escape(); err != nil {
				return nil, false, err
			}
		default:
			s.at++
		}
	}
	return nil, false, s.syntax("the end of a string")
}

// escape steps over one escape sequence.
func (s *scanner) escape() error {
	s.at++ // its backslash
	switch s.peek() {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.at++
		return nil
	case 'u':
		if _, ok := hex4(s.body[s.at+1:]); ok {
			s.at += 5
			return nil
		}
	}
	return s.syntax("an escape sequence")
}

// unescape gives the text of a string. Half a surrogate pair is refused: every reader replaces it by the same character,
// which makes different texts equal.
func (s *scanner) unescape(raw []byte) ([]byte, error) {
	text := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			text = append(text, raw[i])
			continue
		}
		i++
		if raw[i] != 'u' {
			text = append(text, unescaped(raw[i]))
			continue
		}
		r, _ := hex4(raw[i+1:])
		i += 4
		if utf16.IsSurrogate(r) {
			var low rune
			if bytes.HasPrefix(raw[i+1:], []byte(`\u`)) {
				low, _ = hex4(raw[i+3:])
			}
			if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
				return nil, s.locate(errors.New("half a surrogate pair"))
			}
			i += 6
		}
		text = utf8.AppendRune(text, r)
	}
	return text, nil
}

func unescaped(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return c
}

func hex4(b []byte) (rune, bool) {
	if len(b) < 4 {
		return 0, false
	}
	var r rune
	for _, c := range b[:4] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}
