package outbox

import (
	"context"
	"fmt"

	"github.com/rollbackd/rollbackd/dedup"
)

// cancelled is the owner of the row that a Cancel makes and removes again.
const cancelled = "cancel"

// Cancel takes back, within tx, the message with this tag and key, if no relay has taken it up. It reports whether it
// was in time: then, once tx is committed, the message is never sent. If not, it was sent, or is perhaps being sent, or
// was never there (a Put that is not committed yet is waited for). After an error tx must be rolled back.
//
// A key that is absent is no reason to lock its neighbours: a plain DELETE of it would keep others from inserting
// beside it, and two that cancel and then put would deadlock (under REPEATABLE READ, MySQL's default). So the row is
// made first, which locks one record, and removed. Where that waits for a row which a relay deletes meanwhile, InnoDB
// may have purged it when Cancel goes on, and have moved its lock to the gap, under READ COMMITTED too (seen on MariaDB
// 10.11): an INSERT beside it waits for tx then. A deadlock (error 1213) is answered by doing tx again.
func Cancel(ctx context.Context, tx Tx, tag, key string) (inTime bool, err error) {
	if err := checkTx(tx); err != nil {
		return false, err
	}
	if err := (dedup.Identity{Group: "-", Tag: tag, Key: key}).Validate(); err != nil {
		return false, fmt.Errorf("outbox: cancel: %w", err)
	}
	defer func() {
		if err != nil {
			inTime, err = false, fmt.Errorf("outbox: cancel %s/%q: %w", tag, key, err)
		}
	}()
	_, err = tx.ExecContext(ctx, "INSERT INTO rollbackd_outbox (msg_tag, msg_key, body, owner, next_at) "+
		"VALUES (?, ?, '', ?, ?) ON DUPLICATE KEY UPDATE tries = tries", []byte(tag), []byte(key), cancelled, never)
	if err != nil {
		return false, err
	}
	for _, owner := range []string{"owner IS NULL", "owner = '" + cancelled + "'"} {
		res, err := tx.ExecContext(ctx, "DELETE FROM rollbackd_outbox WHERE msg_tag = ? AND msg_key = ? AND "+owner,
			[]byte(tag), []byte(key))
		if err != nil {
			return false, err
		}
		if n, err := res.RowsAffected(); err != nil || n > 0 {
			return err == nil && owner == "owner IS NULL", err
		}
	}
	return false, nil
}

// never is the next_at of what no relay looks at.
const never = "9999-12-31 00:00:00"
