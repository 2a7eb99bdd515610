package dedup

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/pressly/goose/v3/database"
)

// versionStore keeps goose's versions in rollbackd_schema: a count of its own for every set, and with each version the
// oldest program that still works with it. It has what goose calls on its way up.
type versionStore struct {
	database.Store // nil: what Up does not call
	set            string
	oldest         map[int64]int64
}

var _ database.StoreExtender = (*versionStore)(nil)

// Tablename is the version table.
func (s *versionStore) Tablename() string { return versionTable }

// TableExists reports whether this set has been begun.
func (s *versionStore) TableExists(ctx context.Context, db database.DBTxConn) (bool, error) {
	applied, err := readVersions(ctx, db, s.set)
	return len(applied) > 0, err
}

// CreateVersionTable creates the table unless another set did.
func (s *versionStore) CreateVersionTable(ctx context.Context, db database.DBTxConn) error {
	_, err := db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS `+versionTable+` (
  set_name   VARBINARY(100) NOT NULL,
  version    BIGINT         NOT NULL,
  oldest     BIGINT         NOT NULL COMMENT 'the oldest program, by its latest version, that works with this one',
  applied_at DATETIME(6)    NOT NULL COMMENT 'UTC',
  PRIMARY KEY (set_name, version)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin`)
	return err
}

// Insert notes a version as applied.
func (s *versionStore) Insert(ctx context.Context, db database.DBTxConn, req database.InsertRequest) error {
	_, err := db.ExecContext(ctx, "INSERT INTO "+versionTable+" (set_name, version, oldest, applied_at) "+
		"VALUES (?, ?, ?, UTC_TIMESTAMP(6))", []byte(s.set), req.Version, s.oldest[req.Version])
	return err
}

// GetLatestVersion reads the highest version.
func (s *versionStore) GetLatestVersion(ctx context.Context, db database.DBTxConn) (int64, error) {
	all, err := s.ListMigrations(ctx, db)
	if err != nil || len(all) == 0 {
		return 0, cmp.Or(err, database.ErrVersionNotFound)
	}
	return all[0].Version, nil
}

// ListMigrations reads all versions, the latest first.
func (s *versionStore) ListMigrations(
	ctx context.Context, db database.DBTxConn,
) (all []*database.ListMigrationsResult, err error) {
	applied, err := readVersions(ctx, db, s.set)
	for _, version := range slices.Backward(slices.Sorted(maps.Keys(applied))) {
		all = append(all, &database.ListMigrationsResult{Version: version, IsApplied: true})
	}
	return all, err
}
