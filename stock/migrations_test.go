package stock_test

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/stock"
)

//go:embed testdata/former.sql
var former string

// withStock is what a service migrates that has both log and stock in a schema.
func withStock() dedup.MigrateOptions {
	return dedup.MigrateOptions{
		Table: "consumer_log", Extra: []dedup.MigrationSet{{Name: stock.MigrationSet, Files: stock.Migrations()}},
	}
}

// schema is all that the server tells of the tables, and the versions without their time.
func schema(t *testing.T, db *gorm.DB) map[string]string {
	t.Helper()
	var names []string
	const list = "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()"
	require.OK(t, db.WithContext(t.Context()).Raw(list).Scan(&names).Error)
	all := map[string]string{}
	for _, name := range names {
		shown := map[string]any{}
		require.OK(t, db.WithContext(t.Context()).Raw("SHOW CREATE TABLE `"+name+"`").Scan(&shown).Error)
		all[name] = fmt.Sprint(shown["Create Table"], shown["Create View"])
	}
	all["versions"] = versions(t, db, "CONCAT_WS(' ', set_name, version, oldest)")
	return all
}

func versions(t *testing.T, db *gorm.DB, what string) string {
	t.Helper()
	var rows []string
	text := "SELECT " + what + " FROM rollbackd_schema ORDER BY set_name, version"
	require.OK(t, db.WithContext(t.Context()).Raw(text).Scan(&rows).Error)
	return strings.Join(rows, "\n")
}

func openSchema(t *testing.T) *gorm.DB {
	t.Helper()
	db := require.First(dedup.Open(t.Context(), stack.MySQL(t), dedup.OpenOptions{}))(t)
	pool := require.Get(db.DB())(t)
	t.Cleanup(func() { _ = pool.Close() })
	return db
}

// The log's package made the tables of stock once. A database of that time is this program's too: what is applied is
// known, what is left is applied, and a new one is made like it, down to the version table.
func TestADatabaseOfTheFormerProgramGetsWhatCameSince(t *testing.T) {
	old := openSchema(t)
	for text := range strings.SplitSeq(former, ";\n") {
		if strings.TrimSpace(text) == "" {
			continue
		}
		require.OK(t, old.WithContext(t.Context()).Exec(text).Error)
	}
	const ofFormer = "CONCAT_WS(' ', set_name, version, oldest, " +
		"IF(set_name = 'stock' AND version > 1 OR set_name LIKE 'log:%' AND version > 3, '', applied_at))"
	applied := versions(t, old, ofFormer)

	steps, err := dedup.MigrationStatus(t.Context(), old, withStock())
	require.That(t, err == nil && len(steps) == 8, "status: %d steps, %v, want 8", len(steps), err)
	for i, want := range []string{"log/0004_desk.sql false", "log/0005_due.sql false", "log/0006_minute.sql false",
		"stock/0001_stock.sql true", "stock/0002_room.sql false"} {
		s := steps[3+i]
		assert.That(t, fmt.Sprint(s.Set, "/", s.Name, " ", s.Applied) == want, "step %d is %+v, want %s", 3+i, s, want)
	}
	require.OK(t, dedup.Migrate(t.Context(), old, withStock()))
	want := strings.Split(applied+"\nlog:consumer_log 4 1 \nlog:consumer_log 5 1 \nlog:consumer_log 6 1 \n"+
		"stock 2 1 ", "\n")
	slices.Sort(want)
	if got := strings.Split(versions(t, old, ofFormer), "\n"); !slices.Equal(slices.Sorted(slices.Values(got)), want) {
		t.Errorf("the versions are\n%q\nthey were\n%s", got, applied)
	}

	fresh := openSchema(t)
	require.OK(t, dedup.Migrate(t.Context(), fresh, withStock()))
	d := cmp.Diff(schema(t, old), schema(t, fresh))
	assert.That(t, d == "", "a new schema differs from one of the former program (-former +new):\n%s", d)
}

// A migration that dies between a step and the note that it is applied runs the step again.
func TestEveryStepMayBeRepeated(t *testing.T) {
	w := newWorld(t)
	before := schema(t, w.g)
	w.exec("DELETE FROM rollbackd_schema WHERE set_name = 'stock' AND version > 0")
	w.migrate()
	d := cmp.Diff(before, schema(t, w.g))
	assert.That(t, d == "", "the second time changed the schema (-before +after):\n%s", d)
}

func TestStockTablesKeepTheirPromises(t *testing.T) {
	w := newWorld(t)
	w.exec("INSERT INTO stock (sku_id, amount) VALUES (9223372036854775807, 1)")
	w.exec("INSERT INTO stock_reservation (order_sn, sku_id, quantity, status)" +
		" VALUES ('a', 1, 1000000000, 1), ('A', 1, 1, 2), ('a ', 1, 1, 3), ('á', 1, 0, 4)")
	for _, text := range []string{
		"UPDATE stock SET amount = amount - 2",
		"UPDATE stock_reservation SET quantity = -1",
		"UPDATE stock_reservation SET status = 5",
		"INSERT INTO stock_reservation (order_sn, sku_id, quantity, status) VALUES ('a', 1, 1, 1)",
		"INSERT INTO stock_reservation (order_sn, sku_id, quantity, status) VALUES (REPEAT('o', 65), 1, 1, 1)",
	} {
		_, err := w.db.ExecContext(t.Context(), text)
		assert.That(t, mysqldb.Classify(err) == mysqldb.FaultData, "%s = %v, want it refused", text, err)
	}
}
