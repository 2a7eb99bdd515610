package stock_test

import (
	"fmt"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/stock"
)

// Every statement goes by ranges of the primary key, also where the tables are small or statistics missing: a scan
// would wait for the locks of rows that nobody asked for.
func TestStatementsUseThePrimaryKey(t *testing.T) {
	t.Parallel()
	for _, rows := range []int{0, 5000} {
		for _, single := range []int{1, 2, 500} { // requests that leave a row of their order reserved
			t.Run(fmt.Sprintf("%d other rows, %d row by row", rows, single), func(t *testing.T) {
				testPrimaryKey(t, rows, single)
			})
		}
	}
}

func testPrimaryKey(t *testing.T, rows, single int) {
	w := newWorld(t)
	requests := make([]stock.Request, 500)
	for i := range requests {
		requests[i] = message(fmt.Sprintf("order-%04d", i), fmt.Sprintf("key-%d", i), item(int64(i)+1, 1),
			item(int64(i)+501, 2))
	}
	for sku := range int64(1000) {
		w.goods(10, sku+1)
	}
	fill(w, requests)
	fill(w, unrelated(rows))
	late := requests[1].Items
	for i := range single {
		requests[i].Items = requests[i].Items[:1]
	}
	requests = append(requests, message("late", "late"))
	statements := w.statements(func(tx *gorm.DB) error { return stock.Rollback(t.Context(), tx, requests, refuse) })
	statements = append(statements, w.statements(func(tx *gorm.DB) error {
		return stock.Reserve(t.Context(), tx, "new", late)
	})...)
	statements = append(statements, w.statements(func(tx *gorm.DB) error {
		return stock.Confirm(t.Context(), tx, "new")
	})...)
	require.OK(t, w.reserve("last", late...))
	statements = append(statements, w.statements(func(tx *gorm.DB) error {
		return stock.Rollback(t.Context(), tx, []stock.Request{message("last", "last", late...)}, refuse)
	})...)
	explained := 0
	for _, statement := range statements {
		if strings.HasPrefix(statement, "INSERT") {
			continue
		}
		explained++
		if kind, key := w.explain(statement); kind != "range" && kind != "ref" && kind != "const" || key != "PRIMARY" {
			t.Errorf("access %s by key %q: %.120s … %s", kind, key, statement, statement[max(0, len(statement)-200):])
		}
	}
	assert.AtLeast(t, explained, 12, "statements explained: %.80q", statements)
}

// An ordinary batch of 500 messages costs three statements.
func TestRollbackTakesThreeStatements(t *testing.T) {
	w := newWorld(t)
	w.goods(1, 1, 2, 3)
	var requests []stock.Request
	for i := range 500 {
		requests = append(requests, message(fmt.Sprintf("order-%04d", i), fmt.Sprintf("key-%d", i), item(int64(i)%3+1, 1),
			item(int64(i+1)%3+1, 2)))
	}
	fill(w, requests)
	statements := w.statements(func(tx *gorm.DB) error {
		return stock.Rollback(t.Context(), tx, requests, stock.Options{})
	})
	require.Is(t, len(statements), 3, "statements: %.60q", statements)
	for i, begins := range []string{"SELECT", "UPDATE stock_reservation", "UPDATE stock FORCE"} {
		if !strings.HasPrefix(statements[i], begins) {
			t.Errorf("statement %d is %.60s, want %s", i, statements[i], begins)
		}
	}
}

// statements are those that f runs in a transaction, which is committed.
func (w *world) statements(f func(tx *gorm.DB) error) []string {
	w.t.Helper()
	var all []string
	require.OK(w.t, w.tx(func(tx *gorm.DB) error {
		bound := tx.Session(&gorm.Session{NewDB: true, Context: w.t.Context()})
		bound.Statement.ConnPool = hooked{tx.Statement.ConnPool, func(statement string) { all = append(all, statement) }}
		return f(bound)
	}))
	return all
}

// explain gives the kind of access and the key of a statement on one table.
func (w *world) explain(statement string) (kind, key string) {
	w.t.Helper()
	for _, row := range stack.RowsOf(w.t, w.db, stack.Explain+statement) {
		kind, key = kind+row["type"], key+row["key"]
	}
	return kind, key
}
