package stock

import (
	"embed"
	"io/fs"
)

// MigrationSet is the name under which the versions of [Migrations] are counted in a schema. It never changes.
const MigrationSet = "stock"

//go:embed migrations
var migrationFiles embed.FS

// Migrations are the steps that make the tables stock and stock_reservation, as files for goose. Whoever keeps the
// schema applies them under the name [MigrationSet]; "rollbackd migrate" does.
func Migrations() fs.FS {
	files, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		panic(err) // only a path that is not valid is refused
	}
	return files
}
