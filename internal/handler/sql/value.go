package sql

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strconv"
	"strings"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/internal/strictjson"
)

// number is a literal of SQL, exact: an integer or a decimal. It, a string, a bool and nil are the values that a
// parameter may have.
type number string

// run is one run of a section's statements: for one message and one item.
type run struct {
	msg    *consumer.Message // set when it runs: it counts its attempts
	in     *section
	values []any // of in.fields
	item   int   // its number; 0 outside a list
}

func (r run) value(p param) any { return p(r) }

// decoded are the runs of one message, by section. A section that is none of a list has one.
type decoded [][]run

// decode reads the fields that the statements name. It refuses a message that lacks one, so that it is dead-lettered
// as malformed and no statement sees it.
func (f *File) decode(body []byte) (decoded, error) {
	doc, err := strictjson.Decode(body)
	if err != nil {
		return nil, err
	}
	d := make(decoded, len(f.sections))
	for i, s := range f.sections {
		items := []any{doc}
		if s.each {
			if items, err = s.items(doc); err != nil {
				return nil, fmt.Errorf("%v %w", s.list, err)
			}
		}
		d[i] = make([]run, len(items))
		for n, item := range items {
			r := run{in: s, values: make([]any, len(s.fields)), item: n}
			for j, field := range s.fields {
				if r.values[j], err = s.value(doc, item, n, field); err != nil {
					return nil, err
				}
			}
			d[i][n] = r
		}
	}
	return d, nil
}

func (s *section) items(doc any) ([]any, error) {
	list, found := strictjson.At(doc, s.list)
	items, ok := list.([]any)
	switch {
	case !found:
		return nil, errors.New("is missing")
	case !ok:
		return nil, errors.New("is not a list")
	case len(items) > MaxItems:
		return nil, fmt.Errorf("has more than %d items", MaxItems)
	}
	return items, nil
}

// value is the value of a field for item n.
func (s *section) value(doc, item any, n int, f field) (any, error) {
	name := f.path.String()
	if f.ofItem {
		name = strings.TrimSuffix(fmt.Sprintf("%v[%d].%s", s.list, n, name), ".")
	} else {
		item = doc
	}
	v, found := strictjson.At(item, f.path)
	if !found && f.ofItem {
		if v, found = strictjson.At(doc, f.path); !found {
			return nil, fmt.Errorf("%s is missing, and so is %v", name, f.path)
		}
	}
	if !found {
		return nil, fmt.Errorf("%s is missing", name)
	}
	switch v := v.(type) {
	case map[string]any, []any:
		return nil, fmt.Errorf("%s is an object or a list, where a value is wanted", name)
	case json.Number:
		literal, err := exact(string(v))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		return literal, nil
	}
	return v, nil
}

// maxDigits is how many digits a DECIMAL of MySQL may have.
const maxDigits = 65

// exact writes a JSON number without an exponent, which would make it a float. So 9223372036854775807 and 12.50 arrive
// as they were written.
func exact(s string) (number, error) {
	mantissa, exponent, has := strings.Cut(strings.ToLower(s), "e")
	if has {
		e, err := strconv.Atoi(exponent)
		_, fraction, _ := strings.Cut(mantissa, ".")
		if err != nil || e > maxDigits || e < -maxDigits || len(mantissa) > 2*maxDigits {
			return "", errTooManyDigits
		}
		exact, _ := new(big.Rat).SetString(s)
		s = exact.FloatString(max(0, len(fraction)-e))
	}
	if len(s) > maxDigits+2 || has && len(strings.Trim(s, "-"))-strings.Count(s, ".") > maxDigits {
		return "", errTooManyDigits
	}
	return number(s), nil
}

var errTooManyDigits = fmt.Errorf("the number has more than %d digits", maxDigits)

// literal is a value as it stands in a statement; of a string it is the place of a parameter.
func literal(v any) string {
	switch v := v.(type) {
	case number:
		return string(v)
	case bool:
		if v {
			return "1"
		}
		return "0"
	case string:
		return "?"
	}
	return "NULL"
}

// shown is the statement with its values, for people: a string stands in quotes, as Go would write it.
func (s *Statement) shown(r run) string {
	var w statement
	w.parts(s.parts, func(p param) any {
		v := r.value(p)
		if text, ok := v.(string); ok {
			return number(strconv.Quote(text))
		}
		return v
	})
	return strings.Join(strings.Fields(w.String()), " ")
}

// statement is one that is being written, with its arguments.
type statement struct {
	strings.Builder
	args []any
}

// parts writes pieces with their values.
func (w *statement) parts(parts []part, value func(param) any) {
	for _, p := range parts {
		if p.param == nil {
			w.WriteString(p.text)
		} else {
			w.value(value(p.param))
		}
	}
}

// value writes a value. Numbers stand in the statement as they are, because a parameter of the protocol has no exact
// decimals; a string is handed to the driver, which knows how the connection quotes. Spaces keep it from growing
// together with what stands beside it.
func (w *statement) value(v any) {
	if _, ok := v.(string); ok {
		w.args = append(w.args, v)
	}
	w.WriteString(" " + literal(v) + " ")
}
