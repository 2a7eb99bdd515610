package lockers_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/lock"
)

// mysqlWorld is a lock on a schema of its own.
type mysqlWorld struct {
	lockWorld
	mysqlBackend
}

func newMySQLWorld(t *testing.T, dsn string) mysqlWorld {
	t.Helper()
	return mysqlWorld{lockWorld{t, uuid.NewString()}, newMySQLBackend(t, dsn)}
}

func (w mysqlWorld) rows() (n int) {
	w.Helper()
	const statement = "SELECT COUNT(*) FROM rollbackd_lock WHERE name <> 'rollbackd:probe'"
	w.must(w.db.QueryRowContext(w.Context(), statement).Scan(&n))
	return n
}

func (w mysqlWorld) exec(statement string) {
	w.Helper()
	_, err := w.db.ExecContext(w.Context(), statement)
	w.must(err)
}

// Given free names, when they are locked, then MySQL gets one statement; it is asked what stands there only when
// something does.
func TestAFreshBatchIsOneStatement(t *testing.T) {
	t.Parallel()
	w := newMySQLWorld(t, stack.MySQL(t))
	l := w.Open(t, lock.Options{})
	asked := w.wire.DropRequest(func(piece []byte) bool { return bytes.Contains(piece, []byte("SELECT name, value")) })
	was := func() bool {
		select {
		case <-asked:
			return true
		default:
			return false
		}
	}
	names := w.names(1000)
	for range 3 { // the third is a prepared statement
		if n := w.mine(l, "a", names); n != 1000 {
			t.Errorf("%d names are mine, want 1000", n)
		}
		w.must(l.Done(t.Context(), marksOf(names)))
	}
	if n := w.rows(); was() || n != 0 {
		t.Errorf("what stands there was asked (%v), %d rows are left, want neither", was(), n)
	}
	w.mine(l, "a", names[:1])
	if n := w.mine(l, "b", names); n != 999 || !was() {
		t.Errorf("%d names are mine, and what stands there was asked: %v; want 999, true", n, was())
	}
}

// Given lanes that take, renew, release and end the same names in any order, when they have run, then none met an
// error: a deadlock would be one, and count as a failure of the server.
func TestLanesThatMeetInManyRowsDoNotDeadlock(t *testing.T) {
	t.Parallel()
	w := newMySQLWorld(t, stack.MySQL(t))
	deadlocks := func() (n int) {
		var text string
		if err := w.db.QueryRowContext(t.Context(), "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS"+
			" WHERE VARIABLE_NAME = 'Innodb_deadlocks'").Scan(&text); err != nil {
			return 0 // MySQL has no such figure; the errors are counted all the same
		}
		_, _ = fmt.Sscan(text, &n)
		return n
	}
	before := deadlocks()
	names := w.names(300)
	const lanes, rounds = 6, 40
	var wg sync.WaitGroup
	for lane := range lanes {
		l := w.Open(t, lock.Options{OnError: lock.Pause, Timeout: 20 * time.Second, LockTTL: 100 * time.Millisecond})
		wg.Go(func() {
			for round := range rounds {
				token := fmt.Sprint(lane, "/", round)
				some := append(append([]lock.Name{}, names[lane*20+round:]...), names[:lane*10]...)
				if _, err := l.Lock(t.Context(), token, some); err != nil {
					t.Errorf("lock: %v", err)
					return
				}
				err := l.Release(t.Context(), token, some[:len(some)/2])
				if err = errors.Join(err, l.Done(t.Context(), marksOf(some[len(some)/3:]))); err != nil {
					t.Errorf("give back: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	if n := deadlocks() - before; n > 0 {
		t.Logf("the server has seen %d deadlocks meanwhile, of whoever uses it", n)
	}
}

// Given locks of a worker that died, when they have been over for a minute, then the cleaner deletes them, and no
// other.
func TestCleanDeletesWhatIsOver(t *testing.T) {
	t.Parallel()
	w := newMySQLWorld(t, stack.MySQL(t))
	l := w.open(t, w.wire, lock.Options{})
	names := w.names(2500)
	w.mine(l, "dead", names)
	w.exec("UPDATE rollbackd_lock SET expires_at = UTC_TIMESTAMP(6) - INTERVAL 61 SECOND")
	w.mine(l, "alive", names[:10])
	n, err := l.Clean(t.Context())
	if err != nil || n != 2490 || w.rows() != 10 {
		t.Errorf("Clean = %d, %v, and %d rows are left; want 2490 deleted, 10 left", n, err, w.rows())
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
			t.Parallel()
			w := newMySQLWorld(t, stack.MySQL(t))
			conn, err := w.db.Conn(t.Context()) // LOCK TABLES is of a connection
			w.must(err)
			defer conn.Close()
			l := w.Open(t, lock.Options{Timeout: 300 * time.Millisecond})
			w.runs(l)
			names := w.names(10)
			w.mine(l, "before", names)
			_, err = conn.ExecContext(t.Context(), fault.do)
			w.must(err)
			w.goesOnWithout(l, names)
			if _, _, cause := l.Up(); cause == nil || !strings.Contains(cause.Error(), fault.want) {
				t.Errorf("Up says %v, want %q", cause, fault.want)
			}
			_, err = conn.ExecContext(t.Context(), fault.undo)
			w.must(err)
			w.isAsked(l)
		})
	}
}

// Given a MySQL that is frozen, when names are locked, then each call is bounded, and all goes on.
func TestAFrozenMySQLIsGoneWithout(t *testing.T) {
	t.Parallel()
	server := stack.OwnMySQL(t)
	w := newMySQLWorld(t, server.Database(t))
	l := w.Open(t, lock.Options{Timeout: 300 * time.Millisecond})
	w.runs(l)
	names := w.names(10)
	w.mine(l, "before", names)
	w.must(l.Release(t.Context(), "before", names)) // a thread of a frozen server may answer for a moment
	w.must(server.Freeze())
	w.goesOnWithout(l, names)
	w.must(server.Thaw())
	w.isAsked(l)
}
