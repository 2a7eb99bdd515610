package sql

import (
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

// joinedRun is a run of a statement in a batch; it may stand for several with the same key.
type joinedRun struct {
	run
	index int     // of the message
	keys  []any   // the values of shape.key
	key   string  // the same as one, see keyOf
	sums  []int64 // of shape.adds
	found bool    // its row is there
	adds  bool    // it stands for several, which add
}

// runsOf lists the runs of a statement for all messages; ok is false where they cannot be joined. Owners are those of
// the rows of all tables, for all statements: the item that names a row, or the message where that is none of a list's.
func (sh *shape) runsOf(b *batch, section int, owners map[string]any) (runs []*joinedRun, ok bool) {
	for m := range b.msgs {
		d, ok := b.msgs[m].Value.(decoded)
		if !ok {
			return nil, false
		}
		for i := range d[section] {
			r := &joinedRun{run: d[section][i], index: m}
			r.msg = &b.msgs[m]
			runs = append(runs, r)
			if sh.insert {
				continue
			}
			if !r.prepare(sh) {
				return nil, false
			}
			var owner any = r.msg
			if r.in.each {
				owner = &d[section][i]
			}
			row, _ := sh.keyOf(r.keys[:sh.unique])
			row = strings.ToLower(sh.table) + " " + row
			if first, known := owners[row]; known && first != owner && !sh.repeats {
				return nil, false
			}
			owners[row] = owner
		}
	}
	return runs, true
}

// prepare reads the key and what is added; false when they are not of the kind that can be joined. What is added must
// be positive: then no sum is refused of which each step is taken, or the other way round.
func (r *joinedRun) prepare(sh *shape) (ok bool) {
	for _, k := range sh.key {
		r.keys = append(r.keys, k.value(r.run))
	}
	if r.key, ok = sh.keyOf(r.keys); !ok {
		return false
	}
	for _, a := range sh.adds {
		n, ok := scaled(a.value(r.run), a.scale)
		if !ok || n <= 0 || n > math.MaxInt32 { // no sum is over 2^63
			return false
		}
		r.sums = append(r.sums, n)
	}
	return true
}

// keyOf is a key, or its first columns, in one: it stands for these values alone, and those of integers are in their
// order. Not ok when they are not of the kind of the columns.
func (sh *shape) keyOf(values []any) (key string, ok bool) {
	for i, v := range values {
		text, ok := v.(string)
		if sh.key[i].integer {
			var n int64
			n, ok = scaled(v, 0)
			key += fmt.Sprintf("%020d", uint64(n)^1<<63)
		} else {
			key += strconv.Quote(text)
		}
		if !ok {
			return "", false
		}
	}
	return key, true
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
	all, owners := map[*Statement][]*joinedRun{}, map[string]any{}
	for i, in := range b.file.sections {
		for _, s := range in.statements {
			if all[s], ok = p.shapes[s].runsOf(b, i, owners); !ok {
				return false, nil
			}
		}
	}
	out := map[int]bool{}
	for _, s := range b.file.all {
		sh := p.shapes[s]
		runs := slices.DeleteFunc(all[s], func(r *joinedRun) bool { return out[r.index] })
		var missing []*joinedRun
		if sh.insert {
			err = b.insertAll(ctx, sh, runs)
		} else {
			missing, err = b.updateAll(ctx, sh, runs)
		}
		if err != nil {
			return true, fmt.Errorf("line %d, for %d messages at once: %w", s.At.Line, len(b.msgs), err)
		}
		for _, r := range missing {
			if out[r.index] {
				continue
			}
			out[r.index] = true
			if err := r.unexpected(s, 0); err != nil {
				b.fail(r.index, err)
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
func (b *batch) insertAll(ctx context.Context, sh *shape, runs []*joinedRun) error {
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
func (b *batch) updateAll(ctx context.Context, sh *shape, runs []*joinedRun) (missing []*joinedRun, err error) {
	byKey := map[string]*joinedRun{}
	for _, r := range runs {
		if first := byKey[r.key]; first != nil {
			for i := range r.sums {
				first.sums[i] += r.sums[i]
			}
			first.adds = len(r.sums) > 0
			continue
		}
		byKey[r.key] = r
	}
	rows := slices.SortedFunc(maps.Values(byKey), func(x, y *joinedRun) int { return strings.Compare(x.key, y.key) })
	if err := b.lockRows(ctx, sh, rows, byKey); err != nil {
		return nil, err
	}
	if !sh.oneInteger() {
		// Those without a row by themselves: where another key stood beside one that its collation holds for the same, their
		// row was shown under one of the two.
		again := slices.DeleteFunc(slices.Clone(rows), func(r *joinedRun) bool { return r.found })
		if err := b.lockRows(ctx, sh, again, byKey); err != nil {
			return nil, err
		}
	}
	for _, r := range runs { // in their own order: the first of a message is the one that it fails of
		if !byKey[r.key].found {
			missing = append(missing, r)
		}
	}
	if sh.reads {
		return missing, nil
	}
	same := map[string][]*joinedRun{} // those with a row, by what is written
	for _, r := range rows {
		if !r.found {
			continue
		}
		write := ""
		if !sh.oneInteger() || sh.assigns {
			var w statement
			w.set(sh, r)
			write = fmt.Sprintf("%s%q", &w, w.args)
		}
		same[write] = append(same[write], r)
	}
	for _, write := range slices.Sorted(maps.Keys(same)) {
		for chunk := range slices.Chunk(same[write], maxJoined) {
			if err := b.writeRows(ctx, sh, chunk); err != nil {
				return nil, err
			}
		}
	}
	return missing, nil
}

// set writes what stands between SET and WHERE: where runs were added up, the sums. Of several runs only these differ.
func (w *statement) set(sh *shape, runs ...*joinedRun) {
	for _, p := range sh.set {
		if p.add > 0 {
			p = part{text: sumOf(sh, runs, p.add-1)}
		}
		w.parts([]part{p}, runs[0].value)
	}
}

// sumOf is what is added to a row. Each row of several finds its sum by a binary search for its key.
func sumOf(sh *shape, runs []*joinedRun, add int) string {
	first, decimal := runs[0].sums[add], sh.adds[add].literal
	if !slices.ContainsFunc(runs, func(r *joinedRun) bool { return r.sums[add] != first }) {
		return " " + decimal(first)
	}
	var keys, sums strings.Builder
	for _, r := range runs {
		keys.WriteString("," + literal(r.keys[0]))
		sums.WriteString("," + decimal(r.sums[add]))
	}
	as := "SIGNED"
	if scale := sh.adds[add].scale; scale > 0 {
		as = fmt.Sprintf("DECIMAL(%d,%d)", maxScale+8, scale)
	}
	return " CAST(ELT(INTERVAL(" + quoteName(sh.key[0].name) + keys.String() + ")" + sums.String() + ") AS " + as + ")"
}

// selection writes the condition on the rows of these runs. With several columns it is no list of rows, for which
// MariaDB reads the whole index.
func (sh *shape) selection(w *statement, runs []*joinedRun) {
	names := sh.columns()
	lead, next := " WHERE ("+names[0]+"=", " OR "+names[0]+"="
	if len(names) == 1 {
		lead, next = " WHERE "+names[0]+" IN (", ","
	}
	for _, r := range runs {
		for i, name := range names {
			if i > 0 {
				lead = " AND " + name + "="
			}
			w.WriteString(lead)
			w.value(r.keys[i])
		}
		lead = next
	}
	w.WriteString(")")
	w.parts(sh.where, nil)
}

// columns are those of the key, in quotes.
func (sh *shape) columns() (names []string) {
	for _, k := range sh.key {
		names = append(names, quoteName(k.name))
	}
	return names
}

// lockRows finds the rows with these keys that meet the other conditions, and locks them. It reads a column that no key
// has: of an index that covers all columns of a statement MySQL reads the whole when it is asked for many of few rows,
// and waits for locks on rows that nobody asked for.
func (b *batch) lockRows(ctx context.Context, sh *shape, all []*joinedRun, byKey map[string]*joinedRun) error {
	columns := strings.Join(sh.columns(), ",")
	for runs := range slices.Chunk(all, maxJoined) {
		var w statement
		w.WriteString("SELECT " + columns + "," + quoteName(sh.assigned[0]) + " IS NULL FROM " + quoteName(sh.table) +
			" FORCE INDEX (" + quoteName(sh.index) + ")")
		sh.selection(&w, runs)
		w.WriteString(" ORDER BY " + columns)
		if !sh.reads || sh.locks {
			w.WriteString(" FOR UPDATE")
		}
		rows, err := rowsOf(ctx, b.conn, w.String(), w.args...)
		if err != nil {
			return err
		}
		for _, row := range rows {
			keys := make([]any, len(sh.key))
			for i, k := range sh.key {
				if keys[i] = row[i]; k.integer {
					keys[i] = number(row[i])
				}
			}
			key, _ := sh.keyOf(keys)
			r := byKey[key]
			// A collation may find a row under another spelling of its key; and where nothing is added to NULL, a second run
			// may change nothing.
			if r == nil || r.found || r.adds && row[len(keys)] == "1" {
				return errNotJoined
			}
			r.found = true
		}
	}
	return nil
}

// writeRows writes the same into the rows of these runs, each of which must change.
func (b *batch) writeRows(ctx context.Context, sh *shape, runs []*joinedRun) error {
	var w statement
	w.WriteString("UPDATE " + quoteName(sh.table) + " FORCE INDEX (" + quoteName(sh.index) + ") SET")
	w.set(sh, runs...)
	sh.selection(&w, runs)
	return w.mustChange(ctx, b, len(runs))
}
