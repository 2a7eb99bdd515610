package relay

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/outbox"
)

// claim is rows that this relay may publish until its lease ends.
type claim struct {
	owner string // unique for each claim: what a claim that was lost does later must not touch the rows of another
	rows  []row
}

// row is one message on its way.
type row struct {
	tag, key   string
	publishing rabbit.Publishing
	due        time.Time // by this process's clock
	verdict    error     // errUnfit before it is published, RabbitMQ's afterwards; nil: confirmed
}

// claim takes rows from that time on, so many at most. The transaction is READ COMMITTED and passes by what others have
// locked, so it waits for no producer, and none waits for it longer than this takes.
func (r *Relay) claim(ctx context.Context, from time.Time, most int) (c claim, err error) {
	tx, err := r.cfg.DB.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return c, fmt.Errorf("claim: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	if c.rows, err = r.read(ctx, tx, from, most); err != nil {
		return c, fmt.Errorf("claim: %w", err)
	}
	if len(c.rows) == 0 { // by a ROLLBACK, which tests tell from the COMMIT of a claim
		return c, nil
	}
	c.owner = rand.Text()
	where, args := keysOf(c.rows)
	// Without a reason whoever drops rows tells a claim from a pause. How long nobody tried is no part of a refused one's
	// ParkAfter.
	if _, err = tx.ExecContext(ctx, "UPDATE "+byKey+" SET owner = ?, reason = NULL, failed_at = failed_at + "+
		"INTERVAL TIMESTAMPDIFF(MICROSECOND, next_at, UTC_TIMESTAMP(6)) MICROSECOND, "+
		"next_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND WHERE "+where,
		append([]any{c.owner, r.cfg.Lease.Microseconds()}, args...)...); err != nil {
		return claim{}, fmt.Errorf("claim: %w", err)
	}
	// A commit whose answer is lost is no claim: the rows come due again when the lease ends.
	if err := tx.Commit(); err != nil {
		return claim{}, fmt.Errorf("claim: %w", err)
	}
	return c, nil
}

// read locks rows and reads them, until there are enough of them or of their bytes. What no message may be is read
// without its body. Keys are looked for without a lock, because entries of removed rows cost a locking read a hundred
// times as much; and not in the index alone, which MySQL would read from its first entry on, though nothing that is due
// is parked. Where others have all of these rows, twice as many are looked for the next time.
func (r *Relay) read(ctx context.Context, tx *sql.Tx, from time.Time, most int) (all []row, err error) {
	where, begin := dueFrom(from)
	reach := max(most, r.reach)
	args := append([]any{outbox.MaxBody, outbox.MaxHeaders}, append(begin, reach, most)...)
	rows, err := tx.QueryContext(ctx, "SELECT STRAIGHT_JOIN o.msg_tag, o.msg_key, IF(LENGTH(body) > ?, NULL, body), "+
		"LENGTH(body), content_type, IF(LENGTH(headers) > ?, '', headers), exchange, routing_key, CAST(put_at AS CHAR), "+
		"CAST(due_at AS CHAR), TIMESTAMPDIFF(MICROSECOND, due_at, UTC_TIMESTAMP(6)) FROM (SELECT msg_tag, msg_key "+
		"FROM rollbackd_outbox FORCE INDEX (next_at) WHERE "+where+
		" AND parked_at IS NULL ORDER BY next_at LIMIT ?) d JOIN "+byKey+
		" ON o.msg_tag = d.msg_tag AND o.msg_key = d.msg_key WHERE o.next_at <= UTC_TIMESTAMP(6) LIMIT ? "+
		"FOR UPDATE SKIP LOCKED", args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for sum := 0; sum < r.cfg.BatchSum && rows.Next(); {
		var w stored
		if err := rows.Scan(&w.tag, &w.key, &w.body, &w.size, &w.contentType, &w.headers, &w.exchange, &w.routingKey,
			&w.put, &w.due, &w.late); err != nil {
			return nil, err
		}
		all = append(all, r.row(w))
		sum += len(w.body)
	}
	if r.reach = reach / 2; len(all) == 0 {
		r.reach = min(2*reach, 1<<20)
	}
	return all, rows.Err()
}

// keysOf is a condition that holds for these rows.
func keysOf(rows []row) (where string, args []any) {
	args = make([]any, 0, 2*len(rows)+1)
	for i := range rows {
		args = append(args, []byte(rows[i].tag), []byte(rows[i].key))
	}
	return mysqldb.Pairs("msg_tag", "msg_key", len(rows)), args
}

// byKey is the table read through its primary key. Servers read a small table from its beginning to its end, and would
// wait there for rows that others have locked.
const byKey = "rollbackd_outbox o FORCE INDEX (PRIMARY)"
