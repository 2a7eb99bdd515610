package strictjson

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// Limits of a document. Readers go into objects and lists by recursion, so MaxDepth bounds the stack and MaxBytes the
// memory.
const (
	MaxBytes = 256 << 10
	MaxDepth = 1000 // objects and lists, one inside the other
)

// Reader stands in a document, in front of a value or of a field's name.
type Reader struct {
	jsontext.Decoder
	body   []byte
	buffer bytes.Buffer // the decoder reads one where it is
}

var readers = sync.Pool{New: func() any { return new(Reader) }}

// Read lets value read a document's value, and refuses the document if value does, or when it is none. Value must not
// keep the reader, and returns its errors as they are.
func Read(body []byte, value func(*Reader) error) error { return within(body, MaxBytes, value) }

func within(body []byte, most int, value func(*Reader) error) error {
	switch {
	case len(body) == 0:
		return errors.New("the body is empty")
	case len(body) > most:
		return fmt.Errorf("the body has %d bytes, may have %d", len(body), most)
	case bytes.HasPrefix(body, []byte("\xef\xbb\xbf")):
		return errors.New("the body begins with a byte order mark")
	case !utf8.Valid(body):
		return fmt.Errorf("the body is not UTF-8: byte %d", validPrefix(body))
	}
	if bytes.Count(body, []byte("["))+bytes.Count(body, []byte("{")) > MaxDepth {
		if at, _ := structure(body); at >= 0 {
			return fmt.Errorf("byte %d: nested deeper than %d", at, MaxDepth)
		}
	}
	r := readers.Get().(*Reader)
	defer readers.Put(r)
	r.begin(body)
	if err := value(r); err != nil {
		wrong := new(jsontext.SyntacticError)
		if errors.As(err, &wrong) || errors.Is(err, io.EOF) { // told alike, whatever was looked for
			r.begin(body)
			err = cmp.Or(r.SkipValue(), err)
		}
		return inWords(body, err)
	}
	if rest := bytes.TrimLeft(body[r.InputOffset():], " \t\r\n"); len(rest) > 0 {
		return want(body, len(body)-len(rest), "the end of the body after the message")
	}
	return nil
}

// begin puts the reader in front of the document.
func (r *Reader) begin(body []byte) {
	r.body, r.buffer = body, *bytes.NewBuffer(body)
	r.Reset(&r.buffer)
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

// structure is where the document goes deeper than it may, or -1, and whether it ends inside a string.
func structure(body []byte) (tooDeep int, quoted bool) {
	depth := 0
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case c == '"':
			quoted = !quoted
		case quoted && c == '\\':
			i++
		case quoted:
		case c == '[' || c == '{':
			if depth++; depth > MaxDepth {
				return i, false
			}
		case c == ']' || c == '}':
			depth--
		}
	}
	return -1, quoted
}

// want says what should stand at a byte of the document.
func want(body []byte, at int, what string) error {
	found := "the end"
	if at < len(body) {
		r, _ := utf8.DecodeRune(body[at:])
		found = strconv.QuoteRune(r)
	}
	return fmt.Errorf("byte %d: want %s, found %s", at, what, found)
}

// inWords says in few characters of the body what is wrong with it; other errors stay as they are.
func inWords(body []byte, err error) error {
	if errors.Is(err, io.EOF) { // there is nothing but space
		err = &jsontext.SyntacticError{ByteOffset: int64(len(body)), Err: io.ErrUnexpectedEOF}
	}
	wrong, ok := errors.AsType[*jsontext.SyntacticError](err)
	if !ok {
		return err
	}
	why := string(cut([]byte(wrong.Err.Error()), 80))
	switch {
	case errors.Is(err, jsontext.ErrDuplicateName):
		why = fmt.Sprintf("field %q comes twice", cut([]byte(wrong.JSONPointer.LastToken()), 40))
	case strings.HasPrefix(why, "invalid surrogate pair"):
		why = "half a surrogate pair"
	case errors.Is(err, io.ErrUnexpectedEOF):
		what, text := "more", bytes.TrimRight(body, " \t\r\n")
		if _, quoted := structure(body); quoted {
			what = "the end of a string"
		} else if len(text) == 0 || bytes.IndexByte([]byte(":,["), text[len(text)-1]) >= 0 {
			what = "a value"
		}
		return want(body, int(wrong.ByteOffset), what)
	}
	return fmt.Errorf("byte %d: %s", wrong.ByteOffset, why)
}

// cut shortens what an error repeats of the body, to whole characters.
func cut(text []byte, most int) []byte {
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return append(bytes.Clone(text[:most]), "…"...)
}

// Fields reads the object that a document must be, and gives each name to field, which reads its value.
func (r *Reader) Fields(field func(name []byte) error) error {
	if r.PeekKind() != '{' {
		return r.want("a JSON object")
	}
	if _, err := r.ReadToken(); err != nil {
		return err
	}
	for r.PeekKind() != '}' {
		name, err := r.Text()
		if err == nil {
			err = field(name)
		}
		if err != nil {
			return err
		}
	}
	_, err := r.ReadToken()
	return err
}

// want says what should stand where the reader does.
func (r *Reader) want(what string) error {
	return want(r.body, len(r.body)-len(bytes.TrimLeft(r.UnreadBuffer(), " \t\r\n")), what)
}

// Elements reads a list, and has element read each of it.
func (r *Reader) Elements(element func(i int) error) error {
	if r.PeekKind() != '[' {
		return r.want("a JSON list")
	}
	if _, err := r.ReadToken(); err != nil {
		return err
	}
	for i := 0; r.PeekKind() != ']'; i++ {
		if err := element(i); err != nil {
			return err
		}
	}
	_, err := r.ReadToken()
	return err
}

// Text reads a string. What it returns is part of the document where nothing is escaped.
func (r *Reader) Text() ([]byte, error) {
	v, err := r.raw()
	if err != nil {
		return nil, err
	}
	return Unquote(v)
}

// raw reads a value, as it is written in the document.
func (r *Reader) raw() ([]byte, error) {
	v, err := r.ReadValue()
	end := int(r.InputOffset())
	return r.body[end-len(v) : end], err
}

// Unquote gives the text of a string as it is written, quotes and all.
func Unquote(quoted []byte) ([]byte, error) {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return quoted[1 : len(quoted)-1], nil
	}
	return jsontext.AppendUnquote(nil, quoted)
}

// Natural reads an integer literal from 1 to most: digits only, no sign, fraction, exponent or leading zero.
func (r *Reader) Natural(most int64) (int64, error) {
	v, err := r.raw()
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil || n < 1 || n > most {
		return 0, refuse(v, "is not an integer literal between 1 and "+strconv.FormatInt(most, 10))
	}
	return n, nil
}

// Refuse says what is wrong with the value, of which it repeats the beginning.
func (r *Reader) Refuse(what string) error {
	v, err := r.raw()
	if err != nil {
		return err
	}
	return refuse(v, what)
}

func refuse(value []byte, what string) error {
	return errors.New(string(cut(value, 40)) + " " + what)
}

// Check says why a body is no document.
func Check(body []byte) error { return CheckWithin(body, MaxBytes) }

// CheckWithin is Check for a document of another greatest size.
func CheckWithin(body []byte, most int) error {
	return within(body, most, func(r *Reader) error { return r.SkipValue() })
}

// Lookup reads a whole document and returns the value at the steps of a JSON pointer as it is written, nil when nothing
// stands there. Names are compared byte by byte, after unescaping.
func Lookup(body []byte, steps []string) (value []byte, err error) {
	err = Read(body, func(r *Reader) (err error) {
		value, err = r.find(steps)
		return err
	})
	if err != nil {
		return nil, err
	}
	return value, nil
}

// find reads the value and returns what stands at these steps in it.
func (r *Reader) find(steps []string) (found []byte, err error) {
	if len(steps) == 0 {
		return r.raw()
	}
	next := func(here bool) (err error) {
		if !here {
			return r.SkipValue()
		}
		found, err = r.find(steps[1:])
		return err
	}
	switch r.PeekKind() {
	case '{':
		err = r.Fields(func(name []byte) error { return next(string(name) == steps[0]) })
	case '[':
		wanted := index(steps[0])
		err = r.Elements(func(i int) error { return next(i == wanted) })
	default:
		err = r.SkipValue()
	}
	return found, err
}

// Decode reads a whole document as values: nil, bool, string, json.Number, []any and map[string]any.
func Decode(body []byte) (value any, err error) {
	if err := Check(body); err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	err = d.Decode(&value)
	return value, err
}

// At is what stands in a decoded document at the steps of a JSON pointer.
func At(value any, steps []string) (_ any, found bool) {
	for _, step := range steps {
		switch in := value.(type) {
		case map[string]any:
			if value, found = in[step]; !found {
				return nil, false
			}
		case []any:
			i := index(step)
			if i < 0 || i >= len(in) {
				return nil, false
			}
			value = in[i]
		default:
			return nil, false
		}
	}
	return value, true
}

var (
	tildes   = strings.NewReplacer("~0", "", "~1", "")
	unescape = strings.NewReplacer("~0", "~", "~1", "/")
)

// Steps splits a JSON pointer (RFC 6901) without its first slash; false when a ~ is followed by neither 0 nor 1.
func Steps(pointer string) (steps []string, ok bool) {
	if strings.Contains(tildes.Replace(pointer), "~") {
		return nil, false
	}
	steps = strings.Split(pointer, "/")
	for i, step := range steps {
		steps[i] = unescape.Replace(step)
	}
	return steps, true
}

// index is a step as the number of a list's element; -1 when it is none, as 01.
func index(step string) int {
	n, err := strconv.Atoi(step)
	if err != nil || strconv.Itoa(n) != step {
		return -1
	}
	return n
}
