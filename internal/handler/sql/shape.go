package sql

import (
	"fmt"
	"slices"
	"strings"
)

// shape is a statement of a form whose runs for many messages can be joined into one statement with the same meaning:
//
//	UPDATE t SET a = a + :n, b = 'x' WHERE k = :k AND c = 'y'
//	SELECT a FROM t WHERE k = :k AND c = 'y' FOR UPDATE, also without FOR UPDATE
//	INSERT INTO t (a, b) VALUES (:a, 'x'), also with JSON_OBJECT or CONCAT of such values
//
// The first two need a unique index on k, or on some of the columns that are compared with parameters, the first
// integers or decimals in a, and more: see learn. Everything else runs message by message.
type shape struct {
	table  string // without quotes
	insert bool
	reads  bool // it is a SELECT
	locks  bool // and one FOR UPDATE

	// Of an INSERT.
	head   []part // up to VALUES
	values []part

	// Of an UPDATE or a SELECT.
	set      []part      // between SET and WHERE
	where    []part      // behind WHERE, without the conditions on the key
	key      []keyColumn // in the order of the conditions; learn puts them into that of the index
	adds     []addend
	assigned []string // all columns that are written
	tested   []string // columns of the other conditions
	assigns  bool     // a parameter is a column's new value

	// What learn found out.
	index   string // a unique one on columns of the key
	unique  int    // how many these are: the first of the key
	repeats bool   // runs with the same key may be added up
}

// maxKeyColumns is how many columns a key may have.
const maxKeyColumns = 4

// keyColumn is a column of the key.
type keyColumn struct {
	name    string // without quotes
	value   param
	integer bool // else it is a string; learn finds out
}

// oneInteger reports whether the key is one column with integers.
func (sh *shape) oneInteger() bool { return len(sh.key) == 1 && sh.key[0].integer }

// addend is what is added to a column, or taken off.
type addend struct {
	column string
	value  param
	scale  int // decimal places of the column
}

// reader steps over the tokens of a statement. After a token that does not fit nothing fits any more.
type reader struct {
	tokens []token
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
func (r *reader) take(ok bool) {
	t := r.peek()
	if r.bad = r.bad || !ok || t.kind == kindEnd; !r.bad {
		r.at++
		r.parts = append(r.parts, part{text: " " + t.raw(), param: t.param})
	}
}

// try moves over a token if ok, and reports whether it did.
func (r *reader) try(ok bool) bool {
	if ok {
		r.take(true)
	}
	return ok && !r.bad
}

func (r *reader) word(w string)       { r.take(r.peek().is(w)) }
func (r *reader) mark(c string)       { r.take(r.peek().mark(c)) }
func (r *reader) cut() (parts []part) { parts, r.parts = r.parts, nil; return parts }
func (r *reader) end() bool           { return r.at == len(r.tokens) }
func (r *reader) has(words ...string) bool {
	return slices.ContainsFunc(words, r.peek().is)
}

func (r *reader) name() string {
	t := r.peek()
	r.take(t.isColumn())
	return t.text
}

// list reads one or more, with this between them.
func (r *reader) list(between string, one func()) {
	for one(); r.try(r.peek().mark(between) || r.peek().is(between)); {
		one()
	}
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
		return quoteName(t.text)
	}
	return t.text
}

// constant takes a value that is the same in each run: a literal, or the time, which is the same to all rows of a
// statement.
func (r *reader) constant() {
	switch {
	case r.try(r.has("NOW", "UTC_TIMESTAMP", "CURRENT_TIMESTAMP", "LOCALTIMESTAMP")):
		if r.mark("("); !r.bad { // behind a space the server takes NOW for a function of the user's
			r.parts[len(r.parts)-1].text = "("
		}
		r.try(r.peek().isNumber())
		r.mark(")")
	case r.try(r.peek().mark("-")):
		r.take(r.peek().isNumber())
	default:
		r.take(r.peek().kind == kindString || r.peek().isNumber() || r.has("NULL", "TRUE", "FALSE"))
	}
}

// shapeOf reads the form of a statement. When it has another, the result says what is in the way, and what is faster.
func shapeOf(s *Statement) (*shape, *Unjoined) {
	not := func(why, faster string) (*shape, *Unjoined) { return nil, &Unjoined{s.At, why, faster} }
	if s.expect != nil && (len(s.expect.counts) != 1 || s.expect.counts[0] != 1) { // of a key there is one at most
		return not("it expects another number of rows than 1", "-- expect 1, for a row that is found by its key")
	}
	r, sh, form := &reader{tokens: s.tokens}, &shape{}, updateForm
	switch {
	case r.has("UPDATE", "SELECT") && s.expect == nil:
		return not("any number of rows will do", "-- expect 1 behind it, for a row that is found by its key")
	case r.has("UPDATE"):
		r.update(sh)
	case r.has("SELECT"):
		form = selectForm
		r.find(sh)
	case r.has("INSERT"):
		form = insertForm
		r.insert(sh)
	default:
		return not("it is no UPDATE, no SELECT and no INSERT … VALUES", noForm)
	}
	switch {
	case r.end() && r.bad:
		return not("no column of its WHERE is compared with a parameter alone", form)
	case r.bad || !r.end():
		return not(fmt.Sprintf("%q is not of the form that is joined", r.peek().text), form)
	}
	return sh, nil
}

func (r *reader) update(sh *shape) {
	r.word("UPDATE")
	sh.table = r.name()
	r.word("SET")
	r.cut()
	r.list(",", func() { r.assignment(sh) })
	sh.set = r.cut()
	r.conditions(sh)
}

// find reads a SELECT: what it selects does not matter, because its rows are only counted.
func (r *reader) find(sh *shape) {
	sh.reads = true
	r.word("SELECT")
	r.list(",", func() {
		if !r.try(r.peek().mark("*") || r.peek().isColumn()) {
			r.constant()
		}
	})
	r.word("FROM")
	sh.table = r.name()
	r.conditions(sh)
	if sh.locks = r.try(r.has("FOR")); sh.locks {
		r.word("UPDATE")
	}
}

func (r *reader) conditions(sh *shape) {
	r.word("WHERE")
	r.list("AND", func() {
		r.cut() // WHERE, AND
		r.condition(sh)
	})
	r.bad = r.bad || len(sh.key) == 0
}

// assignment reads column = value.
func (r *reader) assignment(sh *shape) {
	column := r.name()
	r.mark("=")
	r.bad = r.bad || containsFold(sh.assigned, column) // the second would start from what the first has written
	sh.assigned = append(sh.assigned, column)
	switch t := r.peek(); {
	case r.try(t.isParam()):
		sh.assigns = true
	case r.try(t.isColumn() && strings.EqualFold(t.text, column)):
		r.take(r.peek().mark("+") || r.peek().mark("-"))
		a := addend{column: column, value: r.peek().param}
		if number := number(r.peek().text); r.peek().isNumber() {
			a.value = func(run) any { return number }
		}
		r.take(a.value != nil)
		if sh.adds = append(sh.adds, a); !r.bad {
			r.parts[len(r.parts)-1].add = len(sh.adds)
		}
	default:
		r.constant()
	}
}

// condition reads column = :key, and conditions that are the same in each run.
func (r *reader) condition(sh *shape) {
	column := r.name()
	if r.peek().mark("=") && r.at+1 < len(r.tokens) && r.tokens[r.at+1].isParam() {
		r.mark("=")
		known := slices.ContainsFunc(sh.key, func(k keyColumn) bool { return strings.EqualFold(k.name, column) })
		sh.key = append(sh.key, keyColumn{name: column, value: r.peek().param})
		r.take(!known && len(sh.key) <= maxKeyColumns)
		return
	}
	sh.tested = append(sh.tested, column)
	if r.try(r.has("IS")) {
		r.try(r.has("NOT"))
		r.word("NULL")
	} else {
		r.take(r.peek().mark("=") || r.peek().mark("<") || r.peek().mark(">"))
		if t := r.peek(); (t.mark("=") || t.mark(">")) && !r.bad {
			r.parts[len(r.parts)-1].text += t.text // <=, >=, <>
			r.at++
		}
		r.constant()
	}
	sh.where = append(append(sh.where, part{text: " AND"}), r.cut()...)
}

func (r *reader) insert(sh *shape) {
	sh.insert = true
	r.word("INSERT")
	r.word("INTO")
	sh.table = r.name()
	r.mark("(")
	r.list(",", func() { r.name() })
	r.mark(")")
	r.word("VALUES")
	sh.head = r.cut()
	r.mark("(")
	r.list(",", r.value)
	r.mark(")")
	sh.values = r.cut()
}

// value takes a parameter, a constant, or what is made of these and of nothing else.
func (r *reader) value() {
	switch {
	case r.try(r.peek().isParam()):
	case r.try(r.has("JSON_OBJECT", "CONCAT")):
		r.mark("(")
		r.list(",", r.value)
		r.mark(")")
	default:
		r.constant()
	}
}
