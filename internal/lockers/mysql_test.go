package lockers_test

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/lockers"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/lock"
	"github.com/rollbackd/rollbackd/lock/locktest"
)

func TestMain(m *testing.M) { stack.Main(m) }

// openLock makes the lock of one process, which ends with the test.
func openLock(t *testing.T, s lockers.Servers, o lock.Options) *lockers.Lock {
	t.Helper()
	s.Name = "rollbackd test"
	l := require.Get(lockers.Open(t.Context(), s, o))(t)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// newWorld is a lock on servers or a schema of its own.
func newWorld[B locktest.Backend](t *testing.T, open func(*testing.T) B) (*locktest.World, B) {
	t.Helper()
	t.Parallel()
	b := open(t)
	return locktest.NewWorld(t, b), b
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

func (b mysqlBackend) Spoil(t *testing.T, name lock.Name)  { b.set(t, name, "nobody's") }
func (b mysqlBackend) Forget(t *testing.T, name lock.Name) { b.set(t, name, "lock:host/1/gone/0/7") }

func (b mysqlBackend) set(t *testing.T, name lock.Name, value string) {
	t.Helper()
	stack.Exec(t, b.db, "REPLACE INTO rollbackd_lock VALUES (?, ?, '9999-12-31')", name.String(), value)
}

func (b mysqlBackend) Stop(*testing.T) {
	b.wire.Refuse(true)
	b.wire.Cut()
}

func (b mysqlBackend) Start(*testing.T) { b.wire.Refuse(false) }

func (b mysqlBackend) Freeze(*testing.T) { b.wire.Hold(true) }

func (b mysqlBackend) Thaw(*testing.T) { b.wire.Hold(false) }

func (b mysqlBackend) rows(t *testing.T) int {
	t.Helper()
	return stack.Number(t, b.db, "SELECT COUNT(*) FROM rollbackd_lock WHERE name <> 'rollbackd:probe'")
}

// Given free names, when they are locked, then MySQL gets one statement; it is asked what stands there only when
// something does.
func TestAFreshBatchIsOneStatement(t *testing.T) {
	w, b := newWorld(t, newMySQLBackend)
	a, keys := w.Worker("a", lock.Options{Timeout: 20 * time.Second}), locktest.Keys(1000)
	asked := b.wire.DropRequest(func(piece []byte) bool { return bytes.Contains(piece, []byte("SELECT name, value")) })
	was := func() bool { return poll.IsClosed(asked) }
	for range 3 { // the third is a prepared statement
		a.Finds(lock.Mine, "", keys...)
		a.Ends(0, keys...)
	}
	n := b.rows(t)
	assert.That(t, !was() && n == 0, "what stands there was asked (%v), %d rows are left, want neither", was(), n)
	a.Find(keys[0])
	n = a.As("b").Mine(keys...)
	assert.That(t, n == 999 && was(), "%d names are mine, and what stands there was asked: %v; want 999, true", n, was())
}

// Given lanes that take, renew, release and end the same names in any order, when they have run, then none met an
// error: a deadlock would be one, and count as a failure of the server.
func TestLanesThatMeetInManyRowsDoNotDeadlock(t *testing.T) {
	w, _ := newWorld(t, newMySQLBackend)
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
	w, b := newWorld(t, newMySQLBackend)
	// a busy server has time: what is late is done without
	l, keys := b.open(t, b.wire, lock.Options{Timeout: 20 * time.Second}), locktest.Keys(2500)
	w.Of(l, "dead").Find(keys...)
	stack.Exec(t, b.db, "UPDATE rollbackd_lock SET expires_at = UTC_TIMESTAMP(6) - INTERVAL 61 SECOND")
	w.Of(l, "alive").Find(keys[:10]...)
	n, err := l.Clean(t.Context())
	assert.That(t, err == nil && n == 2490 && b.rows(t) == 10,
		"Clean = %d, %v, and %d rows are left; want 2490 deleted, 10 left", n, err, b.rows(t))
}

// Given a table that is locked, renamed away, emptied or read-only, when names are locked, then every call is bounded,
// nobody waits, and the lock comes back by itself.
func TestALockTableInTroubleIsGoneWithout(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]struct{ do, undo, want string }{
		"locked":  {"LOCK TABLES rollbackd_lock WRITE", "UNLOCK TABLES", "mysql took over"},
		"missing": {"RENAME TABLE rollbackd_lock TO away", "RENAME TABLE away TO rollbackd_lock", "`migrate` makes it"},
	} {
		t.Run(name, func(t *testing.T) {
			w, b := newWorld(t, newMySQLBackend)
			conn, err := b.db.Conn(t.Context()) // LOCK TABLES is of a connection
			require.OK(w, err)
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

// Given several masters of Redis, then it passes the suite that each lock must pass: one holder, expiry, renewal,
// lost replies, its server gone.
func TestRedlockIsALock(t *testing.T) {
	t.Parallel()
	locktest.Run(t, func(t *testing.T) locktest.Backend { return newRedlockBackend(t) })
}

// redlockBackend is three masters of one test.
type redlockBackend struct {
	servers []*stack.Server
	admins  []*redis.Client
}

var _ locktest.Backend = redlockBackend{}

func newRedlockBackend(t *testing.T) (b redlockBackend) {
	t.Helper()
	for range 3 {
		server := stack.OwnRedis(t)
		admin := redis.NewClient(&redis.Options{Addr: server.Addr()})
		t.Cleanup(func() { _ = admin.Close() })
		b.servers, b.admins = append(b.servers, server), append(b.admins, admin)
	}
	return b
}

// open makes a lock over the masters, of which others may stand for the first ones.
func (b redlockBackend) open(t *testing.T, o lock.Options, instead ...string) *lockers.Lock {
	t.Helper()
	var urls []string
	for _, s := range b.servers {
		urls = append(urls, s.URL())
	}
	copy(urls, instead)
	return openLock(t, lockers.Servers{Kind: lock.KindRedlock, RedisURL: strings.Join(urls, ", ")}, o)
}

func (b redlockBackend) Open(t *testing.T, o lock.Options) lock.Locker {
	t.Helper()
	return b.open(t, o)
}

func (b redlockBackend) OpenLossy(t *testing.T, o lock.Options) (lock.Locker, func(), func() int) {
	t.Helper()
	wire := stack.Proxy(t, b.servers[0].Addr())
	lose, lost := wire.Losing("rollbackd:")
	return b.open(t, o, wire.Through(b.servers[0].URL())), lose, lost
}

func (redlockBackend) Die(*testing.T, lock.Locker) {}

func (redlockBackend) Marks() bool { return true }

func (b redlockBackend) Spoil(t *testing.T, name lock.Name)  { b.set(t, name, "nobody's") }
func (b redlockBackend) Forget(t *testing.T, name lock.Name) { b.set(t, name, "lock:host/1/gone/0/7") }

func (b redlockBackend) set(t *testing.T, name lock.Name, value string) {
	t.Helper()
	for _, admin := range b.admins {
		require.OK(t, admin.Set(t.Context(), name.String(), value, 0).Err())
	}
}

func (b redlockBackend) Stop(*testing.T) { b.all((*stack.Server).Kill) }

func (b redlockBackend) Start(*testing.T) { b.all((*stack.Server).Start) }

func (b redlockBackend) Freeze(*testing.T) { b.all((*stack.Server).Freeze) }

func (b redlockBackend) Thaw(*testing.T) { b.all((*stack.Server).Thaw) }

func (b redlockBackend) all(do func(*stack.Server) error) {
	for _, server := range b.servers {
		_ = do(server) // what goes wrong fails the test
	}
}

// Given one master of three that is frozen or killed, when names are locked, then the other two are enough, and nobody
// waits for the third again and again; the log says that it is away, and that it is back.
func TestAMinorityOfMastersIsNotMissed(t *testing.T) {
	w, b := newWorld(t, newRedlockBackend)
	said := &program.Log{}
	a := w.Worker("a", lock.Options{Timeout: 2 * time.Second, Log: slog.New(slog.NewTextHandler(said, nil))})
	other := w.Worker("other", lock.Options{Timeout: 300 * time.Millisecond})
	a.Runs()
	other.Runs()
	third, faults, keys := b.servers[2], 0, locktest.Keys(20)
	for name, fault := range map[string]struct{ do, undo func() error }{
		"frozen": {third.Freeze, third.Thaw}, "killed": {third.Kill, third.Start},
	} {
		require.OK(w, fault.do())
		start := time.Now()
		for i := range 50 {
			batch := a.As(fmt.Sprint(name, i))
			batch.Finds(lock.Mine, "", keys...)
			require.Is(t, other.Mine(keys...), 0, "%s, batch %d: another worker has names too", name, i)
			batch.GiveBack(keys...)
		}
		// a fifth of what waiting for the third would take
		assert.AtMost(t, time.Since(start), 20*time.Second, "%s: 50 batches took", name)
		up, _, cause := a.Up()
		assert.That(t, up && cause == nil, "%s: Up = %v, %v, want up", name, up, cause)
		faults++
		w.Await("the log says that it is away", func() bool { // which is found out by calls that end in vain
			again := a.As(name + "again")
			again.Find("one")
			again.GiveBack("one")
			return strings.Count(said.String(), "masters are away; the others are enough") >= faults
		})
		require.OK(w, fault.undo())
		w.Await("the log says that it is back", func() bool {
			return strings.HasSuffix(strings.TrimSpace(said.String()), `msg="redlock: all masters answer again"`)
		})
	}
}

// Given a value on one master that no lock of ours is, and a second master away, when the name is locked, then nobody
// waits for what never ends: the message goes on without a lock.
func TestAForeignValueOfAMinorityIsNotWaitedFor(t *testing.T) {
	w, b := newWorld(t, newRedlockBackend)
	a := w.Worker("a", lock.Options{Timeout: 8 * time.Second}) // a master that is too late would be done without
	require.OK(w, b.admins[0].Set(t.Context(), w.Names("spoilt")[0].String(), "nobody's", 0).Err())
	require.OK(w, b.servers[2].Kill())
	a.Finds(lock.Foreign, "", "spoilt")
	a.Finds(lock.Mine, "", "free")
	assert.Is(t, a.Attempts(lock.ResultForeign), 1, "foreign values were counted")
}

// Given two masters of three that are away, when names are locked, then nobody can be asked: with one policy all go on
// and with the other nobody does; they come back by themselves.
func TestAMajorityOfMastersIsMissed(t *testing.T) {
	w, b := newWorld(t, newRedlockBackend)
	o := lock.Options{Timeout: 300 * time.Millisecond}
	a := w.Worker("a", o)
	o.OnError = lock.Pause
	pausing := w.Worker("b", o)
	a.Runs()
	pausing.Runs()
	keys := locktest.Keys(10)
	require.OK(w, b.servers[0].Freeze())
	require.OK(w, b.servers[1].Kill())
	a.GoesOnWithout(keys...)
	start := time.Now()
	for range 100 {
		_, err := pausing.Lock(t.Context(), "b", w.Names(keys...))
		require.That(t, errors.Is(err, lock.ErrUnavailable), "Lock = %v, want ErrUnavailable", err)
	}
	assert.AtMost(t, time.Since(start), 10*time.Second, "100 batches took")
	if up, _, cause := a.Up(); up || cause == nil || !strings.Contains(cause.Error(), "master 2 of 3") {
		t.Errorf("Up = %v, %v, want down, and which", up, cause)
	}
	a.GiveBack(keys...)
	require.OK(w, b.servers[0].Thaw())
	require.OK(w, b.servers[1].Start())
	a.IsAsked()
	pausing.IsAsked()
	w.Await("the names are free again", func() bool { return pausing.Mine(keys...) == len(keys) })
}

// Given a lock on all masters, when one forgets it, then it is held still; when two do, then it is lost, which costs
// work only, and a late release takes nobody's lock away.
func TestWipedMastersCostTheLockWhenTheyAreMoreThanHalf(t *testing.T) {
	w, servers := newWorld(t, newRedlockBackend)
	o := lock.Options{Timeout: 8 * time.Second} // without an answer, all would be found free
	a, b, keys := w.Worker("a", o), w.Worker("b", o), locktest.Keys(5)
	w.Await("a holds its names on each master: one that answers late is done without", func() bool {
		a.Find(keys...)
		for _, admin := range servers.admins {
			if require.Get(admin.DBSize(t.Context()).Result())(t) < int64(len(keys)) {
				a.GiveBack(keys...)
				return false
			}
		}
		return true
	})
	require.OK(w, servers.admins[0].FlushAll(t.Context()).Err())
	b.Finds(lock.HeldByOther, "a", keys...)
	require.OK(w, servers.admins[0].FlushAll(t.Context()).Err())
	require.OK(w, servers.admins[1].FlushAll(t.Context()).Err())
	b.Finds(lock.Mine, "", keys...)
	a.GiveBack(keys...)
	a.Finds(lock.HeldByOther, "b", keys...)
}
