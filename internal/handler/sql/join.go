package sql

import (
	"cmp"
	"context"
	stdsql "database/sql"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
)

// plan says how the runs of all statements are joined. There is one only where every statement can be, because
// statements of different messages then change their order.
type plan struct{ shapes map[*Statement]*shape }

// Bounds of a joined statement. MariaDB turns a list of 1,000 values or more into a join with a temporary table, which
// locks in another order.
const (
	maxJoined      = 900
	maxJoinedBytes = 512 << 10
)

// Unjoined says why the runs of a statement are not joined for many messages. One is enough: no statement is then.
type Unjoined struct {
	At     Position // zero: it is about all statements
	Why    string
	Faster string // what would be joined
}

// Forms that are joined, in the words of docs/handlers.md.
const (
	updateForm = "UPDATE t SET a = a + :n, b = 'x', c = :c WHERE k = :k AND d = 'y'; -- expect 1"
	insertForm = "INSERT INTO t (a, b) VALUES (:a, 'x')"
	noForm     = "nothing of this kind is joined; without it, the file may be"
)

// shapes are those of all statements, and of those that have none, or write the same table as another, why.
func (f *File) shapes() (map[*Statement]*shape, []Unjoined) {
	all, tables := map[*Statement]*shape{}, map[string]*Statement{}
	verdicts := map[*section]Verdict{}
	var not []Unjoined
	for in, s := range f.all {
		sh, why, faster := shapeOf(s)
		if sh == nil {
			not = append(not, Unjoined{s.At, why, faster})
			continue
		}
		table := strings.ToLower(sh.table)
		if other := tables[table]; other != nil {
			not = append(not, Unjoined{s.At, fmt.Sprintf("%s is written by the statement at %v too", sh.table, other.At),
				"one statement for each table, which writes all columns at once"})
		}
		all[s], tables[table] = sh, s
		if in.each && s.expect != nil {
			// Joined, the first item's second statement comes behind the second item's first one. What a message fails of must
			// not depend on that.
			if v, ok := verdicts[in]; ok && v != s.expect.other {
				not = append(not, Unjoined{s.At, "for the same items, another statement has another verdict behind its else",
					"the same verdict for all statements of the items"})
			}
			verdicts[in] = s.expect.other
		}
	}
	return all, not
}

// learn asks the database whether joined statements mean the same as the single ones; no plan, and why, when they do
// not, or nobody can tell.
func (f *File) learn(ctx context.Context, conn *stdsql.Conn) (*plan, []Unjoined, error) {
	shapes, not := f.shapes()
	var sees bool
	if err := conn.QueryRowContext(ctx, seesTriggersQuery).Scan(&sees); unlessAnswered(err) != nil {
		return nil, nil, err
	} else if !sees {
		not = append(not, Unjoined{Why: "this account sees no triggers, which may do something else for many rows",
			Faster: "GRANT TRIGGER on the schema"})
	}
	for _, s := range f.all {
		sh := shapes[s]
		if sh == nil {
			continue
		}
		why, faster, err := sh.learn(ctx, conn)
		if unlessAnswered(err) != nil {
			return nil, nil, err
		}
		if err != nil {
			why, faster = "the server does not show the definition of "+sh.table+": "+err.Error(),
				"an account that may see it (SELECT on the table)"
		}
		if why != "" {
			not = append(not, Unjoined{s.At, why, faster})
		}
	}
	if len(not) > 0 {
		slices.SortStableFunc(not, func(a, b Unjoined) int {
			return cmp.Or(cmp.Compare(a.At.Line, b.At.Line), cmp.Compare(a.At.Column, b.At.Column))
		})
		return nil, not, nil
	}
	return &plan{shapes}, nil, nil
}

// unlessAnswered drops what the server said: whoever may not see a table's definition runs without joining.
func unlessAnswered(err error) error {
	if mysqldb.Answered(err) {
		return nil
	}
	return err
}

// Joined reports whether Check found that runs of the statements may be joined for many messages.
func (f *File) Joined() bool { return f.plan.Load() != nil }

// Unjoined is why Check found that they may not be.
func (f *File) Unjoined() []Unjoined {
	if not := f.unjoined.Load(); not != nil {
		return *not
	}
	return nil
}

const (
	// Without the right on triggers a server shows none.
	seesTriggersQuery = `SELECT EXISTS (SELECT 1 FROM information_schema.user_privileges WHERE privilege_type = 'TRIGGER')
OR EXISTS (SELECT 1 FROM information_schema.schema_privileges WHERE privilege_type = 'TRIGGER'
AND DATABASE() LIKE table_schema)`
	kindQuery = `SELECT COUNT(*) FROM information_schema.tables
WHERE table_schema = DATABASE() AND table_name = ? AND table_type = 'BASE TABLE' AND engine = 'InnoDB'`
	triggersQuery = `SELECT COUNT(*) FROM information_schema.triggers
WHERE event_object_schema = DATABASE() AND event_object_table = ?`
	uniqueQuery = `SELECT index_name, COALESCE(column_name, '') FROM information_schema.statistics
WHERE table_schema = DATABASE() AND table_name = ? AND index_name IN (SELECT name FROM (
	SELECT index_name AS name FROM information_schema.statistics WHERE table_schema = DATABASE() AND table_name = ?
	GROUP BY index_name HAVING MAX(non_unique) = 0 AND MAX(sub_part) IS NULL AND COUNT(*) = ?) AS i)
ORDER BY index_name, seq_in_index`
	typeQuery = `SELECT LOWER(data_type) FROM information_schema.columns
WHERE table_schema = DATABASE() AND table_name = ? AND column_name = ?`
	keysQuery = `SELECT COUNT(*) FROM information_schema.key_column_usage
WHERE table_schema = DATABASE() AND table_name = ? AND column_name = ?
OR referenced_table_schema = DATABASE() AND referenced_table_name = ? AND referenced_column_name = ?`
)

var (
	integerTypes = []string{"tinyint", "smallint", "mediumint", "int", "bigint"}
	stringTypes  = []string{"char", "varchar", "varbinary"}
)

// learn says why runs may not be joined, and what could be; nothing where they may: the table is one of InnoDB's
// without triggers, a unique index on the key alone makes each run change one row at most, what is added are integers,
// and no written column belongs to a key.
func (sh *shape) learn(ctx context.Context, conn *stdsql.Conn) (why, faster string, err error) {
	ask := func(into any, query string, args ...any) {
		if err == nil {
			err = conn.QueryRowContext(ctx, query, args...).Scan(into)
		}
	}
	var tables, triggers int
	ask(&tables, kindQuery, sh.table)
	ask(&triggers, triggersQuery, sh.table)
	switch {
	case err != nil:
		return "", "", err
	case tables != 1:
		return sh.table + " is no table of InnoDB", "a table of InnoDB, named itself", nil
	case triggers != 0:
		return sh.table + " has triggers", "a table without triggers", nil
	case sh.insert:
		return "", "", nil
	}
	if err := sh.learnIndex(ctx, conn); err != nil {
		return "", "", err
	}
	if sh.index == "" {
		var names []string
		for _, k := range sh.key {
			names = append(names, k.name)
		}
		columns := strings.Join(names, ", ")
		return fmt.Sprintf("%s has no primary or unique key on %s alone", sh.table, columns),
			"a unique key on exactly the columns that are compared with parameters: here (" + columns + ")", nil
	}
	var kind, ignored, definition string
	for i := range sh.key {
		ask(&kind, typeQuery, sh.table, sh.key[i].name)
		sh.key[i].integer = slices.Contains(integerTypes, kind)
		if err == nil && !sh.key[i].integer && !slices.Contains(stringTypes, kind) {
			return fmt.Sprintf("the key %s is of type %s", sh.key[i].name, kind), "a key that is an integer or a string", nil
		}
	}
	if err == nil {
		err = conn.QueryRowContext(ctx, "SHOW CREATE TABLE "+quoteName(sh.table)).Scan(&ignored, &definition)
	}
	for _, column := range sh.assigned {
		var keys int
		if ask(&keys, keysQuery, sh.table, column, sh.table, column); keys > 0 {
			return "it writes " + column + ", which belongs to a key or a foreign key",
				"a statement that writes columns of no key", err
		}
	}
	for _, column := range sh.adding {
		if ask(&kind, typeQuery, sh.table, column); err == nil && !slices.Contains(integerTypes, kind) {
			return fmt.Sprintf("it adds to %s, which is of type %s", column, kind), "a column of integers", nil
		}
	}
	if err != nil {
		return "", "", err
	}
	tokens := tokensOf(definition)
	// A second run must find what the first found, and whatever refuses the sum must refuse one of its steps.
	sh.repeats = len(sh.adds) > 0 && !sh.assigns && checksAreBounds(tokens) &&
		!slices.ContainsFunc(sh.tested, func(c string) bool { return containsFold(sh.assigned, c) })
	if slices.ContainsFunc(tokens, func(t token) bool { return t.is("VERSIONING") }) {
		return sh.table + " keeps versions of its rows", "a table without system versioning", nil
	}
	return "", "", nil
}

// learnIndex finds a unique index on the columns of the key and no others, and puts these into its order: so rows are
// locked in the order in which the index is read.
func (sh *shape) learnIndex(ctx context.Context, conn *stdsql.Conn) error {
	rows, err := conn.QueryContext(ctx, uniqueQuery, sh.table, sh.table, len(sh.key))
	if err != nil {
		return err
	}
	defer rows.Close()
	var at string // the index that is read
	var ordered []keyColumn
	for rows.Next() {
		var index, column string
		if err := rows.Scan(&index, &column); err != nil {
			return err
		}
		if index != at {
			at, ordered = index, nil
		}
		if i := slices.IndexFunc(sh.key, func(k keyColumn) bool { return strings.EqualFold(k.name, column) }); i >= 0 {
			ordered = append(ordered, sh.key[i])
		}
		if len(ordered) == len(sh.key) && sh.index == "" {
			sh.index, sh.key = index, ordered
		}
	}
	return rows.Err()
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
	depth := 0
	for ; depth < len(tokens) && tokens[depth].mark("("); depth++ {
	}
	r := &reader{tokens: tokens, at: depth}
	r.name()
	r.take(r.peek().mark("<") || r.peek().mark(">"))
	if r.peek().mark("=") {
		r.take(true)
	}
	inner := 0
	if r.peek().mark("-") {
		r.take(true)
		for ; r.peek().mark("("); inner++ { // MySQL writes -(5) for -5
			r.take(true)
		}
	}
	r.take(r.peek().isNumber())
	for range inner + depth {
		r.mark(")")
	}
	return depth > 0 && !r.bad
}

func quoteName(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

func containsFold(names []string, name string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, name) })
}

// joinedRun is a run of a statement for message msg; it may stand for several with the same key.
type joinedRun struct {
	run
	msg  int
	key  rowKey
	sums []int64 // of shape.adds
}

// runsOf lists the runs of a statement for all messages; ok is false where they cannot be joined.
func (sh *shape) runsOf(b *batch, number int, in *section) (runs []joinedRun, ok bool) {
	seen := map[rowKey]bool{}
	for m := range b.msgs {
		d, ok := b.msgs[m].Value.(*fields)
		if !ok {
			return nil, false
		}
		items := [][]value{nil}
		if in.each {
			items = d.items[number]
		}
		for i, values := range items {
			r := joinedRun{run: run{&b.msgs[m], d, values, i}, msg: m}
			if !in.each {
				r.item = -1
			}
			if !sh.insert {
				if !r.prepare(sh) || seen[r.key] && !sh.repeats {
					return nil, false
				}
				seen[r.key] = true
			}
			runs = append(runs, r)
		}
	}
	return runs, true
}

// prepare reads the key and what is added; false when they are not of the kind that can be joined. What is added must
// be positive: then no sum is refused of which each step is taken, or the other way round.
func (r *joinedRun) prepare(sh *shape) bool {
	for i, k := range sh.key {
		v := r.value(k.param)
		switch {
		case k.integer:
			n, err := strconv.ParseInt(v.text, 10, 64)
			if err != nil || v.kind != number {
				return false
			}
			v.text = strconv.FormatInt(n, 10)
		case v.kind != text:
			return false
		}
		r.key[i] = v
	}
	r.sums = make([]int64, len(sh.adds))
	for i, a := range sh.adds {
		if r.sums[i] = a.n; a.param == nil {
			continue
		}
		v := r.value(a.param)
		n, err := strconv.ParseInt(v.text, 10, 64)
		if err != nil || v.kind != number {
			return false
		}
		r.sums[i] = n
	}
	return !slices.ContainsFunc(r.sums, func(n int64) bool { return n <= 0 || n > math.MaxInt32 }) // no sum is over 2^63
}

// errNotJoined says that joined statements did something else than was expected of them: they must be undone, and the
// messages run one by one.
var errNotJoined = errors.New("the joined statements must be undone")

// joined runs all messages by joined statements; false when they cannot be joined, and nothing was done. Who does not
// find its row drops out: it is done, or to blame.
func (b *batch) joined(ctx context.Context, p *plan) (ok bool, err error) {
	all := map[*Statement][]joinedRun{}
	for i := range b.file.sections {
		in := &b.file.sections[i]
		for _, s := range in.statements {
			runs, ok := p.shapes[s].runsOf(b, i, in)
			if !ok {
				return false, nil
			}
			all[s] = runs
		}
	}
	out := map[int]bool{}
	for i := range b.file.sections {
		in := &b.file.sections[i]
		for _, s := range in.statements {
			sh := p.shapes[s]
			runs := all[s]
			if len(out) > 0 {
				runs = slices.DeleteFunc(runs, func(r joinedRun) bool { return out[r.msg] })
			}
			var missing []joinedRun
			if sh.insert {
				err = b.insertAll(ctx, sh, runs)
			} else {
				missing, err = b.updateAll(ctx, sh, runs)
			}
			if err != nil {
				return true, fmt.Errorf("line %d, for %d messages at once: %w", s.At.Line, len(b.msgs), err)
			}
			for _, r := range missing {
				if out[r.msg] {
					continue
				}
				out[r.msg] = true
				if err := b.file.unexpected(in, s, r.run, 0); err != nil {
					b.failed = append(b.failed, consumer.BlamedMessage{Index: r.msg, Err: err})
				}
			}
		}
	}
	return true, nil
}

// statement is one that is being written, with its arguments.
type statement struct {
	strings.Builder
	args []any
}

func (w *statement) parts(parts []part, value func(*param) value) {
	for _, p := range parts {
		w.WriteByte(' ')
		if p.param == nil {
			w.WriteString(p.text)
			continue
		}
		w.args = value(p.param).write(&w.Builder, w.args)
	}
}

func (w *statement) exec(ctx context.Context, b *batch) (int64, error) {
	res, err := b.conn.ExecContext(ctx, w.String(), w.args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// insertAll inserts a row for each run.
func (b *batch) insertAll(ctx context.Context, sh *shape, runs []joinedRun) error {
	for len(runs) > 0 {
		var w statement
		w.WriteString(sh.head)
		n := 0
		for n < len(runs) && n < maxJoined && w.Len() < maxJoinedBytes {
			if n > 0 {
				w.WriteString(",")
			}
			w.parts(sh.values, runs[n].value)
			n++
		}
		rows, err := w.exec(ctx, b)
		if err != nil {
			return err
		}
		if rows != int64(n) {
			return errNotJoined
		}
		runs = runs[n:]
	}
	return nil
}

// updateAll locks the rows of all runs in the order of their keys, so that two transactions do not wait for each other,
// and then writes those that are there. Runs that write the same share a statement, or, where the key is an integer,
// that add something. missing are the runs without a row.
func (b *batch) updateAll(ctx context.Context, sh *shape, runs []joinedRun) (missing []joinedRun, err error) {
	byKey := map[rowKey][]joinedRun{}
	for _, r := range runs {
		byKey[r.key] = append(byKey[r.key], r)
	}
	keys := slices.SortedFunc(maps.Keys(byKey), sh.compare)
	found := map[rowKey]bool{}
	for chunk := range slices.Chunk(keys, maxJoined) {
		if err := b.lockRows(ctx, sh, chunk, found); err != nil {
			return nil, err
		}
	}
	if !sh.oneInteger() {
		if err := b.lookAgain(ctx, sh, keys, found); err != nil {
			return nil, err
		}
	}
	var groups [][]joinedRun // one for each key that was found, by what is written
	byWrite := map[string]int{}
	for _, r := range runs { // in their own order: the first of a message is the one that it fails of
		if !found[r.key] {
			missing = append(missing, r)
		}
	}
	for _, key := range keys {
		all := byKey[key]
		if !found[key] {
			continue
		}
		one := all[0]
		one.sums = slices.Clone(one.sums)
		for _, r := range all[1:] {
			for i := range one.sums {
				one.sums[i] += r.sums[i]
			}
		}
		var w statement
		w.set(sh, one)
		write := w.String() + fmt.Sprint(w.args...)
		at, known := byWrite[write]
		if !known {
			at = len(groups)
			byWrite[write], groups = at, append(groups, nil)
		}
		groups[at] = append(groups[at], one)
	}
	if len(groups) > 1 && sh.oneInteger() && !sh.assigns {
		groups = [][]joinedRun{slices.Concat(groups...)}
		slices.SortFunc(groups[0], func(x, y joinedRun) int { return sh.compare(x.key, y.key) })
	}
	for _, group := range groups {
		for chunk := range slices.Chunk(group, maxJoined) {
			if err := b.writeRows(ctx, sh, chunk); err != nil {
				return nil, err
			}
		}
	}
	return missing, nil
}

// lookAgain asks for the keys without a row by themselves: where another key stood beside one that its collation holds
// for the same, their row was shown under one of the two.
func (b *batch) lookAgain(ctx context.Context, sh *shape, keys []rowKey, found map[rowKey]bool) error {
	var missing []rowKey
	for _, key := range keys {
		if !found[key] {
			missing = append(missing, key)
		}
	}
	for chunk := range slices.Chunk(missing, maxJoined) {
		if err := b.lockRows(ctx, sh, chunk, found); err != nil {
			return err
		}
	}
	return nil
}

// compare is the order of keys.
func (sh *shape) compare(x, y rowKey) int {
	for i, k := range sh.key {
		order := strings.Compare(x[i].text, y[i].text)
		if k.integer {
			n, _ := strconv.ParseInt(x[i].text, 10, 64) // prepare has read both
			m, _ := strconv.ParseInt(y[i].text, 10, 64)
			order = cmp.Compare(n, m)
		}
		if order != 0 {
			return order
		}
	}
	return 0
}

// set writes what stands between SET and WHERE: where runs were added up, the sums. Of several runs only these differ.
func (w *statement) set(sh *shape, runs ...joinedRun) {
	for _, p := range sh.set {
		if p.add > 0 {
			p.text, p.param = sumOf(sh, runs, p.add-1), nil
		}
		w.parts([]part{p}, runs[0].value)
	}
}

// sumOf is what is added to a row. Each row of several finds its sum by a binary search for its key.
func sumOf(sh *shape, runs []joinedRun, add int) string {
	same := func(r joinedRun) bool { return r.sums[add] == runs[0].sums[add] }
	if !slices.ContainsFunc(runs, func(r joinedRun) bool { return !same(r) }) {
		return strconv.FormatInt(runs[0].sums[add], 10)
	}
	var keys, sums strings.Builder
	for _, r := range runs {
		keys.WriteString("," + r.key[0].text)
		sums.WriteString("," + strconv.FormatInt(r.sums[add], 10))
	}
	return "CAST(ELT(INTERVAL(" + quoteName(sh.key[0].name) + keys.String() + ")" + sums.String() + ") AS SIGNED)"
}

// selection writes the condition on rows with these keys.
func (sh *shape) selection(w *statement, keys []rowKey) {
	if len(sh.key) == 1 {
		w.WriteString(" WHERE " + quoteName(sh.key[0].name) + " IN (")
		for i, k := range keys {
			if i > 0 {
				w.WriteByte(',')
			}
			w.args = k[0].write(&w.Builder, w.args)
		}
	} else { // not as a list of rows, for which MariaDB reads the whole index
		w.WriteString(" WHERE (")
		for i, k := range keys {
			if i > 0 {
				w.WriteString(" OR ")
			}
			for c, column := range sh.key {
				if c > 0 {
					w.WriteString(" AND ")
				}
				w.WriteString(quoteName(column.name) + "=")
				w.args = k[c].write(&w.Builder, w.args)
			}
		}
	}
	w.WriteString(")")
	w.parts(sh.where, nil)
}

// columns are those of the key, with commas.
func (sh *shape) columns() string {
	names := make([]string, len(sh.key))
	for i, k := range sh.key {
		names[i] = quoteName(k.name)
	}
	return strings.Join(names, ",")
}

// lockRows finds the rows with these keys that meet the other conditions, and locks them. It reads a column that no key
// has: of an index that covers all columns of a statement MySQL reads the whole when it is asked for many of few rows,
// and waits for locks on rows that nobody asked for.
func (b *batch) lockRows(ctx context.Context, sh *shape, keys []rowKey, found map[rowKey]bool) error {
	var w statement
	w.WriteString("SELECT " + sh.columns() + "," + quoteName(sh.assigned[0]) + " IS NULL FROM " + quoteName(sh.table) +
		" FORCE INDEX (" + quoteName(sh.index) + ")")
	sh.selection(&w, keys)
	w.WriteString(" ORDER BY " + sh.columns() + " FOR UPDATE")
	rows, err := b.conn.QueryContext(ctx, w.String(), w.args...)
	if err != nil {
		return err
	}
	for rows.Next() {
		key, into := keys[0], make([]any, len(sh.key)) // of the same kinds
		for i := range into {
			into[i] = &key[i].text
		}
		if err := rows.Scan(append(into, new(any))...); err != nil {
			return errors.Join(err, rows.Close())
		}
		// A collation may find a row under another spelling of its key.
		if _, asked := slices.BinarySearchFunc(keys, key, sh.compare); !asked || found[key] {
			return errors.Join(errNotJoined, rows.Close())
		}
		found[key] = true
	}
	return errors.Join(rows.Err(), rows.Close())
}

// writeRows writes the same into the rows of these runs, each of which must change.
func (b *batch) writeRows(ctx context.Context, sh *shape, runs []joinedRun) error {
	var w statement
	w.WriteString("UPDATE " + quoteName(sh.table) + " FORCE INDEX (" + quoteName(sh.index) + ") SET")
	w.set(sh, runs...)
	keys := make([]rowKey, len(runs))
	for i := range runs {
		keys[i] = runs[i].key
	}
	sh.selection(&w, keys)
	changed, err := w.exec(ctx, b)
	if err != nil {
		return err
	}
	if changed != int64(len(runs)) {
		return errNotJoined
	}
	return nil
}
