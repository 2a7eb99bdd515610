package outbox

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
)

// MigrationSet is the name under which the versions of [Migrations] are counted in a schema. It never changes.
const MigrationSet = "outbox"

// Table is the outbox, in whatever schema.
const Table = "rollbackd_outbox"

//go:embed migrations
var migrationFiles embed.FS

// Migrations are the steps that make the table rollbackd_outbox, as files for goose.
func Migrations() fs.FS {
	files, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		panic(err) // only a path that is not valid is refused
	}
	return files
}

// Sets is the outbox and nothing else of rollbackd's, for [dedup.Migrate] and [dedup.MigrationStatus].
func Sets() dedup.MigrateOptions {
	return dedup.MigrateOptions{NoLog: true, Extra: []dedup.MigrationSet{{Name: MigrationSet, Files: Migrations()}}}
}

// ErrSchema says that the schema has no outbox that this program can use.
var ErrSchema = dedup.ErrSchema

// CheckSchema refuses, as [ErrSchema], a schema without the table, and one that is too old or too new for this program,
// or lacks a column. Columns that this program does not know are no harm. Any other error means that nothing could be
// found out.
func CheckSchema(ctx context.Context, db *sql.DB) error {
	err := dedup.CheckSets(ctx, db, Sets())
	if err == nil {
		_, err = db.ExecContext(ctx, "SELECT body, content_type, headers, "+columns+" FROM rollbackd_outbox LIMIT 0")
		if mysqldb.NoTable(err) || mysqldb.NoColumn(err) {
			err = fmt.Errorf("%w: %w", ErrSchema, err)
		}
	}
	if err != nil {
		return fmt.Errorf("outbox, whose table `rollbackd migrate --outbox` makes: %w", err)
	}
	return nil
}

// Migrate makes the table, or brings it up to this program's version, in the schema that db is connected to; it needs
// none of rollbackd's other tables. It may run again, and in several processes at once. docs/rights.md says which
// rights it needs.
func Migrate(ctx context.Context, db *gorm.DB) error { return dedup.Migrate(ctx, db, Sets()) }
