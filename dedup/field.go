package dedup

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
)

// Field is a member of the JSON in a body, at whatever depth: its name, and its value as a text or an integer. It is
// found by how it is written, in every way that encoders write a text, so that a body which is no valid JSON has it
// too. A name that is written with escapes is not found, nor perhaps one in a body that is no UTF-8.
type Field struct {
	Name, Value string
	OrKey       bool // or the value is the message's key
}

// In reports whether a message with this key and body has the field.
func (f Field) In(key string, body []byte) bool {
	if f.OrKey && key == f.Value {
		return true
	}
	return bytes.Contains(body, []byte(f.word())) && regexp.MustCompile(f.pattern()).Match(body)
}

// word stands in every body that has the field; looking for it is much cheaper than the pattern.
func (f Field) word() string {
	if len(f.texts()) == 1 {
		return f.Value
	}
	return f.Name
}

// pattern matches the field alike in Go, in MySQL and in MariaDB.
func (f Field) pattern() string {
	var values []string
	for _, text := range f.texts() {
		values = append(values, `"`+regexp.QuoteMeta(text)+`"`)
	}
	if _, err := strconv.ParseInt(f.Value, 10, 64); err == nil {
		values = append(values, f.Value)
	}
	return fmt.Sprintf(`"%s"[[:space:]]*:[[:space:]]*(%s)[[:space:]]*[],}]`, regexp.QuoteMeta(f.Name),
		strings.Join(values, "|"))
}

// texts are the ways in which encoders write the value as a text, without its quotation marks: as it is, with < > and &
// escaped, with everything escaped beyond ASCII, and besides with slashes escaped.
func (f Field) texts() (all []string) {
	var plain bytes.Buffer
	enc := json.NewEncoder(&plain)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(f.Value) // a text always can be
	html, _ := json.Marshal(f.Value)
	raw := strings.TrimSuffix(plain.String(), "\n")
	raw = raw[1 : len(raw)-1]
	var ascii strings.Builder
	for _, r := range raw {
		switch {
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&ascii, `\u%04x\u%04x`, high, low)
		case r > 0x7e:
			fmt.Fprintf(&ascii, `\u%04x`, r)
		default:
			ascii.WriteRune(r)
		}
	}
	for _, text := range []string{raw, string(html[1 : len(html)-1]), ascii.String(), strings.ReplaceAll(raw, "/", `\/`),
		strings.ReplaceAll(ascii.String(), "/", `\/`)} {
		if !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return all
}

// choose adds the condition that a row's message has the field.
func (f Field) choose(s *statement) {
	s.add(" AND (LOCATE(?, msg_body) > 0", []byte(f.word()))
	s.add(" AND CONVERT(msg_body USING utf8mb4) COLLATE utf8mb4_bin REGEXP ?", f.pattern())
	if f.OrKey {
		s.add(" OR msg_key = ?", []byte(f.Value))
	}
	s.add(")")
}
