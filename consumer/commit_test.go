package consumer_test

import (
	"bytes"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Given a server on which each COMMIT is lost, while it answers everything else, when that lasts, then the deliveries
// are given back as for any other server that is away, and tried with few in hand.
func TestWhatCannotBeCommittedIsGivenBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.Lanes, w.cfg.GiveBackAfter = 1, 100*time.Millisecond
	l := w.proxied()
	var failing atomic.Bool
	failing.Store(true)
	for range 1000 { // each springs once
		l.mysql.DropRequest(func(piece []byte) bool { return failing.Load() && bytes.HasSuffix(piece, commit) })
	}
	all := keys("order", 20)
	w.publish("{}", all...)
	r := w.start()
	w.eventually("the deliveries are given back", func() bool {
		return strings.Contains(w.logs.String(), `msg="deliveries given back"`)
	})
	failing.Store(false)
	w.ended(dedup.Success, all...)
	w.recovered(r)
	w.want("effects", w.effects(), once(all...))
}

// Given a lock under which statements pass and no COMMIT does, as a backup of MariaDB takes it, when that lasts, then
// the messages come back later at no cost, and no lane keeps them for ever.
func TestCommitsThatWaitForALockCostNoAttempt(t *testing.T) {
	t.Parallel()
	w := newWorldOn(t, servers{mysql: stack.OwnMySQL(t)}) // the lock is on the whole server
	w.cfg.Lanes, w.cfg.GiveBackAfter, w.patience = 1, time.Second, time.Minute
	fresh, claimed := keys("fresh", 8), keys("claimed", 2)
	w.failedOnce(claimed...)
	other := w.conn()
	if _, err := other.ExecContext(t.Context(), "BACKUP STAGE START"); err != nil {
		t.Skipf("only MariaDB has such a lock: %v", err)
	}
	w.execOn(other, "BACKUP STAGE BLOCK_COMMIT")
	w.publish("{}", fresh...)
	r := w.start()
	w.eventually("all have come back once", func() bool { return w.outcomes()["in_progress"] >= len(fresh) })
	w.publish("{}", claimed...)
	if !contendedWith(r) {
		t.Errorf("it does not say that it waits for locks: %v", r.State())
	}
	w.execOn(other, "BACKUP STAGE END")
	w.ended(dedup.Success, append(fresh, claimed...)...)
	w.recovered(r)
	w.quiet()
	w.costNothing(fresh, claimed)
}

// Given the same lock, when claims wait for it, then that is contention too, and not a server that is away.
func TestClaimsThatCannotBeCommittedForALockAreContention(t *testing.T) {
	t.Parallel()
	w := newWorldOn(t, servers{mysql: stack.OwnMySQL(t)})
	w.cfg.Lanes, w.cfg.GiveBackAfter, w.patience = 1, time.Second, time.Minute
	claimed := keys("claimed", 3)
	w.failedOnce(claimed...)
	w.publish("{}", claimed...)
	other := w.conn()
	if _, err := other.ExecContext(t.Context(), "BACKUP STAGE START"); err != nil {
		t.Skipf("only MariaDB has such a lock: %v", err)
	}
	w.execOn(other, "BACKUP STAGE BLOCK_COMMIT")
	r := w.start()
	w.eventually("the deliveries are given back", func() bool {
		return strings.Contains(w.logs.String(), `msg="deliveries given back"`)
	})
	w.execOn(other, "BACKUP STAGE END")
	w.ended(dedup.Success, claimed...)
	w.recovered(r)
	w.quiet()
	w.costNothing(nil, claimed)
	if strings.Contains(w.logs.String(), "waiting for mysql") {
		t.Errorf("a lock was taken for a server that is away:\n%s", w.logs)
	}
}
