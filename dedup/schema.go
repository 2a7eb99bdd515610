package dedup

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
)

// ErrSchema says that the tables are not such that the log may be used.
var ErrSchema = errors.New("the database schema is not usable; run: rollbackd migrate")

// keyColumns are the columns that tell identities apart. As text, a collation would make different keys equal: case,
// accents, trailing spaces, any two emoji; and the second message would be taken for a copy of the first.
var keyColumns = []struct {
	name  string
	bytes int64
}{{"group_name", MaxGroup}, {"msg_tag", MaxTag}, {"msg_key", MaxKey}}

// CheckSchema refuses, as [ErrSchema], a table that is missing, that cannot roll back or whose key columns are not
// binary, and a schema that is too old for this program or newer in a way that this program cannot work with. A newer
// schema whose steps this program can live with is accepted, so that a fleet can be migrated first and replaced one by
// one. Any other error means that nothing could be found out.
func CheckSchema(ctx context.Context, db *gorm.DB, table string) error {
	sets, pool, err := setsOn(db, MigrateOptions{Table: table})
	if err != nil {
		return fmt.Errorf("check the schema: %w", err)
	}
	return checkSchema(ctx, pool, table, sets[0])
}

// CheckSets refuses, as [ErrSchema], a schema that lacks a step of the sets that o chooses, or is newer than what this
// program can work with.
func CheckSets(ctx context.Context, pool *sql.DB, o MigrateOptions) error {
	sets, err := setsOf(o)
	for i := 0; err == nil && i < len(sets); i++ {
		err = sets[i].check(ctx, pool)
	}
	return err
}

// CheckSchema is [CheckSchema] for the log's own table.
func (l *Log) CheckSchema(ctx context.Context) error {
	return checkSchema(ctx, l.db, l.o.Table, logSet(l.o.Table))
}

func checkSchema(ctx context.Context, pool *sql.DB, table string, set migrationSet) error {
	for _, name := range []string{table, eventTable(table)} {
		if err := checkTable(ctx, pool, name); err != nil {
			return fmt.Errorf("check table %s: %w", name, err)
		}
	}
	if err := set.check(ctx, pool); err != nil {
		return fmt.Errorf("check schema version of %s: %w", set.name, err)
	}
	return nil
}

func checkTable(ctx context.Context, pool *sql.DB, table string) error {
	if err := checkEngine(ctx, pool, table); err != nil {
		return err
	}
	for _, want := range keyColumns {
		var kind string
		var size int64
		err := sqlOf("SELECT data_type, character_octet_length FROM information_schema.columns WHERE table_schema = "+
			"DATABASE() AND table_name = ? AND column_name = ?", table, want.name).scan(ctx, pool, &kind, mysqldb.OrZero(&size))
		switch {
		case errors.Is(err, sql.ErrNoRows): // nor does a table that the server cannot open have columns
			missing := fmt.Errorf("column %s is missing: %w", want.name, ErrSchema)
			return cmp.Or(checkEngine(ctx, pool, table), missing)
		case err != nil:
			return err
		case !strings.EqualFold(kind, "varbinary"):
			return fmt.Errorf("%w: column %s is %s; it must be VARBINARY(%d), or keys that differ in case or accents become "+
				"equal", ErrSchema, want.name, kind, want.bytes)
		case size < want.bytes:
			return fmt.Errorf("%w: column %s holds %d bytes, %d are needed", ErrSchema, want.name, size, want.bytes)
		}
	}
	return nil
}

// checkEngine refuses a table that cannot roll back. Of one that the server cannot open, because somebody has it locked
// or it is broken, the server tells no engine: that is no fault of the schema, and may pass.
func checkEngine(ctx context.Context, pool *sql.DB, table string) error {
	var engine, kind, comment sql.NullString
	err := sqlOf("SELECT engine, table_type, table_comment FROM information_schema.tables WHERE "+
		"table_schema = DATABASE() AND table_name = ?", table).scan(ctx, pool, &engine, &kind, &comment)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("it is missing: %w", ErrSchema)
	case err != nil:
		return err
	case !engine.Valid && kind.String == "BASE TABLE":
		return fmt.Errorf("the server cannot open it now: %s", cmp.Or(comment.String, "it is locked, or broken"))
	case !strings.EqualFold(engine.String, "InnoDB"):
		return fmt.Errorf("%w: its engine is %q, which cannot roll back; it must be InnoDB", ErrSchema, engine.String)
	}
	return nil
}

// check compares the applied versions with those this program knows.
func (s migrationSet) check(ctx context.Context, pool *sql.DB) error {
	steps, err := s.steps()
	if err != nil {
		return err
	}
	applied, err := readVersions(ctx, pool, s.name)
	if err != nil {
		return err
	}
	latest := steps[len(steps)-1].version
	for _, step := range steps {
		if _, ok := applied[step.version]; !ok {
			return fmt.Errorf("%s is not applied: %w", step.name, ErrSchema)
		}
	}
	for version, a := range applied {
		if a.oldest > latest {
			return fmt.Errorf("%w: it is at version %d, which needs a program that knows version %d; this one knows %d: "+
				"install a newer rollbackd", ErrSchema, version, a.oldest, latest)
		}
	}
	return nil
}

type appliedVersion struct {
	version, oldest int64
	at              time.Time
}

// readVersions reads which versions of a set are applied; none when the version table is missing.
func readVersions(ctx context.Context, on Execer, set string) (map[int64]appliedVersion, error) {
	s := sqlOf("SELECT version, oldest, "+since+"applied_at) FROM "+versionTable+" WHERE set_name = ?", []byte(set))
	all, err := list(ctx, on, s, func(v *appliedVersion) []any { return []any{&v.version, &v.oldest, utc{&v.at}} })
	applied := map[int64]appliedVersion{}
	for _, v := range all {
		applied[v.version] = v
	}
	if mysqldb.NoTable(err) {
		err = nil
	}
	return applied, err
}
