package stack

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/rollbackd/rollbackd/internal/test/assert"
)

func TestADiskOfItsOwnRunsFullAndIsFreedAgain(t *testing.T) {
	t.Parallel()
	s := Own(t, Options{Only: []Kind{KindMySQL}, MySQLDisk: 400 << 20})
	mounts, err := os.ReadFile("/proc/thread-self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), s.dir) {
		t.Error("the machine sees the disk")
	}
	dsn := s.Database(t)
	execMySQL(t, dsn, "CREATE TABLE x (id INT PRIMARY KEY AUTO_INCREMENT, b BLOB NOT NULL)")
	db := OpenMySQL(parseDSN(t, dsn))
	defer db.Close()
	insert := func() error {
		_, err := db.Exec("INSERT INTO x (b) VALUES (?)", strings.Repeat("x", 4000))
		return err
	}

	s.FillDisk()

	for range 10_000 { // what InnoDB has set aside is soon used up
		if err = insert(); err != nil {
			break
		}
	}
	if full, ok := errors.AsType[*mysql.MySQLError](err); !ok || full.Number != 1114 {
		t.Errorf("INSERT on a full disk = %v, want error 1114", err)
	}

	s.FreeDisk()

	assert.OK(t, insert(), "INSERT on a disk that is free again:")

	// One that died of it is started again, with its disk.
	s.FillDisk()
	s.Kill()
	s.FreeDisk()
	assert.OK(t, insert(), "INSERT after a death on a full disk:")
}
