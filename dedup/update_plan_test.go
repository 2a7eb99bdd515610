package dedup

import (
	"database/sql"
	"fmt"
	"testing"
	"time"
)

// The guards of a transition compare status and time, which are the columns of an index; statistics may make that index
// look better than the primary key. A statement that goes through it waits for other identities' rows.
func TestTransitionWaitsForNoOtherRow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const rows = 300
	if err := w.inTx(func(tx *sql.Tx) error {
		for i := range rows {
			status := Success
			if i == 0 {
				status = Failed
			}
			if _, err := tx.Exec("INSERT INTO consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times, "+
				"replays,"+
				" consumer_timestamp, created_at) VALUES (?,?,?,?,1,0, UTC_TIMESTAMP(6) - INTERVAL 1 DAY, UTC_TIMESTAMP(6))",
				append(keyArgs(key(fmt.Sprint(i))), int(status))...); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	w.exec("ANALYZE TABLE consumer_log")
	other := worldOf(t, w.dsn, openWith(t, w.dsn, OpenOptions{LockWait: time.Second}))

	err := w.inTx(func(tx *sql.Tx) error {
		if _, err := tx.Exec("SELECT 1 FROM consumer_log"+keyIs+" FOR UPDATE", keyArgs(key("0"))...); err != nil {
			return err
		}
		asItWas := Row{Identity: key("1"), Version: Version{Status: Failed, Attempts: 1}}
		_, err := other.log.Claim(t.Context(), asItWas, entryOf(key("1")), "owner")
		return err
	})

	wantError(t, "claim of a row that was moved, beside a locked row", err, ErrLost)
}
