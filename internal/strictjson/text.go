package strictjson

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf16"
	"unicode/utf8"
)

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
	for _, c := range b[2:6] {
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
		unit = unit<<4 | rune(c)
	}
	return unit, true
}
