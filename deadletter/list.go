package deadletter

import (
	"context"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
)

// Letter is a dead letter as the consumer log knows it. The names of its JSON form are stable.
type Letter struct {
	Group    string       `json:"group"`
	Tag      string       `json:"tag"`
	Key      string       `json:"key"`
	Reason   dedup.Reason `json:"reason"`
	Attempts int          `json:"attempts"` // since the row was made or reopened
	Replays  int          `json:"replays"`
	DeadAt   time.Time    `json:"dead_at"`    // by the database's clock
	Created  time.Time    `json:"created_at"` // of the row
	Remark   string       `json:"remark"`     // the last error
	BodyHash string       `json:"body_sha256,omitempty"`
	Parked   bool         `json:"parked"` // replayed as often as Options.MaxReplays allows: only force replays it
}

// List reads a page of dead letters from the consumer log, the latest first. It never touches the queue. After is where
// the last page ended, "" for the first; the cursor returned is "" after the last page.
func (l *Letters) List(ctx context.Context, f Filter, after dedup.Cursor) ([]Letter, dedup.Cursor, error) {
	return l.Look(ctx, f, after, 0)
}

// Look is List for somebody who waits: no index leads to reasons and errors, and so it goes through so many letters at
// most, may find less than a page, or nothing, and all the same a cursor from where to look further; 0: through all.
func (l *Letters) Look(ctx context.Context, f Filter, after dedup.Cursor, through int) ([]Letter, dedup.Cursor, error) {
	q := f.query(l.o.Group)
	q.After = after
	rows, next, err := l.o.Records.Look(ctx, q, through, f.printed())
	if err != nil {
		return nil, "", fmt.Errorf("list dead letters: %w", err)
	}
	letters := make([]Letter, len(rows))
	for i, r := range rows {
		letters[i] = letterOf(r, l.o.MaxReplays)
	}
	return letters, next, nil
}

// printed chooses by fingerprint; nil when it need not.
func (f Filter) printed() func(dedup.Row) bool {
	if f.Fingerprint == "" {
		return nil
	}
	return func(row dedup.Row) bool { return Fingerprint(row.Remark) == f.Fingerprint }
}

// letterOf is a dead row as a letter, which is parked after most replays.
func letterOf(r dedup.Row, most int) Letter {
	return Letter{
		Group: r.Group, Tag: r.Tag, Key: r.Key, Reason: r.Reason, Attempts: r.Attempts, Replays: r.Replays,
		DeadAt: r.DeadAt, Created: r.CreatedAt, Remark: r.Remark, BodyHash: hex.EncodeToString(r.BodyHash),
		Parked: isSpent(r, most),
	}
}

// Reasons counts the dead letters that f chooses by their reasons, the most frequent first. It reads the consumer log
// only.
func (l *Letters) Reasons(ctx context.Context, f Filter) ([]dedup.ReasonCount, error) {
	counts, err := l.o.Records.CountReasons(ctx, f.query(l.o.Group))
	if err != nil {
		return nil, fmt.Errorf("count dead letters: %w", err)
	}
	return counts, nil
}
