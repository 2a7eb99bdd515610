package outbox

import (
	"context"
	"database/sql"
	"slices"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
)

// Change is how a person changes rows that a Filter chooses.
type Change struct {
	// Force lets Drop take what still waits or is tried again, besides what is parked.
	Force  bool
	DryRun bool
	// Progress, if set, is told how many rows were looked at.
	Progress func(seen int)
}

// Changed is what came of it. The names of its JSON form are stable.
type Changed struct {
	Changed int `json:"changed"`
	// Left are those that stay: a relay has them in hand, a transaction has them locked, or somebody was faster.
	Left int `json:"left"`
	// More: there are more than a dry run looks at.
	More bool `json:"more,omitempty"`
	// Rows are the first of the changed, so that it stays known what was dropped.
	Rows []Row `json:"rows"`
}

// maxNamed bounds the rows that are named in a Changed, changedAtOnce those of one transaction.
const (
	maxNamed      = 100
	changedAtOnce = 200
)

// free holds for rows that no relay has in hand. A claim takes the reason away, and who refuses a message writes one.
const free = "(parked_at IS NOT NULL OR owner IS NULL OR reason IS NOT NULL OR next_at <= UTC_TIMESTAMP(6))"

// byKey is the table read through its primary key. Servers read a small table from its beginning to its end, and would
// wait there for rows that others have locked.
const byKey = "rollbackd_outbox o FORCE INDEX (PRIMARY)"

// Retry has parked and refused rows sent now, with all their tries again, whatever became of their exchanges meanwhile.
// What the rows know of having been sent, perhaps, stays.
func (r Rows) Retry(ctx context.Context, f Filter, c Change) (Changed, error) {
	takes := func(s State) bool { return s == Parked || s == Refused }
	return r.change(ctx, f, c, takes, "failed_at <= ? AND "+free, "UPDATE "+byKey+" SET next_at = UTC_TIMESTAMP(6), "+
		"tries = 0, failed_at = NULL, parked_at = NULL, reason = NULL WHERE ")
}

// Drop deletes parked rows for ever, and by force those that wait or are tried again; never one that a relay has in
// hand. What has an owner was sent, perhaps.
func (r Rows) Drop(ctx context.Context, f Filter, c Change) (Changed, error) {
	takes, which := func(s State) bool { return c.Force || s == Parked }, "parked_at <= ?"
	if c.Force {
		which = "COALESCE(parked_at, failed_at, put_at) <= ? AND " + free
	}
	return r.change(ctx, f, c, takes, which, "DELETE o FROM "+byKey+" WHERE ")
}

// change does it in short transactions that wait for nobody. Rows that came to be what they are after it began are not
// of it, so it comes to an end.
func (r Rows) change(
	ctx context.Context, f Filter, c Change, takes func(State) bool, which, do string,
) (res Changed, err error) {
	if err := f.Check(); err != nil {
		return res, err
	}
	res.Rows = []Row{}
	var began string
	if err := r.DB.QueryRowContext(ctx, "SELECT CAST(UTC_TIMESTAMP(6) AS CHAR)").Scan(&began); err != nil {
		return res, asked("read the clock", err)
	}
	for after, seen := "", 0; ; {
		page, next, err := r.List(ctx, f, after, changedAtOnce)
		if err != nil {
			return res, err
		}
		page = slices.DeleteFunc(page, func(one Row) bool { return !takes(one.State) })
		for some := range slices.Chunk(page, changedAtOnce) { // keys are one page, whatever their number
			changed, err := r.changeSome(ctx, some, which, began, do, c.DryRun)
			if err != nil {
				return res, asked("change rows", err)
			}
			res.Changed += len(changed)
			res.Left += len(some) - len(changed)
			for _, one := range some {
				if changed[id{one.Tag, one.Key}] && len(res.Rows) < maxNamed {
					res.Rows = append(res.Rows, one)
				}
			}
			if seen += len(some); c.Progress != nil {
				c.Progress(seen)
			}
		}
		if after = next; after == "" || c.DryRun && seen >= MostCounted {
			res.More = after != ""
			return res, nil
		}
	}
}

// changeSome changes those of the rows for which the condition holds.
func (r Rows) changeSome(
	ctx context.Context, some []Row, which, began, do string, dryRun bool,
) (changed map[id]bool, err error) {
	ids := make([]id, len(some))
	for i, one := range some {
		ids[i] = id{one.Tag, one.Key}
	}
	where, args := named(ids)
	look := "SELECT msg_tag, msg_key FROM " + byKey + " WHERE " + where + " AND " + which
	if !dryRun {
		look += " FOR UPDATE SKIP LOCKED"
	}
	args = append(args, began)
	err = mysqldb.InShortTx(ctx, r.DB, func(tx *sql.Tx) error {
		taken, err := mysqldb.List(ctx, tx, func(rows *sql.Rows) (one id, err error) {
			return one, rows.Scan(&one.Tag, &one.Key)
		}, look, args...)
		changed = map[id]bool{}
		for _, one := range taken {
			changed[one] = true
		}
		if err != nil || len(taken) == 0 || dryRun {
			return err
		}
		where, args := named(taken)
		_, err = tx.ExecContext(ctx, do+where, args...)
		return err
	})
	return changed, err
}
