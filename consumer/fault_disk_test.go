package consumer_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// TestMySQLWithAFullDisk fills the disk under a real server. What such a server does depends on where it meets the end:
//
//   - a table that cannot grow: error 1114, the statement is undone and the transaction goes on;
//   - no room for the undo of a failed statement: InnoDB ends its own process ("Out of disk space in rollback"), which
//     is how MariaDB 10.11 ends a large value that does not fit any more, and it cannot start before there is room;
//   - a binary log that cannot grow: the server waits inside COMMIT until somebody makes room, looks for it once a
//     minute, and then commits, long after everybody has hung up.
func TestMySQLWithAFullDisk(t *testing.T) {
	t.Parallel()
	const size = 512 << 20 // bytes
	for _, tc := range []struct {
		name string
		body int // bytes
		args []string
		// The end of what a paused engine names, where it is always the same.
		says string
	}{
		{name: "a table cannot grow", body: 4000, says: "is full"},
		{name: "a large value does not fit", body: 200_000},
		{name: "the binary log cannot grow", body: 4000, args: []string{"--log-bin=binlog", "--server-id=1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			server := stack.OwnMySQLOnDisk(t, size, tc.args...)
			w := newWorldOn(t, servers{mysql: server})
			w.patience = 3 * time.Minute // a server that waits for room looks once a minute
			w.cfg.Lanes, w.cfg.BatchSize = 3, 10
			w.rejecting("bad", func() error { return errors.New("shelf is locked") })
			body := `{"note":"` + strings.Repeat("x", tc.body) + `"}`
			all := keys("order", 600)
			w.publish(body, append(all[:50:50], "bad")...)
			// given an engine in the middle of its work
			reached, release := w.blockAt(consumer.PointEffect)
			r := w.start()
			await(t, reached, "a transaction is open")
			// when the disk runs full
			server.FillDisk()
			release()
			w.publish(body, all[50:]...)
			w.paused(r, "mysql")
			t.Logf("paused: %v; alive: %v", r.State().Paused, server.Pid() != 0)
			if tc.says != "" {
				w.eventually("the pause says "+tc.says, func() bool {
					return strings.Contains(strings.Join(r.State().Paused, "\n"), tc.says)
				})
			}
			if tc.args != nil {
				w.eventually("a COMMIT waits for room", func() bool {
					return w.number("SELECT COUNT(*) FROM "+stack.Processes+" WHERE info = 'COMMIT' AND time > 3") > 0
				})
			}
			if n := w.dead(); n != 0 {
				t.Errorf("%d letters while the disk is full, want none", n)
			}
			server.FreeDisk()
			// then all goes on when there is room, and it has cost nothing
			w.ended(dedup.Success, all...)
			w.ended(dedup.Dead, "bad")
			w.recovered(r)
			w.quiet()
			w.want("effects", w.effects(), once(all...))
			if n := w.number("SELECT MAX(consumer_times) FROM consumer_log WHERE consumer_status = 1"); n != 1 {
				t.Errorf("up to %d attempts, want 1", n)
			}
			if row := w.row("bad"); row.Attempts != 3 || row.Reason != "exhausted" {
				t.Errorf("the bad one is dead after %d attempts because %q, want 3, exhausted", row.Attempts, row.Reason)
			}
			if n := w.dead(); n != 1 {
				t.Errorf("%d letters, want 1", n)
			}
		})
	}
}

// While a disk runs full, some tables still have room and others have none: one message meets the full one again and
// again while its neighbours succeed. A MEMORY table at its limit refuses with the same error 1114, and no disk is
// needed.
func TestATableThatIsFullIsNobodysFaultWhileOthersSucceed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.Lanes, w.cfg.BatchSize, w.cfg.Prefetch = 2, 1, 1
	w.cfg.Lease = time.Minute // so that nobody takes over
	own := w.conn()
	w.execOn(own, "SET SESSION max_heap_table_size = 16384")
	w.execOn(own, "CREATE TABLE tiny (b CHAR(200) NOT NULL) ENGINE=MEMORY")
	for full := false; !full; {
		_, err := own.ExecContext(t.Context(), "INSERT INTO tiny VALUES ('x')")
		full = err != nil
	}
	// given a message that needs the full table, and that failed once for a reason of its own
	w.handler = consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
		if msgs[0].Key == "big" {
			w.mu.Lock()
			w.calls = append(w.calls, []string{"big"})
			w.mu.Unlock()
			if err := tx.Exec("INSERT INTO tiny VALUES ('x')").Error; err != nil {
				return err
			}
		}
		return insert(tx, msgs[0].Key)
	})
	w.publish("{}", "big")
	w.exec(`INSERT INTO consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times, consumer_timestamp,
		created_at)
		VALUES (?, ?, 'big', 2, 1, UTC_TIMESTAMP(6) - INTERVAL 1 HOUR, UTC_TIMESTAMP(6))`, group, tag)
	w.start()
	// when the others succeed each time between two tries of it
	all := keys("order", 3)
	for i, key := range all {
		before := w.times("big")
		w.eventually("the message is tried", func() bool { return w.times("big") > before })
		w.publish("{}", key)
		w.ended(dedup.Success, all[:i+1]...)
	}
	before := w.times("big")
	w.eventually("the message is tried once more", func() bool { return w.times("big") > before })
	// then no attempt was spent on it, and it goes on when there is room
	if row := w.row("big"); row.Status != dedup.Processing || row.Attempts != 2 {
		t.Errorf("the message is %v in attempt %d, want processing in attempt 2", row.Status, row.Attempts)
	}
	w.execOn(own, "DELETE FROM tiny")
	w.ended(dedup.Success, "big")
	if row := w.row("big"); row.Attempts != 2 {
		t.Errorf("%d attempts, want 2: the one that failed and the one that succeeded", row.Attempts)
	}
	w.want("effects", w.effects(), once(append(all, "big")...))
}
