package strictjson

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
)

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
