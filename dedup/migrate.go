package dedup

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha1"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pressly/goose/v3"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/wait"
)

//go:embed migrations
var migrationFiles embed.FS

// The names of what all logs of a schema share.
const (
	versionTable = "rollbackd_schema"
	metaTable    = "rollbackd_meta"
	defaultTable = "consumer_log" // as the migration files spell it
)

func schemaIDName(table string) string { return "schema_id:" + table }

// MigrateOptions choose what Migrate makes.
type MigrateOptions struct {
	Table string // of the consumer log; default consumer_log
	// Extra are made after the log's own, in this order: the tables that the handler writes to.
	Extra []MigrationSet
	// Waiting, if set, is told each time when a lock of somebody else's was waited for in vain (OpenOptions.LockWait); the
	// wait begins anew until ctx ends. If nil, such a wait is an error.
	Waiting func(err error)
}

// MigrationSet is steps of somebody else's, with a version count of its own, applied beside those of the log.
type MigrationSet struct {
	// Name tells the set from all others in the schema, at most 100 bytes, for ever: under another name its steps would be
	// applied anew. "log" and all that begins with "log:" is taken.
	Name string
	// Files are the steps, NNNN_name.sql in goose's form. Each says in a line "-- oldest: N" which program still works
	// with the schema after it, by the latest version that this program knows.
	Files fs.FS
}

// Migration is one step of a set and whether it is applied.
type Migration struct {
	Set     string // "log", or the name of a MigrationSet
	Version int64
	Name    string
	Applied bool
	At      time.Time // zero when not applied
}

// migrationSet is a directory of migrations with a version count of its own.
type migrationSet struct {
	name  string // in the version table: two logs in one schema are two sets
	shown string
	fs    fs.FS
}

// maxSetName is what set_name holds.
const maxSetName = 100

func setsOf(o MigrateOptions) ([]migrationSet, error) {
	if err := validateTable(o.Table); err != nil {
		return nil, err
	}
	sets := []migrationSet{{"log:" + o.Table, "log", renamedFS{"migrations", o.Table}}}
	for _, extra := range o.Extra {
		taken := extra.Name == "log" || strings.HasPrefix(extra.Name, "log:") ||
			slices.ContainsFunc(sets, func(s migrationSet) bool { return s.name == extra.Name })
		if extra.Name == "" || len(extra.Name) > maxSetName || taken || extra.Files == nil {
			return nil, fmt.Errorf("migration set %q: want files, and a name of its own of at most %d bytes", extra.Name,
				maxSetName)
		}
		sets = append(sets, migrationSet{extra.Name, extra.Name, extra.Files})
	}
	return sets, nil
}

// Migrate brings the tables up to this program's version and checks the result. It may run again, or in several
// processes at once: one works, the others wait for it. It waits as long for whoever else has a table in use. It needs
// more rights than the daemon: docs/rights.md has them.
func Migrate(ctx context.Context, db *gorm.DB, o MigrateOptions) error {
	o.Table = cmp.Or(o.Table, defaultTable)
	sets, err := setsOf(o)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	pool, err := db.DB()
	if err != nil {
		return fmt.Errorf("migrate: take the pool from gorm: %w", err)
	}
	for _, set := range sets {
		if err := o.insist(ctx, func() error { return set.up(ctx, pool) }); err != nil {
			return fmt.Errorf("migrate %s: %w", set.name, err)
		}
	}
	return o.insist(ctx, func() error { return CheckSchema(ctx, db, o.Table) })
}

// migrateRest is for those who use a table and queue behind a migration that wants it for itself: they get their turn.
const migrateRest = time.Second

// insist repeats work while it meets locks of others. Each step of a migration may be repeated, so one that stopped
// half-way goes on.
func (o MigrateOptions) insist(ctx context.Context, work func() error) error {
	for {
		err := work()
		if o.Waiting == nil || mysqldb.Classify(err) != mysqldb.FaultContention || ctx.Err() != nil {
			return err
		}
		o.Waiting(err)
		_ = wait.For(ctx, migrateRest) // the loop looks at ctx
	}
}

func (s migrationSet) up(ctx context.Context, pool *sql.DB) error {
	store, err := newVersionStore(s)
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectCustom, pool, s.fs,
		goose.WithStore(store),
		goose.WithSessionLocker(migrateLock{}),
		goose.WithDisableGlobalRegistry(true),
		goose.WithSlog(slog.New(slog.DiscardHandler)))
	if err != nil {
		return err
	}
	_, err = provider.Up(ctx)
	return err
}

// MigrationStatus lists all migrations of this program and says which are applied. It changes nothing.
func MigrationStatus(ctx context.Context, db *gorm.DB, o MigrateOptions) ([]Migration, error) {
	o.Table = cmp.Or(o.Table, defaultTable)
	sets, err := setsOf(o)
	if err != nil {
		return nil, fmt.Errorf("migration status: %w", err)
	}
	pool, err := db.DB()
	if err != nil {
		return nil, fmt.Errorf("migration status: take the pool from gorm: %w", err)
	}
	var all []Migration
	for _, set := range sets {
		steps, err := set.steps()
		if err != nil {
			return nil, fmt.Errorf("migration status: %w", err)
		}
		var applied map[int64]appliedVersion
		err = o.insist(ctx, func() (err error) {
			applied, err = readVersions(ctx, pool, set.name)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("migration status of %s: %w", set.name, err)
		}
		for _, step := range steps {
			at, ok := applied[step.version]
			all = append(all, Migration{set.shown, step.version, step.name, ok, at.at})
		}
	}
	return all, nil
}

// step is one migration file.
type step struct {
	version int64
	oldest  int64 // the oldest program, by its own latest version, that works with the schema after this step
	name    string
}

var oldestLine = regexp.MustCompile(`(?m)^-- oldest: (\d+)$`)

// steps reads the versions of a set's files, in order.
func (s migrationSet) steps() ([]step, error) {
	entries, err := fs.ReadDir(s.fs, ".")
	if err != nil {
		return nil, err
	}
	var steps []step
	for _, e := range entries {
		version, err := goose.NumericComponent(e.Name())
		if err != nil {
			return nil, fmt.Errorf("migration %s: %w", e.Name(), err)
		}
		text, err := fs.ReadFile(s.fs, e.Name())
		if err != nil {
			return nil, err
		}
		m := oldestLine.FindSubmatch(text)
		if m == nil {
			return nil, fmt.Errorf("migration %s does not say the oldest program that works with it", e.Name())
		}
		oldest, err := strconv.ParseInt(string(m[1]), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("migration %s: %w", e.Name(), err)
		}
		steps = append(steps, step{version, oldest, e.Name()})
	}
	return steps, nil
}

// renamedFS is a directory of migrations with the log's default name replaced by the real one.
type renamedFS struct{ dir, table string }

var (
	_ fs.ReadDirFS  = renamedFS{}
	_ fs.ReadFileFS = renamedFS{}
)

// ReadDir lists the directory.
func (r renamedFS) ReadDir(name string) ([]fs.DirEntry, error) {
	return migrationFiles.ReadDir(path.Join(r.dir, name))
}

// ReadFile reads a file, renamed.
func (r renamedFS) ReadFile(name string) ([]byte, error) {
	text, err := migrationFiles.ReadFile(path.Join(r.dir, name))
	return bytes.ReplaceAll(text, []byte(defaultTable), []byte(r.table)), err
}

// Open opens a file, renamed; a directory as it is.
func (r renamedFS) Open(name string) (fs.File, error) {
	f, err := migrationFiles.Open(path.Join(r.dir, name))
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil || info.IsDir() {
		return f, err
	}
	text, err := r.ReadFile(name)
	return &renamedFile{File: f, text: bytes.NewReader(text)}, err
}

type renamedFile struct {
	fs.File
	text *bytes.Reader
}

// Read reads the renamed text.
func (f *renamedFile) Read(p []byte) (int, error) { return f.text.Read(p) }

// migrateLock lets one migration run at a time, by a named lock of the server which dies with its session.
type migrateLock struct{}

// lockName is at most 58 characters; MySQL takes 64. Named locks are the server's, so the schema is part of the name.
// It is the text that SHA1(DATABASE()) gives where the server has that function (MySQL 9 has not), so that this program
// and one that asks the server for it wait for each other.
func lockName(ctx context.Context, conn *sql.Conn) (string, error) {
	var schema string
	if err := conn.QueryRowContext(ctx, "SELECT DATABASE()").Scan(&schema); err != nil {
		return "", err
	}
	return fmt.Sprintf("rollbackd.migrate.%x", sha1.Sum([]byte(schema))), nil
}

// SessionLock waits until the lock is ours or ctx ends.
func (migrateLock) SessionLock(ctx context.Context, conn *sql.Conn) error {
	name, err := lockName(ctx, conn)
	if err != nil {
		return fmt.Errorf("name the migration lock: %w", err)
	}
	for {
		var got sql.NullInt64
		if err := conn.QueryRowContext(ctx, "SELECT GET_LOCK(?, 1)", name).Scan(&got); err != nil {
			return fmt.Errorf("wait for the migration lock: %w", err)
		}
		if got.Int64 == 1 {
			return nil
		}
		if !got.Valid {
			return errors.New("wait for the migration lock: the server was interrupted")
		}
	}
}

// SessionUnlock gives the lock back.
func (migrateLock) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	name, err := lockName(ctx, conn)
	if err != nil {
		return fmt.Errorf("name the migration lock: %w", err)
	}
	_, err = conn.ExecContext(ctx, "DO RELEASE_LOCK(?)", name)
	return err
}
