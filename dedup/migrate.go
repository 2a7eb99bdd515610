package dedup

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha1"
	"database/sql"
	"embed"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
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

// MigrateOptions choose what Migrate makes.
type MigrateOptions struct {
	Table string // of the consumer log; default consumer_log
	// Extra are made after the log's own, in this order: the tables that the handler writes to.
	Extra []MigrationSet
	// NoLog leaves the log's own tables out: Extra alone is made.
	NoLog bool
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

func logSet(table string) migrationSet {
	files, _ := fs.Sub(migrationFiles, "migrations") // which refuses only what is no path
	return migrationSet{"log:" + table, "log", renamedFS{files, table}}
}

// renamedFS is the log's own steps with its default name replaced by the real one.
type renamedFS struct {
	fs.FS
	table string
}

// Open opens a file, renamed; a directory as it is.
func (r renamedFS) Open(name string) (fs.File, error) {
	f, err := r.FS.Open(name)
	if _, dir := f.(fs.ReadDirFile); dir || err != nil {
		return f, err
	}
	text, err := io.ReadAll(f)
	return renamedFile{f, bytes.NewReader(bytes.ReplaceAll(text, []byte(defaultTable), []byte(r.table)))}, err
}

type renamedFile struct {
	fs.File
	text io.Reader
}

// Read reads the renamed text.
func (f renamedFile) Read(p []byte) (int, error) { return f.text.Read(p) }

// setsOf are the sets that o chooses, the log's own first.
func setsOf(o MigrateOptions) ([]migrationSet, error) {
	table := cmp.Or(o.Table, defaultTable)
	if err := validateTable(table); err != nil {
		return nil, err
	}
	var sets []migrationSet
	if !o.NoLog {
		sets = []migrationSet{logSet(table)}
	}
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

// setsOn are the same, and the pool that they go to.
func setsOn(db *gorm.DB, o MigrateOptions) ([]migrationSet, *sql.DB, error) {
	sets, err := setsOf(o)
	if err != nil {
		return nil, nil, err
	}
	pool, err := db.DB()
	if err != nil {
		err = fmt.Errorf("take the pool from gorm: %w", err)
	}
	return sets, pool, err
}

// Migrate brings the tables up to this program's version and checks the result. It may run again, or in several
// processes at once: one works, the others wait for it. It waits as long for whoever else has a table in use. It needs
// more rights than the daemon: docs/rights.md has them.
func Migrate(ctx context.Context, db *gorm.DB, o MigrateOptions) error {
	sets, pool, err := setsOn(db, o)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	for _, set := range sets {
		if err := o.insist(ctx, func() error { return set.up(ctx, pool) }); err != nil {
			return fmt.Errorf("migrate %s: %w", set.name, err)
		}
	}
	if o.NoLog {
		return nil
	}
	return o.insist(ctx, func() error { return CheckSchema(ctx, db, cmp.Or(o.Table, defaultTable)) })
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
	steps, err := s.steps()
	if err != nil {
		return err
	}
	store := &versionStore{set: s.name, oldest: map[int64]int64{}}
	for _, step := range steps {
		store.oldest[step.version] = step.oldest
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
	sets, pool, err := setsOn(db, o)
	if err != nil {
		return nil, fmt.Errorf("migration status: %w", err)
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
		var oldest int64
		if m := oldestLine.FindSubmatch(text); m != nil {
			oldest, err = strconv.ParseInt(string(m[1]), 10, 64)
		}
		if err != nil || oldest == 0 {
			return nil, fmt.Errorf("migration %s does not say the oldest program that works with it", e.Name())
		}
		steps = append(steps, step{version, oldest, e.Name()})
	}
	return steps, nil
}

// migrateLock lets one migration run at a time, by a named lock of the server which dies with its session.
type migrateLock struct{}

// SessionLock waits until the lock is ours or ctx ends. Its name is at most 58 characters; MySQL takes 64. Named locks
// are the server's, so the schema is part of the name. It is the text that SHA1(DATABASE()) gives where the server has
// that function (MySQL 9 has not), so that this program and one that asks the server for it wait for each other.
func (migrateLock) SessionLock(ctx context.Context, conn *sql.Conn) error {
	schema, err := schemaOf(ctx, conn)
	if err == nil {
		err = waitForLock(ctx, conn, fmt.Sprintf("rollbackd.migrate.%x", sha1.Sum([]byte(schema))))
	}
	if err != nil {
		return fmt.Errorf("wait for the migration lock: %w", err)
	}
	return nil
}

// SessionUnlock gives the lock back. The connection has no other.
func (migrateLock) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	_, err := conn.ExecContext(ctx, "DO RELEASE_ALL_LOCKS()")
	return err
}
