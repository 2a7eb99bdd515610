package sql

import (
	"slices"
	"strings"
)

// Query is a SELECT in a file, for whoever looks instead of handling messages.
type Query struct {
	Text   string   // with ? where a value belongs
	Params []string // the name of each value, in that order
}

// LoadQuery reads the file with this name. It must hold one SELECT, which locks nothing, with each of these parameters,
// in the order of the alphabet, and no others. Its error is an [*Error] with line and column, or [ErrFile].
func LoadQuery(name string, params ...string) (q Query, err error) {
	f, err := Load(name, nil)
	if err != nil {
		return q, err
	}
	var in *section
	var s *Statement
	for in, s = range f.all {
	}
	if f.count() > 1 || in.each || s.expect != nil || s.writes() {
		return q, f.refuse(s.At, "the file must hold one SELECT, and no directive")
	}
	for i, t := range s.tokens {
		if t.is("LOCK") || i > 0 && s.tokens[i-1].is("FOR") && (t.is("UPDATE") || t.is("SHARE")) {
			return q, f.refuse(t.at, "%s is refused: the SELECT may lock no rows", t.text)
		}
		if t.isParam() {
			q.Params = append(q.Params, t.text)
		}
	}
	if !slices.Equal(slices.Compact(slices.Sorted(slices.Values(q.Params))), params) {
		return q, f.refuse(s.At, "the SELECT must have the parameters :%s, and no others", strings.Join(params, ", :"))
	}
	for _, p := range s.parts {
		if p.param != nil {
			p.text = " ? "
		}
		q.Text += p.text
	}
	return q, nil
}
