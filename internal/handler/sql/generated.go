package sql

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
)

// checkGenerated finds the statements that write a generated column. MySQL refuses them when they are prepared, MariaDB
// once for each row, so that each message would become a letter.
func (f *File) checkGenerated(ctx context.Context, on mysqldb.Queryer) (refused []*Error, err error) {
	for _, s := range f.all {
		if !s.writes() {
			continue
		}
		in, names := namesIn(s.tokens)
		generated, err := rowsOf(ctx, on, "SELECT table_name, column_name FROM information_schema.columns WHERE "+
			"generation_expression <> '' AND table_schema = DATABASE() AND table_name IN "+in, names...)
		if err != nil {
			return nil, err
		}
		columns := s.written()
		for _, g := range generated {
			if c := slices.IndexFunc(columns, func(w written) bool { return w.is(g[0], g[1]) }); c >= 0 {
				refused = append(refused, &Error{f.Name, columns[c].at, fmt.Errorf("%s.%s is a generated column, which the "+
					"server computes: name the columns that are written, and not this one", g[0], g[1])})
			}
		}
	}
	return refused, nil
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
	var named []string // tables and what they are called here
	inserts, stands, depth := s.verb != "UPDATE", before, 0
	around := slices.Concat([]token{{}}, s.tokens, []token{{}})
	for i, t := range s.tokens {
		switch last, next := around[i], around[i+2]; {
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
			columns = append(columns, written{named, t.text, t.at})
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
			columns, stands = append(columns, written{tables: named, at: t.at}), behind
		case stands == tables && t.isName() && !t.is("AS"):
			named = append(named, t.text)
		case stands == set && next.mark("=") && (last.mark(",") || last.mark(".") || last.is("SET") || last.is("UPDATE")):
			w := written{named, t.text, t.at}
			if last.mark(".") {
				w.tables = calledBy(named, s.tokens[i-2].text)
			}
			columns = append(columns, w)
		}
	}
	return columns
}

// calledBy are the tables that a name may be of: what has it, and what it stands behind, as an alias does.
func calledBy(named []string, name string) (tables []string) {
	for i, t := range named {
		if strings.EqualFold(t, name) {
			tables = append(tables, named[max(0, i-1):i+1]...)
		}
	}
	return tables
}
