package main

import (
	"database/sql"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestMain(m *testing.M) { stack.Main(m) }

// Given the example's tables, when a message is called for many times with one key, also at once, then its goods are
// added once, and every call is told that all is well.
func TestACallIsKnownAgainByItsKey(t *testing.T) {
	db := require.Get(sql.Open("mysql", stack.MySQL(t)))(t)
	defer db.Close()
	stack.Script(t, db, "tables.sql")
	const order = `{"order_sn":"1","items":[{"sku_id":1001,"quantity":2},{"sku_id":1002,"quantity":1}]}`
	call := func(key, body string) int {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/rollbacks", strings.NewReader(body))
		if key != "" {
			r.Header.Set("Idempotency-Key", key)
		}
		return rollback(db, r)
	}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if status := call("first", order); status != http.StatusOK && status != http.StatusNoContent {
				t.Errorf("a call is answered with %d, want 200 or 204", status)
			}
		})
	}
	wg.Wait()
	assert.Is(t, call("second", order), http.StatusNoContent, "another order is answered with")
	for key, body := range map[string]string{"": order, "third": `{"items":`, "none": `{"order_sn":"1"}`,
		"some": `{"items":[{"sku_id":1001}]}`, "half": `{"items":[{"sku_id":1001,"quantity":2.5}]}`} {
		assert.Is(t, call(key, body), http.StatusBadRequest, "key %q and body %q are answered with", key, body)
	}
	for sku, want := range map[int]int{1001: 9, 1002: 2} {
		amount := stack.Number(t, db, "SELECT amount FROM tb_stock WHERE goods_id = ?", sku)
		assert.Is(t, amount, want, "the stock of %d", sku)
	}
}
