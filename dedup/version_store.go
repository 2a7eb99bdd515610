package dedup

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/pressly/goose/v3/database"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
)

// versionStore keeps goose's versions in rollbackd_schema: a count of its own for every set, and with each version the
// oldest program that still works with it.
type versionStore struct {
	set    string
	oldest map[int64]int64
}

var _ database.StoreExtender = (*versionStore)(nil)

func newVersionStore(s migrationSet) (*versionStore, error) {
	steps, err := s.steps()
	if err != nil {
		return nil, err
	}
	store := &versionStore{set: s.name, oldest: map[int64]int64{}}
	for _, step := range steps {
		store.oldest[step.version] = step.oldest
	}
	return store, nil
}

// Tablename is the version table.
func (s *versionStore) Tablename() string { return versionTable }

// TableExists reports whether this set has been begun.
func (s *versionStore) TableExists(ctx context.Context, db database.DBTxConn) (bool, error) {
	_, err := s.GetMigration(ctx, db, 0)
	if errors.Is(err, database.ErrVersionNotFound) || mysqldb.NoTable(err) {
		return false, nil
	}
	return err == nil, err
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
	_, err := db.ExecContext(ctx, "INSERT INTO "+versionTable+" (set_name, version, oldest, applied_at) VALUES (?, ?, "+
		"?, UTC_TIMESTAMP(6))",
		[]byte(s.set), req.Version, s.oldest[req.Version])
	return err
}

// Delete notes a version as not applied.
func (s *versionStore) Delete(ctx context.Context, db database.DBTxConn, version int64) error {
	_, err := db.ExecContext(ctx, "DELETE FROM "+versionTable+" WHERE set_name = ? AND version = ?", []byte(s.set),
		version)
	return err
}

// GetMigration reads one version.
func (s *versionStore) GetMigration(
	ctx context.Context, db database.DBTxConn, version int64,
) (*database.GetMigrationResult, error) {
	var at int64
	err := db.QueryRowContext(ctx, "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', applied_at) FROM "+versionTable+
		" WHERE set_name = ? AND version = ?", []byte(s.set), version).Scan(&at)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, fmt.Errorf("%w: %d", database.ErrVersionNotFound, version)
	}
	if err != nil {
		return nil, err
	}
	return &database.GetMigrationResult{Timestamp: time.UnixMicro(at).UTC(), IsApplied: true}, nil
}

// GetLatestVersion reads the highest version.
func (s *versionStore) GetLatestVersion(ctx context.Context, db database.DBTxConn) (int64, error) {
	var latest sql.NullInt64
	err := db.QueryRowContext(ctx, "SELECT MAX(version) FROM "+versionTable+" WHERE set_name = ?",
		[]byte(s.set)).Scan(&latest)
	if err == nil && !latest.Valid {
		err = database.ErrVersionNotFound
	}
	return latest.Int64, err
}

// ListMigrations reads all versions, the latest first.
func (s *versionStore) ListMigrations(
	ctx context.Context, db database.DBTxConn,
) ([]*database.ListMigrationsResult, error) {
	rows, err := db.QueryContext(ctx, "SELECT version FROM "+versionTable+" WHERE set_name = ? ORDER BY version DESC",
		[]byte(s.set))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []*database.ListMigrationsResult
	for rows.Next() {
		m := &database.ListMigrationsResult{IsApplied: true}
		if err := rows.Scan(&m.Version); err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, rows.Err()
}
