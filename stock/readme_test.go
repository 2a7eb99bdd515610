package stock_test

import (
	"database/sql"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/stock"
)

var (
	sqlBlock  = regexp.MustCompile("(?s)```sql\n(.*?);\n```")
	parameter = regexp.MustCompile(`:[a-z_]+`)
)

// A service in another language that does what README.md says and this package see each other's work.
func TestTheDocumentedSQLWorks(t *testing.T) {
	readme := require.Get(os.ReadFile("README.md"))(t)
	var blocks []string
	for _, match := range sqlBlock.FindAllStringSubmatch(string(readme), -1) {
		blocks = append(blocks, match[1])
	}
	require.Is(t, len(blocks), 7, "statements")
	insert, look, take, deduct, release, restock, mark := blocks[0], blocks[1], blocks[2], blocks[3], blocks[4], blocks[5],
		blocks[6]
	w := newWorld(t)
	w.goods(10, 1)
	values := map[string]any{":sku_id": 1, ":quantity": 4, ":tag": "tag", ":key": "key"}
	do := func(order string, statements ...string) error {
		values[":order_sn"] = order
		return w.tx(func(tx *gorm.DB) error {
			for _, statement := range statements {
				var args []any
				text := parameter.ReplaceAllStringFunc(statement, func(name string) string {
					args = append(args, values[name])
					return "?"
				})
				if strings.HasPrefix(text, "SELECT") {
					rows, err := tx.Statement.ConnPool.QueryContext(t.Context(), text, args...)
					if err != nil {
						return err
					}
					if err := rows.Close(); err != nil {
						return err
					}
					continue
				}
				res, err := tx.Statement.ConnPool.ExecContext(t.Context(), text, args...)
				if err != nil {
					return err
				}
				if n, err := res.RowsAffected(); err != nil || n != 1 {
					return errors.Join(sql.ErrNoRows, err)
				}
			}
			return nil
		})
	}
	require.OK(t, do("a", insert, look, take))
	w.wantReservations("a", "1×4 reserved")
	w.wantAmount(1, 6)
	require.OK(t, w.reserve("a", item(1, 4))) // already done
	err := do("a", insert)
	assert.That(t, mysqlNumber(err) == 1062, "reserved twice: %v, want error 1062", err)
	require.OK(t, do("b", insert, look, take))
	assert.Error(t, do("c", insert, look, take), sql.ErrNoRows, "sold what was not there")
	require.OK(t, do("a", look, deduct))
	require.OK(t, w.confirm("a"))
	require.OK(t, do("b", look, release, restock))
	require.OK(t, w.rollback(refuse, message("b", "k", item(1, 4)), message("d", "k", item(1, 4))))
	w.wantReservations("a", "1×4 deducted")
	w.wantReservations("b", "1×4 released tag/key")
	err = do("d", insert)
	assert.That(t, mysqlNumber(err) == 1062, "reserved a refused item: %v, want error 1062", err)
	w.wantAmount(1, 6)
	require.OK(t, do("e", mark, look))
	require.OK(t, w.rollback(refuse, message("e", "k")))
	w.wantReservations("e", "0×0 refused tag/key")
	assert.Error(t, w.reserve("e", item(1, 4)), stock.ErrRefused, "reserved for an order that is marked")
}
