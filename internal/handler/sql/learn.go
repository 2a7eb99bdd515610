package sql

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
)

// plan says how the runs of all statements are joined. They are only where every statement can be, because statements
// of different messages then change their order.
type plan struct {
	shapes map[*Statement]*shape
	not    []Unjoined
	// apart: a SELECT locks nothing, so what it found holds only while no other transaction of this process runs.
	apart bool
}

func (p *plan) joins() bool { return p != nil && len(p.not) == 0 }

// Unjoined says why the runs of a statement are not joined for many messages. One is enough: no statement is then.
type Unjoined struct {
	At     Position // zero: it is about all statements
	Why    string
	Faster string // what would be joined
}

// Forms that are joined, in the words of docs/handlers.md.
const (
	updateForm = "UPDATE t SET a = a + :n, b = 'x', c = :c WHERE k = :k AND d = 'y'; -- expect 1"
	selectForm = "SELECT a FROM t WHERE k = :k AND d = 'y' FOR UPDATE; -- expect 1"
	insertForm = "INSERT INTO t (a, b) VALUES (:a, 'x')"
	noForm     = "nothing of this kind is joined; without it, the file may be"
)

// Joined reports whether Check found that runs of the statements may be joined for many messages.
func (f *File) Joined() bool { return f.plan.Load().joins() }

// Unjoined is why Check found that they may not be.
func (f *File) Unjoined() []Unjoined {
	if p := f.plan.Load(); p != nil {
		return p.not
	}
	return nil
}

// learn finds the statements that can be joined, and why others cannot. It asks the database whether joined statements
// mean the same as the single ones; they do not when nobody can tell.
func (f *File) learn(ctx context.Context, on mysqldb.Queryer) (*plan, error) {
	p := &plan{shapes: map[*Statement]*shape{}}
	tables, verdicts := map[string][]*Statement{}, map[*section]Verdict{}
	not := func(at Position, why, faster string) { p.not = append(p.not, Unjoined{at, why, faster}) }
	sees, err := rowsOf(ctx, on, seesTriggersQuery)
	if err != nil && !mysqldb.Answered(err) {
		return nil, err
	}
	if len(sees) == 0 {
		f.triggers.Store(true)
		not(Position{}, "this account sees no triggers, which may do something else for many rows",
			"GRANT TRIGGER on the schema")
	}
	for in, s := range f.all {
		sh, other := shapeOf(s)
		if sh == nil {
			p.not = append(p.not, *other)
			continue
		}
		p.shapes[s], p.apart = sh, p.apart || sh.reads && !sh.locks
		if in.each && s.expect != nil {
			// Joined, the first item's second statement comes behind the second item's first one. What a message fails of must
			// not depend on that.
			if v, ok := verdicts[in]; ok && v != s.expect.other {
				not(s.At, "for the same items, another statement has another verdict behind its else",
					"the same verdict for all statements of the items")
			}
			verdicts[in] = s.expect.other
		}
		why, faster, err := sh.learn(ctx, on)
		switch {
		case err != nil && !mysqldb.Answered(err):
			return nil, err
		case err != nil: // whoever may not see a table's definition runs without joining
			not(s.At, "the server does not show the definition of "+sh.table+": "+err.Error(),
				"an account that may see it (SELECT on the table)")
		case why != "":
			not(s.At, why, faster)
		}
		table := strings.ToLower(sh.table)
		for _, other := range tables[table] {
			of := p.shapes[other]
			switch {
			case !of.reads && !sh.reads, of.index != sh.index, sh.insert:
				not(s.At, fmt.Sprintf("%s is written or read by the statement at %v too", sh.table, other.At),
					"one statement for each table, which writes all columns at once, and SELECTs by the same key")
			case !of.reads || !sh.reads: // what one finds may be what the other has written: a row must be of one run alone
				of.repeats, sh.repeats = false, false
			}
		}
		tables[table] = append(tables[table], s)
	}
	slices.SortStableFunc(p.not, func(a, b Unjoined) int {
		return cmp.Or(cmp.Compare(a.At.Line, b.At.Line), cmp.Compare(a.At.Column, b.At.Column))
	})
	return p, nil
}

// Of each query, all parameters are the table.
const (
	// Without the right on triggers a server shows none.
	seesTriggersQuery = `SELECT 1 FROM information_schema.user_privileges WHERE privilege_type = 'TRIGGER'
UNION ALL SELECT 1 FROM information_schema.schema_privileges WHERE privilege_type = 'TRIGGER'
AND DATABASE() LIKE table_schema`
	kindQuery = `SELECT 1 FROM information_schema.tables
WHERE table_schema = DATABASE() AND table_name = ? AND table_type = 'BASE TABLE' AND engine = 'InnoDB'`
	triggersQuery = `SELECT 1 FROM information_schema.triggers
WHERE event_object_schema = DATABASE() AND event_object_table = ?`
	uniqueQuery = "SELECT index_name, GROUP_CONCAT(COALESCE(column_name, '') ORDER BY seq_in_index SEPARATOR '\n')" + `
FROM information_schema.statistics WHERE table_schema = DATABASE() AND table_name = ?
GROUP BY index_name HAVING MAX(non_unique) = 0 AND MAX(sub_part) IS NULL ORDER BY index_name`
	typesQuery = `SELECT LOWER(column_name), LOWER(data_type), COALESCE(numeric_scale, 0), privileges, LOWER(extra)
FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = ? ORDER BY ordinal_position`
	keysQuery = `SELECT column_name FROM information_schema.key_column_usage
WHERE table_schema = DATABASE() AND table_name = ?
UNION ALL SELECT referenced_column_name FROM information_schema.key_column_usage
WHERE referenced_table_schema = DATABASE() AND referenced_table_name = ?`
)

// maxScale is how many decimal places a column of MySQL has at most.
const maxScale = 30

var (
	integerTypes = []string{"tinyint", "smallint", "mediumint", "int", "bigint"}
	stringTypes  = []string{"char", "varchar", "varbinary"}
)

// learn says why runs may not be joined, and what could be; nothing where they may: the table is one of InnoDB's
// without triggers, a unique index on columns of the key makes each run change or find one row at most, what is added
// are integers or decimals, and no written column belongs to a key.
func (sh *shape) learn(ctx context.Context, on mysqldb.Queryer) (why, faster string, err error) {
	ask := func(query string) (rows [][]string) {
		if err == nil {
			rows, err = rowsOf(ctx, on, query, slices.Repeat([]any{sh.table}, strings.Count(query, "?"))...)
		}
		return rows
	}
	switch isTable, triggers := ask(kindQuery), ask(triggersQuery); {
	case err != nil:
		return "", "", err
	case len(isTable) == 0:
		return sh.table + " is no table of InnoDB", "a table of InnoDB, named itself", nil
	case len(triggers) > 0:
		return sh.table + " has triggers", "a table without triggers", nil
	case sh.insert:
		return "", "", nil
	}
	sh.useIndex(ask(uniqueQuery))
	keys, columns, types := ask(keysQuery), ask(typesQuery), map[string]string{}
	for _, column := range columns {
		types[column[0]] = column[1]
	}
	ofKey := func(column string) bool {
		return slices.ContainsFunc(keys, func(key []string) bool { return strings.EqualFold(key[0], column) })
	}
	if err != nil {
		return "", "", err
	}
	definition, err := rowsOf(ctx, on, "SHOW CREATE TABLE "+quoteName(sh.table))
	if err != nil {
		return "", "", err
	}
	if sh.index == "" {
		columns := strings.ReplaceAll(strings.Join(sh.columns(), ", "), "`", "")
		return fmt.Sprintf("%s has no primary or unique key on %s, or on a part of them", sh.table, columns),
			"a unique key on columns that are compared with parameters: here (" + columns + ")", nil
	}
	for i, k := range sh.key {
		kind := types[strings.ToLower(k.name)]
		sh.key[i].integer = slices.Contains(integerTypes, kind)
		if !sh.key[i].integer && !slices.Contains(stringTypes, kind) {
			return fmt.Sprintf("the key %s is of type %s", k.name, kind), "a key that is an integer or a string", nil
		}
	}
	for _, column := range sh.assigned {
		if ofKey(column) {
			return "it writes " + column + ", which belongs to a key or a foreign key",
				"a statement that writes columns of no key", nil
		}
	}
	for i, a := range sh.adds {
		sh.assigned = slices.Insert(sh.assigned, 0, a.column) // for lockRows, which looks whether it is NULL
		kind := types[strings.ToLower(a.column)]
		if kind == "decimal" {
			at := slices.IndexFunc(columns, func(c []string) bool { return strings.EqualFold(c[0], a.column) })
			sh.adds[i].scale, err = strconv.Atoi(columns[at][2])
		}
		if kind != "decimal" && !slices.Contains(integerTypes, kind) || err != nil {
			return fmt.Sprintf("it adds to %s, which is of type %s", a.column, kind), "a column of integers or decimals", err
		}
	}
	if sh.reads {
		beside := slices.IndexFunc(columns, func(c []string) bool {
			return !ofKey(c[0]) && strings.Contains(c[3], "select")
		})
		if beside < 0 {
			return "it may read no column of " + sh.table + " beside keys", "a table with a column that is part of none", nil
		}
		sh.assigned, sh.repeats = []string{columns[beside][0]}, true // for lockRows
		return "", "", nil
	}
	tokens := tokensOf(definition[0][1])
	// A second run must find what the first found, and whatever refuses the sum must refuse one of its steps.
	sh.repeats = sh.unique == len(sh.key) && len(sh.adds) > 0 && !sh.assigns && checksAreBounds(tokens) &&
		!slices.ContainsFunc(sh.tested, func(c string) bool { return containsFold(sh.assigned, c) }) &&
		!slices.ContainsFunc(tokens, func(t token) bool { return t.is("GENERATED") }) &&
		!slices.ContainsFunc(columns, func(c []string) bool {
			return strings.Contains(c[4], "on update") && containsFold(sh.tested, c[0])
		})
	if slices.ContainsFunc(tokens, func(t token) bool { return t.is("VERSIONING") }) {
		return sh.table + " keeps versions of its rows", "a table without system versioning", nil
	}
	return "", "", nil
}

// useIndex finds a unique index on columns of the key and no others, and puts these first, in its order: so rows are
// locked in the order in which the index is read.
func (sh *shape) useIndex(indexes [][]string) {
	for _, index := range indexes {
		columns := strings.Split(index[1], "\n")
		place := func(k keyColumn) int {
			at := slices.IndexFunc(columns, func(c string) bool { return strings.EqualFold(c, k.name) })
			return cmp.Or(at+1, maxKeyColumns+1)
		}
		slices.SortStableFunc(sh.key, func(a, b keyColumn) int { return place(a) - place(b) })
		if n := len(columns); n <= len(sh.key) && place(sh.key[n-1]) == n {
			sh.index, sh.unique = index[0], n
			return
		}
	}
}

// checksAreBounds reports whether each CHECK in a table's definition is a bound of one column, such as amount >= 0. A
// value that only grows, or only falls, meets such a bound at its end when it meets it anywhere; another CHECK may
// refuse what stands between two steps, and take their sum.
func checksAreBounds(tokens []token) bool {
	for i := range tokens {
		if tokens[i].is("CHECK") && !isBound(tokens[i+1:]) {
			return false
		}
	}
	return true
}

// isBound reads (column < number) with any of < <= > >=, in as many parentheses as there are.
func isBound(tokens []token) bool {
	r, open := &reader{tokens: tokens}, 0
	for r.try(r.peek().mark("(")) {
		open++
	}
	begun := open > 0
	r.name()
	r.take(r.peek().mark("<") || r.peek().mark(">"))
	r.try(r.peek().mark("="))
	if r.try(r.peek().mark("-")) {
		for r.try(r.peek().mark("(")) { // MySQL writes -(5) for -5
			open++
		}
	}
	r.take(r.peek().isNumber())
	for range open {
		r.mark(")")
	}
	return begun && !r.bad
}

func quoteName(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

func containsFold(names []string, name string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, name) })
}
