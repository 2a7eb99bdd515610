package sql

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// shape is a statement of a form whose runs for many messages can be joined into one statement with the same meaning:
//
//	UPDATE t SET a = a + :n, b = 'x' WHERE k = :k AND c = 'y'
//	INSERT INTO t (a, b) VALUES (:a, 'x')
//
// The first needs a unique index on k, or on all columns that are compared with parameters, integers in a, and more:
// see learn. Everything else runs message by message.
type shape struct {
	table  string // without quotes
	insert bool

	// Of an INSERT.
	head   string // up to VALUES
	values []part

	// Of an UPDATE.
	set      []part      // between SET and WHERE
	where    []part      // behind WHERE, without the conditions on the key
	key      []keyColumn // in the order of the conditions; learn puts them into that of the index
	adds     []addend    // each is added to a column, or taken off
	adding   []string    // these columns
	assigned []string    // all columns that are written
	tested   []string    // columns of the other conditions
	assigns  bool        // a parameter is a column's new value

	// What learn found out.
	index   string // a unique one on the key alone
	repeats bool   // runs with the same key may be added up
}

// maxKeyColumns is how many columns a key may have.
const maxKeyColumns = 4

// keyColumn is a column of the key.
type keyColumn struct {
	name    string // without quotes
	param   *param // its value
	integer bool   // else it is a string; learn finds out
}

// oneInteger reports whether the key is one column with integers.
func (sh *shape) oneInteger() bool { return len(sh.key) == 1 && sh.key[0].integer }

// rowKey is the values of a key.
type rowKey [maxKeyColumns]value

// addend is a parameter, or a number.
type addend struct {
	param *param
	n     int64
}

// part is a piece of a statement: text, or a parameter.
type part struct {
	text  string
	param *param
	add   int // the number of the addend that stands here, from 1; 0: none
}

// reader steps over the tokens of a statement. After a token that does not fit nothing fits any more.
type reader struct {
	tokens []token
	params []*param // of the parameters that are left
	at     int
	bad    bool
	parts  []part // what was taken since the last cut
}

func (r *reader) peek() token {
	if r.at < len(r.tokens) {
		return r.tokens[r.at]
	}
	return token{}
}

// take moves over a token if ok, and keeps it.
func (r *reader) take(ok bool) (token, *param) {
	t := r.peek()
	if !ok || t.kind == kindEnd {
		r.bad = true
	}
	if r.bad {
		return token{}, nil
	}
	r.at++
	var p *param
	if t.kind == kindParam {
		p, r.params = r.params[0], r.params[1:]
	}
	r.parts = append(r.parts, part{text: t.raw(), param: p})
	return t, p
}

func (r *reader) word(w string)       { r.take(r.peek().is(w)) }
func (r *reader) mark(c string)       { r.take(r.peek().mark(c)) }
func (r *reader) name() string        { t, _ := r.take(r.peek().isColumn()); return t.text }
func (r *reader) cut() (parts []part) { parts, r.parts = r.parts, nil; return parts }
func (r *reader) end() bool           { return r.at == len(r.tokens) }
func (r *reader) has(words ...string) bool {
	return slices.ContainsFunc(words, func(w string) bool { return r.peek().is(w) })
}

// isColumn reports whether t can be the name of a column or a table, and nothing else.
func (t token) isColumn() bool {
	return t.isName() && (t.kind == kindName || !t.isNumber() && !slices.ContainsFunc(
		[]string{"NULL", "TRUE", "FALSE", "NOT", "IN", "CASE", "DEFAULT"}, t.is))
}

func (t token) isNumber() bool {
	return t.kind == kindWord && strings.Trim(t.text, "0123456789") == ""
}

// raw is the token as it may be written again.
func (t token) raw() string {
	if t.kind == kindName {
		return "`" + strings.ReplaceAll(t.text, "`", "``") + "`"
	}
	return t.text
}

// now are functions that give the same to all rows of a statement.
var now = []string{"NOW", "UTC_TIMESTAMP", "CURRENT_TIMESTAMP", "LOCALTIMESTAMP"}

// constant takes a value that is the same in each run: a literal, or the time.
func (r *reader) constant() {
	switch t := r.peek(); {
	case slices.ContainsFunc(now, t.is):
		r.take(true)
		r.mark("(")
		if r.peek().isNumber() {
			r.take(true)
		}
		r.mark(")")
	case t.mark("-"):
		r.take(true)
		r.take(r.peek().isNumber())
	default:
		r.take(t.kind == kindString || t.isNumber() || r.has("NULL", "TRUE", "FALSE"))
	}
}

// shapeOf reads the form of a statement. When it has another, why says what is in the way, and faster what is not.
func shapeOf(s *Statement) (_ *shape, why, faster string) {
	if s.expect != nil && (len(s.expect.counts) != 1 || s.expect.counts[0] != 1 || s.expect.orMore) {
		return nil, "it expects another number of rows than 1", "-- expect 1, for a row that is found by its key"
	}
	r := &reader{tokens: s.tokens}
	for _, piece := range s.pieces {
		if piece.param != nil {
			r.params = append(r.params, piece.param)
		}
	}
	var sh *shape
	switch {
	case s.verb == "UPDATE" && r.has("UPDATE") && s.expect == nil:
		return nil, "it may change any number of rows", "-- expect 1 behind it, for a row that is found by its key"
	case s.verb == "UPDATE" && r.has("UPDATE"):
		sh, faster = r.update(), updateForm
	case s.verb == "INSERT" && r.has("INSERT"):
		sh, faster = r.insert(), insertForm
	default:
		return nil, "it is neither an UPDATE nor an INSERT … VALUES", noForm
	}
	switch {
	case r.end() && r.bad:
		return nil, "no column of its WHERE is compared with a parameter alone", faster
	case r.bad || !r.end():
		return nil, fmt.Sprintf("%q is not of the form that is joined", r.peek().text), faster
	}
	return sh, "", ""
}

func (r *reader) update() *shape {
	sh := &shape{}
	r.word("UPDATE")
	sh.table = r.name()
	r.word("SET")
	r.cut()
	for {
		r.assignment(sh)
		if !r.peek().mark(",") || r.bad {
			break
		}
		r.take(true)
	}
	sh.set = r.cut()
	r.word("WHERE")
	for {
		r.cut() // WHERE, AND
		r.condition(sh)
		if !r.has("AND") || r.bad {
			break
		}
		r.take(true)
	}
	if len(sh.key) == 0 {
		r.bad = true
	}
	return sh
}

// assignment reads column = value.
func (r *reader) assignment(sh *shape) {
	column := r.name()
	r.mark("=")
	if containsFold(sh.assigned, column) {
		r.bad = true // the second would start from what the first has written
	}
	sh.assigned = append(sh.assigned, column)
	switch t := r.peek(); {
	case t.kind == kindParam:
		r.take(true)
		sh.assigns = true
	case t.isColumn() && strings.EqualFold(t.text, column):
		r.take(true)
		r.take(r.peek().mark("+") || r.peek().mark("-"))
		sh.adding = append(sh.adding, column)
		t, p := r.take(r.peek().kind == kindParam || r.peek().isNumber() && len(r.peek().text) < 10)
		if r.bad {
			return
		}
		a := addend{param: p}
		if p == nil {
			a.n, _ = strconv.ParseInt(t.text, 10, 64) // nine digits at most
		}
		sh.adds = append(sh.adds, a)
		r.parts[len(r.parts)-1].add = len(sh.adds)
	default:
		r.constant()
	}
}

// condition reads column = :key, and conditions that are the same in each run.
func (r *reader) condition(sh *shape) {
	column := r.name()
	if r.peek().mark("=") && r.at+1 < len(r.tokens) && r.tokens[r.at+1].kind == kindParam {
		r.take(true)
		known := slices.ContainsFunc(sh.key, func(k keyColumn) bool { return strings.EqualFold(k.name, column) })
		if _, p := r.take(!known && len(sh.key) < maxKeyColumns); p != nil {
			sh.key = append(sh.key, keyColumn{name: column, param: p})
		}
		return
	}
	sh.tested = append(sh.tested, column)
	if r.has("IS") {
		r.take(true)
		if r.has("NOT") {
			r.take(true)
		}
		r.word("NULL")
	} else {
		r.take(r.peek().mark("=") || r.peek().mark("<") || r.peek().mark(">"))
		if r.peek().mark("=") || r.peek().mark(">") {
			r.parts[len(r.parts)-1].text += r.peek().text // <=, >=, <>
			r.at++
		}
		r.constant()
	}
	sh.where = append(append(sh.where, part{text: "AND"}), r.cut()...)
}

func (r *reader) insert() *shape {
	sh := &shape{insert: true}
	r.word("INSERT")
	r.word("INTO")
	sh.table = r.name()
	r.mark("(")
	for {
		r.name()
		if !r.peek().mark(",") || r.bad {
			break
		}
		r.take(true)
	}
	r.mark(")")
	r.word("VALUES")
	for _, p := range r.cut() {
		sh.head += p.text + " "
	}
	r.mark("(")
	for {
		if r.peek().kind == kindParam {
			r.take(true)
		} else {
			r.constant()
		}
		if !r.peek().mark(",") || r.bad {
			break
		}
		r.take(true)
	}
	r.mark(")")
	sh.values = r.cut()
	return sh
}
