package stack

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/poll"
)

// Given three nodes of Galera behind a HAProxy, when the one that is written to is killed, then another one takes its
// place and has what was committed; and when it is started again, it takes its place back and has what it missed.
func TestAGaleraClusterFailsOver(t *testing.T) {
	s := OwnGalera(t)
	db, err := openMySQL(s.MySQL.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	exec := func(text string) error {
		ctx, cancel := context.WithTimeout(t.Context(), askTimeout)
		defer cancel()
		_, err := db.ExecContext(ctx, text)
		return err
	}
	if err := exec("CREATE TABLE x (n INT PRIMARY KEY) ENGINE=InnoDB"); err != nil {
		t.Fatal(err)
	}
	if err := exec("INSERT INTO x VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	if name := nodeBehind(t, db); name != s.Databases[0].NodeName() {
		t.Fatalf("%q is written to, want the first node", name)
	}

	began := time.Now()
	if err := s.Databases[0].Kill(); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "another node being written to", func() bool { return exec("REPLACE INTO x VALUES (2)") == nil })
	t.Logf("written to another node %v after the kill", time.Since(began).Round(time.Millisecond))
	if name := nodeBehind(t, db); name == s.Databases[0].NodeName() {
		t.Errorf("%q is written to, and was killed", name)
	}
	poll.Until(t, "the other node having both rows", func() bool { return rowsOf(t, db) == 2 })

	if err := s.Databases[0].Start(); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the first node being written to again", func() bool {
		return nodeBehind(t, db) == s.Databases[0].NodeName()
	})
	poll.Until(t, "the first node having both rows", func() bool { return rowsOf(t, db) == 2 })
}

// nodeBehind is the node that answers, empty while none does.
func nodeBehind(t *testing.T, db *sql.DB) (name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), askTimeout)
	defer cancel()
	if err := db.QueryRowContext(ctx, "SELECT @@GLOBAL.wsrep_node_name").Scan(&name); err != nil {
		return ""
	}
	return name
}

// rowsOf is -1 while no node answers.
func rowsOf(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), askTimeout)
	defer cancel()
	if err := db.QueryRowContext(ctx, "SELECT COUNT(*) FROM x").Scan(&n); err != nil {
		return -1
	}
	return n
}
