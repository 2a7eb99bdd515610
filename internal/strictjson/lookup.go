package strictjson

import (
	"encoding/json"
	"strconv"
	"strings"
)

// Check says why a body is no document.
func Check(body []byte) error { return CheckWithin(body, MaxBytes) }

// CheckWithin is Check for a document of another greatest size.
func CheckWithin(body []byte, most int) error {
	_, err := lookup(body, most, nil)
	return err
}

// Lookup reads a whole document and returns the value at the steps of a JSON pointer as it is written, nil when nothing
// stands there. Names are compared byte by byte, after unescaping.
func Lookup(body []byte, steps []string) (value []byte, err error) {
	return lookup(body, MaxBytes, steps)
}

func lookup(body []byte, most int, steps []string) (value []byte, err error) {
	s, err := within(body, most)
	if err == nil {
		value, err = s.find(steps)
	}
	if err == nil {
		err = s.End()
	}
	if err != nil {
		return nil, err
	}
	return value, nil
}

// find steps over the value and returns what stands at these steps in it.
func (s *Scanner) find(steps []string) ([]byte, error) {
	start, c := s.at, s.Peek()
	if len(steps) > 0 && (c == '{' || c == '[') {
		return s.inside(steps)
	}
	err := s.Skip()
	if len(steps) > 0 {
		return nil, err
	}
	return s.body[start:s.at], err
}

// inside steps over an object or a list, and returns what stands at these steps in it, if there are any.
func (s *Scanner) inside(steps []string) (found []byte, err error) {
	var o Object
	object, wanted := s.Peek() == '{', -1
	if !object && len(steps) > 0 {
		wanted = index(steps[0])
	}
	for i := 0; ; i++ {
		var name []byte
		var more bool
		if object {
			name, more, err = s.Field(&o)
		} else {
			more, err = s.Element(i)
		}
		if err != nil || !more {
			return found, err
		}
		if i == wanted || object && len(steps) > 0 && string(name) == steps[0] {
			found, err = s.find(steps[1:])
		} else {
			err = s.Skip()
		}
		if err != nil {
			return nil, err
		}
	}
}

// Decode reads a whole document as values: nil, bool, string, json.Number, []any and map[string]any.
func Decode(body []byte) (value any, err error) {
	s, err := New(body)
	if err == nil {
		value, err = s.value()
	}
	if err == nil {
		err = s.End()
	}
	return value, err
}

func (s *Scanner) value() (any, error) {
	switch start, c := s.at, s.Peek(); c {
	case '{':
		var o Object
		fields := map[string]any{}
		for {
			name, more, err := s.Field(&o)
			if err != nil || !more {
				return fields, err
			}
			if fields[string(name)], err = s.value(); err != nil {
				return nil, err
			}
		}
	case '[':
		list := []any{}
		for {
			more, err := s.Element(len(list))
			if err != nil || !more {
				return list, err
			}
			v, err := s.value()
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
	case '"':
		text, err := s.Text()
		return string(text), err
	default:
		err := s.Skip()
		switch c {
		case 'n':
			return nil, err
		case 't', 'f':
			return c == 't', err
		}
		return json.Number(s.body[start:s.at]), err
	}
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
