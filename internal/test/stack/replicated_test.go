package stack

import (
	"context"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/poll"
)

// Given three nodes in a group behind a HAProxy, when the primary is killed, then another one takes its place and has
// what was committed; and when it is started again and joins, it has what it missed.
func TestAGroupFailsOver(t *testing.T) {
	s := OwnReplicated(t, Group)
	f := newFailover(t, s)
	f.kill(func() {})
	if err := s.Databases[0].Start(); err != nil {
		t.Fatal(err)
	}
	if err := s.Join(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	f.holdsBoth(0)
}

// Given a source and two semi-synchronous replicas behind a HAProxy, when the source is killed and a replica promoted,
// then that has what was committed; and when the old source is rebuilt, it has what it missed.
func TestAReplicaTakesItsSourcesPlace(t *testing.T) {
	s := OwnReplicated(t, SemiSync)
	f := newFailover(t, s)
	at := -1
	f.kill(func() {
		var err error
		if at, err = s.Promote(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
	})
	if err := s.Databases[0].Start(); err != nil {
		t.Fatal(err)
	}
	stray, err := s.Rebuild(t.Context(), 0, at)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("transactions that only the old source had: %q", stray)
	f.holdsBoth(0)
}

type failover struct {
	t    *testing.T
	s    *Stack
	name string // of the database
	exec func(text string) error
}

func newFailover(t *testing.T, s *Stack) *failover {
	t.Helper()
	dsn := s.MySQL.Database(t)
	db, err := openMySQL(dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	f := &failover{t: t, s: s, exec: func(text string) error {
		ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
		defer cancel()
		_, err := db.ExecContext(ctx, text)
		return err
	}}
	if err := db.QueryRow("SELECT DATABASE()").Scan(&f.name); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"CREATE TABLE x (n INT PRIMARY KEY)", "INSERT INTO x VALUES (1)"} {
		if err := f.exec(text); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// kill kills the first node and waits until another one is written to.
func (f *failover) kill(promote func()) {
	f.t.Helper()
	began := time.Now()
	if err := f.s.Databases[0].Kill(); err != nil {
		f.t.Fatal(err)
	}
	promote()
	poll.Until(f.t, "another node being written to", func() bool { return f.exec("REPLACE INTO x VALUES (2)") == nil })
	f.t.Logf("written to another node %v after the kill", time.Since(began).Round(time.Millisecond))
}

func (f *failover) holdsBoth(node int) {
	f.t.Helper()
	poll.Until(f.t, "the node having both rows", func() bool {
		n := 0
		return f.s.replicated.value(f.t.Context(), node, &n, "SELECT COUNT(*) FROM "+f.name+".x") == nil && n == 2
	})
}
