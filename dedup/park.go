package dedup

import (
	"context"
	"fmt"
)

// parked begins the remark of a parked row.
const parked = "parked "

// Park marks a dead row whose letter is not replayed by itself any more: remark begins with why, before the last error,
// and the story gets a line. It is no transition: status, version and times stay, so that nobody who has read the row
// loses it. False: it is marked already, or somebody has moved the row.
func (l *Log) Park(ctx context.Context, row Row, by, why string) (marked bool, err error) {
	if row.Status != Dead {
		return false, fmt.Errorf("park %v: %w from %v", row.Identity, ErrTransition, row.Status)
	}
	err = l.inTx(ctx, func(tx Execer) error {
		var s statement
		s.add("UPDATE "+l.table+" FORCE INDEX (PRIMARY) SET remark = LEFT(CONCAT(?, remark), ?)", parked+why+": ", MaxRemark)
		s.add(keyIs, keyArgs(row.Identity)...)
		s.add(" AND consumer_status = ?", int(row.Status))
		s.add(" AND consumer_times = ?", row.Attempts)
		s.add(" AND replays = ?", row.Replays)
		s.add(" AND remark NOT LIKE ?", parked+"%")
		affected, err := s.exec(ctx, tx)
		if err != nil || affected != 1 {
			return err
		}
		marked = true
		c := &change{key: row.Identity, from: row.Version, to: row.Version, by: by, why: parked + why}
		_, err = l.event(c).exec(ctx, tx)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("park %v: %w", row.Identity, err)
	}
	return marked, nil
}
