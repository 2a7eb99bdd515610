package lockers_test

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/lockers"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/lock"
	"github.com/rollbackd/rollbackd/lock/locktest"
)

// openLock makes the lock of one process, which ends with the test.
func openLock(t *testing.T, s lockers.Servers, o lock.Options) *lockers.Lock {
	t.Helper()
	s.Name = "rollbackd test"
	l := require.Get(lockers.Open(t.Context(), s, o))(t)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// Given a table in MySQL, then it passes the suite that each lock must pass: one holder, expiry, renewal, lost
// replies, its server gone.
func TestMySQLIsALock(t *testing.T) {
	t.Parallel()
	locktest.Run(t, func(t *testing.T) locktest.Backend { return newMySQLBackend(t) })
}

// mysqlBackend is a schema of the tests' server, behind a wire of its own: to be without the server is to be without
// the wire.
type mysqlBackend struct {
	dsn  string
	wire *stack.TCPProxy
	db   *sql.DB // of the test itself
}

var _ locktest.Backend = mysqlBackend{}

func newMySQLBackend(t *testing.T) mysqlBackend {
	t.Helper()
	dsn := stack.MySQL(t)
	db := require.First(dedup.Open(t.Context(), stack.ForMigrations(t, dsn), dedup.OpenOptions{MaxOpen: 2}))(t)
	pool := require.Get(db.DB())(t)
	t.Cleanup(func() { _ = pool.Close() })
	tables := []dedup.MigrationSet{{Name: lockers.MigrationSet, Files: lockers.Migrations()}}
	require.OK(t, dedup.Migrate(t.Context(), db, dedup.MigrateOptions{Extra: tables}))
	return mysqlBackend{dsn, stack.Proxy(t, stack.Addr(t, dsn)), pool}
}

func (b mysqlBackend) open(t *testing.T, wire *stack.TCPProxy, o lock.Options) *lockers.Lock {
	t.Helper()
	return openLock(t, lockers.Servers{Kind: lock.KindMySQL, MySQLDSN: wire.Through(b.dsn)}, o)
}

func (b mysqlBackend) Open(t *testing.T, o lock.Options) lock.Locker {
	t.Helper()
	return b.open(t, b.wire, o)
}

func (b mysqlBackend) OpenLossy(t *testing.T, o lock.Options) (lock.Locker, func(), func() int) {
	t.Helper()
	wire := stack.Proxy(t, stack.Addr(t, b.dsn))
	lose, lost := wire.Losing("rollbackd:")
	return b.open(t, wire, o), lose, lost
}

func (mysqlBackend) Die(*testing.T, lock.Locker) {}

func (mysqlBackend) Marks() bool { return false }

func (b mysqlBackend) Spoil(t *testing.T, name lock.Name) { b.set(t, name, "nobody's") }

func (b mysqlBackend) Forget(t *testing.T, name lock.Name) { b.set(t, name, "lock:host/1/gone/0/7") }

func (b mysqlBackend) set(t *testing.T, name lock.Name, value string) {
	t.Helper()
	const statement = "REPLACE INTO rollbackd_lock VALUES (?, ?, '9999-12-31')"
	require.Get(b.db.ExecContext(t.Context(), statement, name.String(), value))(t)
}

func (b mysqlBackend) Stop(*testing.T) {
	b.wire.Refuse(true)
	b.wire.Cut()
}

func (b mysqlBackend) Start(*testing.T) { b.wire.Refuse(false) }

func (b mysqlBackend) Freeze(*testing.T) { b.wire.Hold(true) }

func (b mysqlBackend) Thaw(*testing.T) { b.wire.Hold(false) }

// newMySQLWorld is a lock on a schema of its own.
func newMySQLWorld(t *testing.T) (*locktest.World, mysqlBackend) {
	t.Helper()
	t.Parallel()
	b := newMySQLBackend(t)
	return locktest.NewWorld(t, b), b
}

func (b mysqlBackend) rows(t *testing.T) (n int) {
	t.Helper()
	const statement = "SELECT COUNT(*) FROM rollbackd_lock WHERE name <> 'rollbackd:probe'"
	require.OK(t, b.db.QueryRowContext(t.Context(), statement).Scan(&n))
	return n
}

// Given free names, when they are locked, then MySQL gets one statement; it is asked what stands there only when
// something does.
func TestAFreshBatchIsOneStatement(t *testing.T) {
	w, b := newMySQLWorld(t)
	a, keys := w.Worker("a", lock.Options{}), locktest.Keys(1000)
	asked := b.wire.DropRequest(func(piece []byte) bool { return bytes.Contains(piece, []byte("SELECT name, value")) })
	was := func() bool {
		select {
		case <-asked:
			return true
		default:
			return false
		}
	}
	for range 3 { // the third is a prepared statement
		a.Finds(lock.Mine, "", keys...)
		a.Ends(0, keys...)
	}
	if n := b.rows(t); was() || n != 0 {
		t.Errorf("what stands there was asked (%v), %d rows are left, want neither", was(), n)
	}
	a.Find(keys[0])
	if n := a.As("b").Mine(keys...); n != 999 || !was() {
		t.Errorf("%d names are mine, and what stands there was asked: %v; want 999, true", n, was())
	}
}

// Given lanes that take, renew, release and end the same names in any order, when they have run, then none met an
// error: a deadlock would be one, and count as a failure of the server.
func TestLanesThatMeetInManyRowsDoNotDeadlock(t *testing.T) {
	w, _ := newMySQLWorld(t)
	names := w.Names(locktest.Keys(300)...)
	const lanes, rounds = 6, 40
	var wg sync.WaitGroup
	for lane := range lanes {
		l := w.Open(t, lock.Options{OnError: lock.Pause, Timeout: 20 * time.Second, LockTTL: 100 * time.Millisecond})
		wg.Go(func() {
			for round := range rounds {
				token := fmt.Sprint(lane, "/", round)
				some := append(append([]lock.Name{}, names[lane*20+round:]...), names[:lane*10]...)
				_, err := l.Lock(t.Context(), token, some)
				err = errors.Join(err, l.Release(t.Context(), token, some[:len(some)/2]))
				var marks []lock.Mark
				for _, n := range some[len(some)/3:] {
					marks = append(marks, lock.Mark{Name: n})
				}
				if err = errors.Join(err, l.Done(t.Context(), marks)); err != nil {
					t.Errorf("lock or give back: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// Given locks of a worker that died, when they have been over for a minute, then the cleaner deletes them, and no
// other.
func TestCleanDeletesWhatIsOver(t *testing.T) {
	w, b := newMySQLWorld(t)
	l, keys := b.open(t, b.wire, lock.Options{}), locktest.Keys(2500)
	w.Of(l, "dead").Find(keys...)
	stack.Exec(t, b.db, "UPDATE rollbackd_lock SET expires_at = UTC_TIMESTAMP(6) - INTERVAL 61 SECOND")
	w.Of(l, "alive").Find(keys[:10]...)
	n, err := l.Clean(t.Context())
	if err != nil || n != 2490 || b.rows(t) != 10 {
		t.Errorf("Clean = %d, %v, and %d rows are left; want 2490 deleted, 10 left", n, err, b.rows(t))
	}
}

// Given a table that is locked, renamed away, emptied or read-only, when names are locked, then every call is bounded,
// nobody waits, and the lock comes back by itself.
func TestALockTableInTroubleIsGoneWithout(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]struct{ do, undo, want string }{
		"locked": {"LOCK TABLES rollbackd_lock WRITE", "UNLOCK TABLES", "mysql took over"},
		"missing": {"RENAME TABLE rollbackd_lock TO away", "RENAME TABLE away TO rollbackd_lock",
			"`migrate` makes it"},
	} {
		t.Run(name, func(t *testing.T) {
			w, b := newMySQLWorld(t)
			conn, err := b.db.Conn(t.Context()) // LOCK TABLES is of a connection
			w.Must(err)
			defer conn.Close()
			a, keys := w.Worker("a", lock.Options{Timeout: 300 * time.Millisecond}), locktest.Keys(10)
			a.Runs()
			a.Find(keys...)
			require.Get(conn.ExecContext(t.Context(), fault.do))(w.T)
			a.GoesOnWithout(keys...)
			w.Await("Up says "+fault.want, func() bool { // of a slow answer it says first that it took too long
				_, _, cause := a.Up()
				return cause != nil && strings.Contains(cause.Error(), fault.want)
			})
			require.Get(conn.ExecContext(t.Context(), fault.undo))(w.T)
			a.IsAsked()
		})
	}
}
