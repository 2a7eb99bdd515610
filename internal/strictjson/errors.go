package strictjson

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"
)

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
