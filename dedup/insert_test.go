package dedup

import (
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func entries(n int) []Entry {
	all := make([]Entry, n)
	for i := range all {
		all[i] = entryOf(key(fmt.Sprintf("order-%06d", i)))
		all[i].Body, all[i].Properties = nil, nil
	}
	return all
}

func TestFastPathStoresNoBodyAndNoEvent(t *testing.T) {
	w := newWorld(t)
	all := entries(2345) // three statements
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	first := all[0].Identity

	assert.OK(t, w.insertSuccess(all...))

	assert.That(t, all[0].Identity == first, "the caller's entries were reordered")
	n := w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 1 AND consumer_times = 1 AND msg_body IS " +
		"NULL")
	assert.That(t, n == len(all), "%d rows, want %d", n, len(all))
	assert.Is(t, w.number("SELECT COUNT(*) FROM consumer_log_event"), 0, "events")
	row := w.read(all[0].Identity)
	wantVersion(t, row, Version{Success, 1, 0, ""})
	assert.That(t, row.MessageID == all[0].MessageID && string(row.BodyHash) == string(all[0].BodyHash[:]) &&
		time.Since(row.CreatedAt).Abs() <= time.Minute, "row %+v", row)
}

func TestFastPathMeetingARowOfOurs(t *testing.T) {
	w := newWorld(t)
	all := entries(10)
	assert.OK(t, w.insertSuccess(all[3]))

	assert.Error(t, w.insertSuccess(all...), ErrExists, "insert again")

	assert.Is(t, w.number("SELECT COUNT(*) FROM consumer_log"), 1, "rows")
	if err := w.insertSuccess(all[5], all[5]); err == nil || errors.Is(err, ErrExists) {
		t.Errorf("one identity twice in a batch = %v, want an error that looking up again does not explain", err)
	}
	assert.OK(t, w.insertSuccess())
}

func TestWhatIsTakenBackWasNeverThere(t *testing.T) {
	w := newWorld(t)
	all := entries(2)
	assert.OK(t, w.inTx(func(tx *sql.Tx) error {
		assert.OK(t, w.log.InsertSuccess(t.Context(), tx, all))
		assert.OK(t, w.log.TakeBack(t.Context(), tx, []Identity{all[0].Identity}))
		err := w.log.TakeBack(t.Context(), tx, []Identity{all[0].Identity})
		assert.That(t, err != nil, "taken back twice, want an error: its row is not this transaction's")
		return nil
	}))

	for i, want := range []Status{Absent, Success} {
		assert.Is(t, w.read(all[i].Identity).Status, want, "row %d", i)
	}
}

// A 1062 of another table says nothing about our row: taken for ours, the engine would look up and start anew for ever.
func TestDuplicateOfAnotherTableIsNotOurs(t *testing.T) {
	w := newWorld(t)
	w.exec("CREATE TABLE audit (n INT, UNIQUE KEY audit_once (n))")
	w.exec("INSERT INTO audit VALUES (1)")
	w.exec("CREATE TRIGGER audit_log BEFORE INSERT ON consumer_log FOR EACH ROW INSERT INTO audit VALUES (1)")
	k := key("' for key 'PRIMARY")
	err := w.insertSuccess(entryOf(k))
	if errors.Is(err, ErrExists) || mysqldb.Classify(err) != mysqldb.FaultData {
		t.Errorf("insert = %v (%v)", err, mysqldb.Classify(err))
	}
	if _, err := w.log.Claim(t.Context(), absent(k), entryOf(k), "o"); errors.Is(err, ErrLost) ||
		mysqldb.Classify(err) != mysqldb.FaultData {
		t.Errorf("claim = %v (%v)", err, mysqldb.Classify(err))
	}
	w.exec("DROP TRIGGER audit_log")
	longest := Identity{strings.Repeat("'", MaxGroup), strings.Repeat("\\", MaxTag), strings.Repeat("é", MaxKey/2)}
	for _, k := range []Identity{k, longest} {
		assert.OK(t, w.insertSuccess(entryOf(k)))
		assert.Error(t, w.insertSuccess(entryOf(k)), ErrExists, "insert again")
	}
}

func TestFastPathWritesInTheOrderOfKeys(t *testing.T) {
	w := newWorld(t)
	all := entries(1200)
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	r := &counting{}
	err := w.inTx(func(tx *sql.Tx) error { r.Execer = tx; return w.log.InsertSuccess(t.Context(), r, all) })
	if err != nil || len(r.names) != len(all) || !slices.IsSorted(r.names) {
		t.Errorf("%d names, sorted %v, %v", len(r.names), slices.IsSorted(r.names), err)
	}
}

func TestOverlappingBatchesDoNotDeadlock(t *testing.T) {
	w := newWorld(t)
	all := entries(300)
	var wg sync.WaitGroup
	for n := range 6 {
		wg.Go(func() {
			for round := range 10 {
				mine := append([]Entry(nil), all[round*30:round*30+30]...)
				rand.Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
				err := w.insertSuccess(mine...)
				assert.That(t, err == nil || errors.Is(err, ErrExists), "worker %d: %v", n, err)
			}
		})
	}
	wg.Wait()
	assert.Is(t, w.number("SELECT COUNT(*) FROM consumer_log"), len(all), "rows")
}

func TestChunksHoldAtMostSoManyRowsAndBytes(t *testing.T) {
	for _, c := range []struct{ n, size, want int }{
		{1, 10, 1}, {maxRows, 10, maxRows}, {maxRows + 1, 10, maxRows}, {5, maxBytes, 1}, {5, 2 * maxBytes, 1},
		{5, maxBytes / 2, 2},
	} {
		assert.Is(t, chunkOf(c.n, func(int) int { return c.size }), c.want,
			"%d rows of %d bytes: in a statement", c.n, c.size)
	}
}

func BenchmarkInsertAndLookUpOf500(b *testing.B) {
	w := newWorldOn(b, stack.MySQL(b))
	all := entries(500)
	keys := make([]Identity, len(all))
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		n++
		for i := range all {
			all[i].Tag = fmt.Sprint("t", n)
			keys[i] = all[i].Identity
		}
		require.Get(w.log.LookUp(b.Context(), keys))(b)
		require.OK(b, w.insertSuccess(all...))
	}
	b.ReportMetric(float64(500*b.N)/b.Elapsed().Seconds(), "rows/s")
}

// Batches that are full have one text, which a connection prepares once; what it stores is the same.
func TestFullBatchesAreInsertedByAPreparedStatement(t *testing.T) {
	w := newWorld(t)
	w.pool.SetMaxOpenConns(1)
	count := func(name string) (n int) {
		t.Helper()
		row := w.pool.QueryRowContext(t.Context(), "SHOW SESSION STATUS LIKE '"+name+"'")
		assert.OK(t, row.Scan(&name, &n))
		return n
	}
	byMigration, ran := count("Com_stmt_prepare"), count("Com_stmt_execute")
	all := entries(3*maxRows + 3*(leastRepeated-1))
	all[maxRows].Key, all[maxRows].MessageID = "'\\\"é", ""
	for i := range 3 {
		assert.OK(t, w.insertSuccess(all[i*maxRows:(i+1)*maxRows]...))
	}
	prepares, executes := count("Com_stmt_prepare")-byMigration, count("Com_stmt_execute")-ran
	assert.That(t, prepares == 1 && executes == 2, "three full batches: prepared %d times, executed so %d times; want 1 "+
		"and 2", prepares, executes)
	for i := range 3 {
		from := 3*maxRows + i*(leastRepeated-1)
		assert.OK(t, w.insertSuccess(all[from:from+leastRepeated-1]...))
	}
	assert.Is(t, count("Com_stmt_prepare")-byMigration, 1, "small batches were prepared too: times")
	for _, i := range []int{0, maxRows, 2*maxRows + 1, len(all) - 1} {
		row := w.read(all[i].Identity)
		wantVersion(t, row, Version{Success, 1, 0, ""})
		assert.That(t, row.MessageID == all[i].MessageID && string(row.BodyHash) == string(all[i].BodyHash[:]),
			"row %d is %+v", i, row)
	}
	assert.Error(t, w.insertSuccess(all[:maxRows]...), ErrExists, "a copy in a full batch")
	assert.Is(t, w.number("SELECT COUNT(*) FROM consumer_log"), len(all), "rows")
}
