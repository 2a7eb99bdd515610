package sql

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Bounds of a joined statement. MariaDB turns a list of 1,000 values or more into a join with a temporary table, which
// locks in another order.
const (
	maxJoined      = 900
	maxJoinedBytes = 512 << 10
)

// joinedRun is a run of a statement for message msg; it may stand for several with the same key.
type joinedRun struct {
	run
	msg  int
	key  rowKey
	sums []int64 // of shape.adds
}

// owner is who a row of a table belongs to: an item, or a message where list, that of the items, is nil.
type owner struct {
	msg  int
	list *section
	item int
}

// runsOf lists the runs of a statement for all messages; ok is false where they cannot be joined. Owners are those of
// the rows of its table, for all statements on it.
func (sh *shape) runsOf(b *batch, at int, owners map[rowKey]owner) (runs []joinedRun, ok bool) {
	var list *section
	if in := b.file.sections[at]; in.each {
		list = in
	}
	for m := range b.msgs {
		d, ok := b.msgs[m].Value.(fields)
		if !ok {
			return nil, false
		}
		for i, values := range d[at] {
			r := joinedRun{run: run{&b.msgs[m], values, i}, msg: m}
			if !sh.insert {
				if !r.prepare(sh) {
					return nil, false
				}
				by, row := owner{m, list, i}, rowKey{}
				copy(row[:sh.unique], r.key[:])
				if first, known := owners[row]; known && first != by && !sh.repeats {
					return nil, false
				}
				owners[row] = by
			}
			runs = append(runs, r)
		}
	}
	return runs, true
}

// prepare reads the key and what is added; false when they are not of the kind that can be joined. What is added must
// be positive: then no sum is refused of which each step is taken, or the other way round.
func (r *joinedRun) prepare(sh *shape) (ok bool) {
	for i, k := range sh.key {
		r.key[i] = r.value(k.value)
		if k.integer {
			r.key[i], ok = scaled(r.key[i], 0)
		} else {
			_, ok = r.key[i].(string)
		}
		if !ok {
			return false
		}
	}
	r.sums = make([]int64, len(sh.adds))
	for i, a := range sh.adds {
		var v any = a.n
		if a.value.param != nil {
			v = r.value(a.value)
		}
		n, ok := scaled(v, a.scale)
		if !ok || n <= 0 || n > math.MaxInt32 { // no sum is over 2^63
			return false
		}
		r.sums[i] = n
	}
	return true
}

// scaled is a number in units of its last decimal place, of which it has no more than scale.
func scaled(v any, scale int) (int64, bool) {
	text, ok := v.(number)
	whole, fraction, _ := strings.Cut(string(text), ".")
	if len(fraction) > scale {
		return 0, false
	}
	n, err := strconv.ParseInt(whole+fraction+strings.Repeat("0", scale-len(fraction)), 10, 64)
	return n, ok && err == nil
}

// literal is such a number as it stands in a statement.
func (a addend) literal(n int64) string {
	text := fmt.Sprintf("%0*d", a.scale+1, n)
	at := len(text) - a.scale
	return strings.TrimSuffix(text[:at]+"."+text[at:], ".")
}

// errNotJoined says that joined statements did something else than was expected of them: they must be undone, and the
// messages run one by one.
var errNotJoined = errors.New("the joined statements must be undone")

// joined runs all messages by joined statements; false when they cannot be joined, and nothing was done. Who does not
// find its row drops out: it is done, or to blame.
func (b *batch) joined(ctx context.Context, p *plan) (ok bool, err error) {
	all, owners := map[*Statement][]joinedRun{}, map[string]map[rowKey]owner{}
	for i, in := range b.file.sections {
		for _, s := range in.statements {
			table := strings.ToLower(p.shapes[s].table)
			if owners[table] == nil {
				owners[table] = map[rowKey]owner{}
			}
			if all[s], ok = p.shapes[s].runsOf(b, i, owners[table]); !ok {
				return false, nil
			}
		}
	}
	out := map[int]bool{}
	for in, s := range b.file.all {
		sh, runs := p.shapes[s], all[s]
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
			if err := in.unexpected(s, r.run, 0); err != nil {
				b.fail(r.msg, err)
			}
		}
	}
	return true, nil
}

// mustChange runs a statement that changes so many rows.
func (w *statement) mustChange(ctx context.Context, b *batch, want int) error {
	rows, err := w.exec(ctx, b.conn)
	if err == nil && rows != int64(want) {
		err = errNotJoined
	}
	return err
}

// insertAll inserts a row for each run.
func (b *batch) insertAll(ctx context.Context, sh *shape, runs []joinedRun) error {
	for len(runs) > 0 {
		var w statement
		w.parts(sh.head, nil)
		n := 0
		for n < len(runs) && n < maxJoined && w.Len() < maxJoinedBytes {
			if n > 0 {
				w.WriteByte(',')
			}
			w.parts(sh.values, runs[n].value)
			n++
		}
		if err := w.mustChange(ctx, b, n); err != nil {
			return err
		}
		runs = runs[n:]
	}
	return nil
}

// updateAll locks the rows of all runs in the order of their keys, so that two transactions do not wait for each other,
// and then writes those that are there; of a SELECT it only looks for them. Runs that write the same share a statement,
// or, where the key is an integer, that add something. missing are the runs without a row.
func (b *batch) updateAll(ctx context.Context, sh *shape, runs []joinedRun) (missing []joinedRun, err error) {
	byKey, found := map[rowKey]*joinedRun{}, map[rowKey]bool{}
	for _, r := range runs {
		if first := byKey[r.key]; first != nil {
			for i := range r.sums {
				first.sums[i] += r.sums[i]
			}
			continue
		}
		byKey[r.key] = &r
	}
	keys := slices.SortedFunc(maps.Keys(byKey), sh.compare)
	if err := b.lockRows(ctx, sh, keys, found); err != nil {
		return nil, err
	}
	absent := func(key rowKey) bool { return !found[key] }
	if !sh.oneInteger() {
		// Those without a row by themselves: where another key stood beside one that its collation holds for the same, their
		// row was shown under one of the two.
		again := slices.DeleteFunc(slices.Clone(keys), func(key rowKey) bool { return found[key] })
		if err := b.lockRows(ctx, sh, again, found); err != nil {
			return nil, err
		}
	}
	for _, r := range runs { // in their own order: the first of a message is the one that it fails of
		if absent(r.key) {
			missing = append(missing, r)
		}
	}
	if sh.reads {
		return missing, nil
	}
	keys = slices.DeleteFunc(keys, absent)
	var groups [][]*joinedRun // one for each key, by what is written
	at := map[string]int{}
	for _, key := range keys {
		write := ""
		if !sh.oneInteger() || sh.assigns {
			var w statement
			w.set(sh, byKey[key])
			write = w.String() + fmt.Sprint(w.args...)
		}
		if _, known := at[write]; !known {
			at[write], groups = len(groups), append(groups, nil)
		}
		groups[at[write]] = append(groups[at[write]], byKey[key])
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

// compare is the order of keys.
func (sh *shape) compare(x, y rowKey) (order int) {
	for i := 0; i < len(sh.key) && order == 0; i++ {
		if n, ok := x[i].(int64); ok {
			order = cmp.Compare(n, y[i].(int64))
		} else {
			order = strings.Compare(x[i].(string), y[i].(string))
		}
	}
	return order
}

// set writes what stands between SET and WHERE: where runs were added up, the sums. Of several runs only these differ.
func (w *statement) set(sh *shape, runs ...*joinedRun) {
	for _, p := range sh.set {
		if p.add > 0 {
			p.text, p.param = sumOf(sh, runs, p.add-1), nil
		}
		w.parts([]part{p}, runs[0].value)
	}
}

// sumOf is what is added to a row. Each row of several finds its sum by a binary search for its key.
func sumOf(sh *shape, runs []*joinedRun, add int) string {
	first, literal := runs[0].sums[add], sh.adds[add].literal
	if !slices.ContainsFunc(runs, func(r *joinedRun) bool { return r.sums[add] != first }) {
		return " " + literal(first)
	}
	var keys, sums strings.Builder
	for _, r := range runs {
		fmt.Fprintf(&keys, ",%d", r.key[0])
		sums.WriteString("," + literal(r.sums[add]))
	}
	as := "SIGNED"
	if scale := sh.adds[add].scale; scale > 0 {
		as = fmt.Sprintf("DECIMAL(%d,%d)", maxScale+8, scale)
	}
	return " CAST(ELT(INTERVAL(" + quoteName(sh.key[0].name) + keys.String() + ")" + sums.String() + ") AS " + as + ")"
}

// selection writes the condition on rows with these keys.
func (sh *shape) selection(w *statement, keys []rowKey) {
	for i, k := range keys {
		for c, column := range sh.key {
			switch name := quoteName(column.name); {
			case i == 0 && len(sh.key) == 1:
				w.WriteString(" WHERE " + name + " IN (")
			case len(sh.key) == 1:
				w.WriteByte(',')
			case i == 0 && c == 0: // not as a list of rows, for which MariaDB reads the whole index
				w.WriteString(" WHERE (" + name + "=")
			case c == 0:
				w.WriteString(" OR " + name + "=")
			default:
				w.WriteString(" AND " + name + "=")
			}
			w.value(k[c])
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
func (b *batch) lockRows(ctx context.Context, sh *shape, all []rowKey, found map[rowKey]bool) error {
	for keys := range slices.Chunk(all, maxJoined) {
		var w statement
		w.WriteString("SELECT " + sh.columns() + "," + quoteName(sh.assigned[0]) + " IS NULL FROM " + quoteName(sh.table) +
			" FORCE INDEX (" + quoteName(sh.index) + ")")
		sh.selection(&w, keys)
		w.WriteString(" ORDER BY " + sh.columns())
		if !sh.reads || sh.locks {
			w.WriteString(" FOR UPDATE")
		}
		rows, err := rowsOf(ctx, b.conn, w.String(), w.args...)
		if err != nil {
			return err
		}
		for _, row := range rows {
			var key rowKey
			for i, k := range sh.key {
				if key[i] = row[i]; k.integer {
					key[i], _ = scaled(number(row[i]), 0)
				}
			}
			// A collation may find a row under another spelling of its key.
			if _, asked := slices.BinarySearchFunc(keys, key, sh.compare); !asked || found[key] {
				return errNotJoined
			}
			found[key] = true
		}
	}
	return nil
}

// writeRows writes the same into the rows of these runs, each of which must change.
func (b *batch) writeRows(ctx context.Context, sh *shape, runs []*joinedRun) error {
	var w statement
	w.WriteString("UPDATE " + quoteName(sh.table) + " FORCE INDEX (" + quoteName(sh.index) + ") SET")
	w.set(sh, runs...)
	keys := make([]rowKey, len(runs))
	for i := range runs {
		keys[i] = runs[i].key
	}
	sh.selection(&w, keys)
	return w.mustChange(ctx, b, len(runs))
}
