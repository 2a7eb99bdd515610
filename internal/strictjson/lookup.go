package strictjson

import (
	"encoding/json"
	"strconv"
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
	switch start, c := s.at, s.Peek(); {
	case len(steps) == 0:
		err := s.Skip()
		return s.body[start:s.at], err
	case c == '{':
		return s.object(steps)
	case c == '[':
		return s.list(steps)
	}
	return nil, s.Skip()
}

func (s *Scanner) object(steps []string) (found []byte, err error) {
	var o Object
	for {
		name, more, err := s.Field(&o)
		if err != nil || !more {
			return found, err
		}
		if len(steps) > 0 && string(name) == steps[0] {
			found, err = s.find(steps[1:])
		} else {
			err = s.Skip()
		}
		if err != nil {
			return nil, err
		}
	}
}

func (s *Scanner) list(steps []string) (found []byte, err error) {
	wanted := -1
	if len(steps) > 0 {
		wanted = index(steps[0])
	}
	for i := 0; ; i++ {
		more, err := s.Element(i)
		if err != nil || !more {
			return found, err
		}
		if i == wanted {
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

// index is a step as the number of a list's element; -1 when it is none, as 01.
func index(step string) int {
	n, err := strconv.Atoi(step)
	if err != nil || strconv.Itoa(n) != step {
		return -1
	}
	return n
}
