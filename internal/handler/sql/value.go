package sql

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/internal/strictjson"
)

type valueKind uint8

const (
	absent    valueKind = iota
	null                // JSON's null
	boolean             // text is 1 or 0
	number              // text is a literal of SQL, exact: an integer or a decimal
	text                // a string
	composite           // an object or a list, which no parameter may be
)

// value is what a parameter stands for.
type value struct {
	kind valueKind
	text string
}

// fields are the values of one message.
type fields struct {
	message []value     // by the slots of File.paths
	items   [][][]value // of each section, each item, by the slots of section.paths
}

// decode reads the fields that the statements name. It refuses a message that lacks one, so that it is dead-lettered
// as malformed and no statement sees it.
func (f *File) decode(body []byte) (*fields, error) {
	if len(f.paths) == 0 { // else the first of them reads the whole body
		if err := strictjson.Check(body); err != nil {
			return nil, err
		}
	}
	d := &fields{items: make([][][]value, len(f.sections))}
	var err error
	if d.message, err = read(body, f.paths); err != nil {
		return nil, err
	}
	for i := range f.sections {
		s := &f.sections[i]
		if s.each {
			if d.items[i], err = s.readItems(body); err != nil {
				return nil, fmt.Errorf("%v%w", s.list, err)
			}
		}
		if err := f.checkFields(s, d, i); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// checkFields looks whether every parameter of a section has a value.
func (f *File) checkFields(s *section, d *fields, number int) error {
	for _, st := range s.statements {
		for _, piece := range st.pieces {
			p := piece.param
			if p == nil || p.reserved != reservedNone {
				continue
			}
			if !s.each {
				if err := usable(d.message[p.message], f.paths[p.message].String()); err != nil {
					return err
				}
				continue
			}
			for i, item := range d.items[number] {
				name := s.list.String() + "[" + strconv.Itoa(i) + "]"
				if p.item >= 0 && len(s.paths[p.item]) > 0 {
					name += "." + s.paths[p.item].String()
				} else if p.item < 0 {
					name = f.paths[p.message].String()
				}
				v := d.get(p, item)
				if v.kind == absent && p.item >= 0 && p.message >= 0 {
					return fmt.Errorf("%s is missing, and so is %v", name, f.paths[p.message])
				}
				if err := usable(v, name); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func usable(v value, name string) error {
	switch v.kind {
	case absent:
		return fmt.Errorf("%s is missing", name)
	case composite:
		return fmt.Errorf("%s is an object or a list, where a value is wanted", name)
	}
	return nil
}

// get is the value of a field: the item's, else the message's.
func (d *fields) get(p *param, item []value) value {
	if p.item >= 0 && item[p.item].kind != absent {
		return item[p.item]
	}
	if p.message >= 0 {
		return d.message[p.message]
	}
	return value{}
}

func (s *section) readItems(body []byte) ([][]value, error) {
	list, err := strictjson.Lookup(body, s.list)
	switch {
	case err != nil:
		return nil, fmt.Errorf(": %w", err)
	case list == nil:
		return nil, errors.New(" is missing")
	case list[0] != '[':
		return nil, errors.New(" is not a list")
	}
	elements, err := strictjson.Elements(list, MaxItems+1)
	if err != nil {
		return nil, fmt.Errorf(": %w", err)
	}
	if len(elements) > MaxItems {
		return nil, fmt.Errorf(" has more than %d items", MaxItems)
	}
	items := make([][]value, len(elements))
	for i, e := range elements {
		if items[i], err = read(e, s.paths); err != nil {
			return nil, fmt.Errorf("[%d].%w", i, err)
		}
	}
	return items, nil
}

// read reads the values at these paths of a document.
func read(doc []byte, paths []path) ([]value, error) {
	if len(paths) == 0 {
		return nil, nil
	}
	values := make([]value, len(paths))
	for i, p := range paths {
		raw, err := strictjson.Lookup(doc, p)
		if err != nil {
			return nil, err
		}
		if raw == nil {
			continue
		}
		if values[i], err = valueOf(raw); err != nil {
			return nil, fmt.Errorf("%v: %w", p, err)
		}
	}
	return values, nil
}

func valueOf(raw []byte) (value, error) {
	switch raw[0] {
	case '{', '[':
		return value{kind: composite}, nil
	case 'n':
		return value{kind: null}, nil
	case 't':
		return value{boolean, "1"}, nil
	case 'f':
		return value{boolean, "0"}, nil
	case '"':
		s, err := strictjson.Unquote(raw)
		return value{text, s}, err
	}
	literal, err := exact(string(raw))
	return value{number, literal}, err
}

// maxDigits is how many digits a DECIMAL of MySQL may have.
const maxDigits = 65

// exact writes a JSON number as an exact literal of SQL: without an exponent, which would make it a float. So
// 9223372036854775807 and 12.50 arrive as they were written.
func exact(s string) (string, error) {
	mantissa, exponent, has := strings.Cut(strings.ToLower(s), "e")
	if !has {
		if len(s) > maxDigits+2 {
			return "", errTooManyDigits
		}
		return s, nil
	}
	e, err := strconv.Atoi(exponent)
	if err != nil || e > maxDigits || e < -maxDigits {
		return "", errTooManyDigits
	}
	sign := ""
	if strings.HasPrefix(mantissa, "-") {
		sign, mantissa = "-", mantissa[1:]
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	if e >= 0 {
		fraction += strings.Repeat("0", max(0, e-len(fraction)))
		whole, fraction = whole+fraction[:e], fraction[e:]
	} else {
		whole = strings.Repeat("0", max(0, -e-len(whole)+1)) + whole
		whole, fraction = whole[:len(whole)+e], whole[len(whole)+e:]+fraction
	}
	whole = strings.TrimLeft(whole, "0")
	if whole == "" {
		whole = "0"
	}
	if len(whole)+len(fraction) > maxDigits {
		return "", errTooManyDigits
	}
	if fraction == "" {
		return sign + whole, nil
	}
	return sign + whole + "." + fraction, nil
}

var errTooManyDigits = fmt.Errorf("the number has more than %d digits", maxDigits)

// run is one run of a statement: its values for one message and one item.
type run struct {
	msg    *consumer.Message
	fields *fields
	values []value // of the item, nil outside a list
	item   int     // its number, -1 outside a list
}

func (r run) value(p *param) value {
	switch p.reserved {
	case reservedKey:
		return value{text, r.msg.Key}
	case reservedTag:
		return value{text, r.msg.Tag}
	case reservedGroup:
		return value{text, r.msg.Group}
	case reservedAttempt:
		return value{number, strconv.Itoa(max(1, r.msg.Attempt))} // the fast path counts its attempt when it has failed
	}
	return r.fields.get(p, r.values)
}

// render writes the statement for the server. Numbers stand in it as they are, because a parameter of the protocol has
// no exact decimals; a string is handed to the driver, which knows how the connection quotes. Spaces keep a value from
// growing together with what stands beside it.
func (s *Statement) render(r run) (query string, args []any) {
	var b strings.Builder
	for _, piece := range s.pieces {
		b.WriteString(piece.text)
		if piece.param == nil {
			continue
		}
		args = r.value(piece.param).write(&b, args)
	}
	return b.String(), args
}

func (v value) write(b *strings.Builder, args []any) []any {
	switch v.kind {
	case text:
		b.WriteString(" ? ")
		return append(args, v.text)
	case null, absent, composite: // the latter two were refused
		b.WriteString(" NULL ")
	default:
		b.WriteByte(' ')
		b.WriteString(v.text)
		b.WriteByte(' ')
	}
	return args
}
