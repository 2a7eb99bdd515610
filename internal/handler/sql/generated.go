package sql

import (
	"context"
	stdsql "database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// checkGenerated finds the statements that write a generated column. MySQL refuses them when they are prepared, MariaDB
// once for each row, so that each message would become a letter.
func (f *File) checkGenerated(ctx context.Context, conn *stdsql.Conn) (refused []*Error, err error) {
	const query = "SELECT table_name, column_name FROM information_schema.columns WHERE generation_expression <> '' AND " +
		"table_schema = DATABASE() AND table_name IN "
	for _, s := range f.all {
		if !s.writes() {
			continue
		}
		in, names := namesIn(s.tokens)
		rows, err := conn.QueryContext(ctx, query+in, names...)
		if err != nil {
			return nil, err
		}
		columns := s.written()
		for rows.Next() {
			var table, column string
			if err := rows.Scan(&table, &column); err != nil {
				return nil, errors.Join(err, rows.Close())
			}
			if c := slices.IndexFunc(columns, func(w written) bool { return w.is(table, column) }); c >= 0 {
				refused = append(refused, &Error{f.Name, columns[c].at, fmt.Errorf("%s.%s is a generated column, which the "+
					"server computes: name the columns that are written, and not this one", table, column)})
			}
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			return nil, err
		}
	}
	return refused, nil
}

// namesIn are the names in a statement, as a list of arguments.
func namesIn(tokens []token) (in string, names []any) {
	for _, t := range tokens {
		if t.isName() {
			names = append(names, t.text)
		}
	}
	return "(?" + strings.Repeat(", ?", len(names)-1) + ")", names // there is one: a statement begins with a word
}

// written is a column that a statement writes.
type written struct {
	tables []string // it may be of one of these
	column string   // empty: all, because an INSERT names none
	at     Position
}

func (w written) is(table, column string) bool {
	return containsFold(w.tables, table) && (w.column == "" || strings.EqualFold(w.column, column))
}

// written are the columns before an = behind SET or KEY UPDATE, and those in the list of an INSERT.
func (s *Statement) written() (columns []written) {
	const (
		before = iota
		tables
		list
		set
		behind
	)
	var named []token // tables and what they are called here
	inserts, stands, depth := s.verb != "UPDATE", before, 0
	for i, t := range s.tokens {
		var last, next token
		if i > 0 {
			last = s.tokens[i-1]
		}
		if i+1 < len(s.tokens) {
			next = s.tokens[i+1]
		}
		switch {
		case t.mark("("):
			if depth++; stands == tables && inserts && depth == 1 && !last.is("PARTITION") &&
				!next.is("SELECT") && !next.is("WITH") {
				stands = list
			}
		case t.mark(")"):
			if depth--; stands == list {
				stands = behind
			}
		case stands == list && t.isName() && (next.mark(",") || next.mark(")")):
			columns = append(columns, written{textsOf(named), t.text, t.at})
		case depth > 0 && (inserts || stands != tables):
		case stands == before:
			if t.is(s.verb) {
				stands = tables
			}
		case t.is("SET"), t.is("UPDATE") && last.is("KEY"):
			stands = set
		case t.is("WHERE"), t.is("ORDER"), t.is("LIMIT"), stands == set && t.is("ON"):
			stands = behind
		case stands == tables && inserts && (t.is("VALUES") || t.is("VALUE") || t.is("SELECT") || t.is("WITH")):
			columns, stands = append(columns, written{tables: textsOf(named), at: t.at}), behind
		case stands == tables && t.isName() && !t.is("AS"):
			named = append(named, t)
		case stands == set && next.mark("=") && (last.mark(",") || last.mark(".") || last.is("SET") || last.is("UPDATE")):
			w := written{textsOf(named), t.text, t.at}
			if last.mark(".") {
				w.tables = calledBy(named, s.tokens[i-2].text)
			}
			columns = append(columns, w)
		}
	}
	return columns
}

func textsOf(tokens []token) (texts []string) {
	for _, t := range tokens {
		texts = append(texts, t.text)
	}
	return texts
}

// calledBy are the tables that a name may be of: what has it, and what it stands behind, as an alias does.
func calledBy(named []token, name string) (tables []string) {
	for i, t := range named {
		if strings.EqualFold(t.text, name) {
			tables = append(tables, textsOf(named[max(0, i-1):i+1])...)
		}
	}
	return tables
}
