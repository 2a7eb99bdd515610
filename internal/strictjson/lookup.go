package strictjson

import "strconv"

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
		if n, err := strconv.Atoi(steps[0]); err == nil && strconv.Itoa(n) == steps[0] { // 01 is no index
			wanted = n
		}
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

// Elements are the values of a list as they are written, at most so many; a list with more is read no further.
func Elements(list []byte, most int) (values [][]byte, err error) {
	s, err := New(list)
	if err != nil {
		return nil, err
	}
	for len(values) < most {
		more, err := s.Element(len(values))
		if err != nil {
			return nil, err
		}
		if !more {
			return values, s.End()
		}
		start := s.at
		if err := s.Skip(); err != nil {
			return nil, err
		}
		values = append(values, s.body[start:s.at])
	}
	return values, nil
}
