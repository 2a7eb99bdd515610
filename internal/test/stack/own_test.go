package stack

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

func TestFrozenRedisDoesNotAnswerUntilThawed(t *testing.T) {
	t.Parallel()
	s := OwnRedis(t)

	s.Freeze()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	assert.Error(t, pingRedis(ctx, s.Addr()), os.ErrDeadlineExceeded, "ping of a frozen redis")
	s.Thaw()
	assert.OK(t, pingRedis(t.Context(), s.Addr()), "ping of a thawed redis:")

	// A frozen server is killed and stopped all the same.
	s.Freeze()
	s.Stop()
	s.Start()
	s.Freeze()
	s.Kill()
}

func TestFaultThatDoesNotHappenFailsTheTest(t *testing.T) {
	s := OwnRedis(t)
	r := &recorder{TB: t}
	s.t = r
	s.Kill()
	assert.That(t, s.Freeze() != nil, "a dead server was frozen")
	_, err := s.Ctl("x")
	assert.That(t, err != nil, "redis has no control command and took one")
	s.Start()
	assert.That(t, s.Start() != nil, "a running server was started")
	s.t = t
	assert.That(t, len(r.errors) == 3, "the test failed %d times, want 3: %q", len(r.errors), r.errors)
}

func TestADiskOfItsOwnRunsFullAndIsFreedAgain(t *testing.T) {
	t.Parallel()
	s := Own(t, Options{Only: []Kind{KindMySQL}, MySQLDisk: 400 << 20})
	mounts := require.Get(os.ReadFile("/proc/thread-self/mounts"))(t)
	assert.That(t, !strings.Contains(string(mounts), s.dir), "the machine sees the disk")
	dsn := s.Database(t)
	execMySQL(t, dsn, "CREATE TABLE x (id INT PRIMARY KEY AUTO_INCREMENT, b BLOB NOT NULL)")
	db := OpenMySQL(parseDSN(t, dsn))
	defer db.Close()
	insert := func() (err error) {
		_, err = db.Exec("INSERT INTO x (b) VALUES (?)", strings.Repeat("x", 4000))
		return err
	}

	s.FillDisk()

	var err error
	for range 10_000 { // what InnoDB has set aside is soon used up
		if err = insert(); err != nil {
			break
		}
	}
	full, ok := errors.AsType[*mysql.MySQLError](err)
	assert.That(t, ok && full.Number == 1114, "INSERT on a full disk = %v, want error 1114", err)

	s.FreeDisk()

	assert.OK(t, insert(), "INSERT on a disk that is free again:")

	// One that died of it is started again, with its disk.
	s.FillDisk()
	s.Kill()
	s.FreeDisk()
	assert.OK(t, insert(), "INSERT after a death on a full disk:")
}

// Given many tests that ask for an address and do not listen on it yet, then no two get the same one.
func TestNoTwoGetTheSameFreeAddress(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var asking sync.WaitGroup
	got := map[string]bool{}
	for range 8 {
		asking.Go(func() {
			for range 100 { // by chance some 27 of 800 among 12,000 would be alike
				addr := FreeAddr(t)
				mu.Lock()
				assert.That(t, !got[addr], "%s was given twice", addr)
				got[addr] = true
				mu.Unlock()
			}
		})
	}
	asking.Wait()
}
