package daemon

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// syntax says what was wanted here.
func (s *scanner) syntax(want string) error {
	found := "the end"
	if s.at < len(s.body) {
		r, _ := utf8.DecodeRune(s.body[s.at:])
		found = strconv.QuoteRune(r)
	}
	return s.locate(fmt.Errorf("byte %d: want %s, found %s", s.at, want, found))
}

// wrong says what is wrong with the value that begins here.
func (s *scanner) wrong(what string) error {
	value := s.body[s.at:]
	if len(value) > 0 && value[0] == '"' {
		if end := bytes.IndexByte(value[1:], '"'); end >= 0 {
			value = value[:end+2]
		}
	} else if end := bytes.IndexAny(value, ",]} \t\r\n"); end > 0 {
		value = value[:end]
	}
	if len(value) == 0 {
		return s.syntax("a value")
	}
	return s.locate(fmt.Errorf("%s %s", cut(value), what))
}

// locate puts before err where in the message it is.
func (s *scanner) locate(err error) error {
	where := s.field
	if s.item != outside {
		where = strings.TrimSuffix("items["+strconv.Itoa(s.item)+"]."+s.field, ".")
	}
	if where == "" {
		return err
	}
	return fmt.Errorf("%s: %w", where, err)
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
