package deadletter

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
)

// Filter chooses letters. All conditions must hold; a zero one always does.
type Filter struct {
	// All must be set to choose without any other condition. List needs none.
	All bool
	// Keys and Tag are those of the row a letter belongs to: one of Keys, if there are any. A letter without an identity of
	// its own is also found under the one it has by now. For List at most dedup.MaxListedKeys.
	Keys []string
	Tag  string
	// Reasons are why letters are dead, for example exhausted: one of them, if there are any.
	Reasons []string
	// Since and Until bound when the letter died: at or after, and before.
	Since, Until time.Time
	// Limit is how many letters are taken at most, the oldest first; 0: no limit. For List it is the size of a page,
	// 1 to dedup.MaxListed, 0 for 100.
	Limit int

	due func(dedup.Row) bool // if set, the letter's row must be due; List does not ask
}

// ErrNoFilter says that a filter chooses nothing.
var ErrNoFilter = errors.New("no letter is chosen: say which, or all")

func (f Filter) validate() error {
	narrow := len(f.Keys) > 0 || f.Tag != "" || len(f.Reasons) > 0 || !f.Since.IsZero() || !f.Until.IsZero()
	switch {
	case !f.All && !narrow:
		return ErrNoFilter
	case f.Limit < 0:
		return fmt.Errorf("a limit of %d letters", f.Limit)
	}
	return nil
}

// String is what was asked for, for the story of a row.
func (f Filter) String() string {
	text := ""
	add := func(name, value string) {
		if value != "" {
			text += fmt.Sprintf(" %s=%q", name, value)
		}
	}
	for _, key := range f.Keys {
		add("key", key)
	}
	add("tag", f.Tag)
	for _, reason := range f.Reasons {
		add("reason", reason)
	}
	if !f.Since.IsZero() {
		add("since", f.Since.UTC().Format(time.RFC3339))
	}
	if !f.Until.IsZero() {
		add("until", f.Until.UTC().Format(time.RFC3339))
	}
	if text == "" {
		return "all"
	}
	return text[1:]
}

// Letter is a dead letter as the consumer log knows it. The names of its JSON form are stable.
type Letter struct {
	Group    string    `json:"group"`
	Tag      string    `json:"tag"`
	Key      string    `json:"key"`
	Reason   string    `json:"reason"`
	Attempts int       `json:"attempts"` // since the row was made or reopened
	Replays  int       `json:"replays"`
	DeadAt   time.Time `json:"dead_at"`    // by the database's clock
	Created  time.Time `json:"created_at"` // of the row
	Remark   string    `json:"remark"`     // the last error
	BodyHash string    `json:"body_sha256,omitempty"`
	Parked   bool      `json:"parked"` // replayed as often as Options.MaxReplays allows: only force replays it
}

// List reads a page of dead letters from the consumer log, the latest first. It never touches the queue. After is where
// the last page ended, "" for the first; the cursor returned is "" after the last page.
func (l *Letters) List(ctx context.Context, f Filter, after dedup.Cursor) ([]Letter, dedup.Cursor, error) {
	q := l.query(f)
	q.After = after
	rows, next, err := l.o.Records.List(ctx, q)
	if err != nil {
		return nil, "", fmt.Errorf("list dead letters: %w", err)
	}
	letters := make([]Letter, len(rows))
	for i, r := range rows {
		letters[i] = l.letterOf(r)
	}
	return letters, next, nil
}

// query asks the log for the letters that f chooses.
func (l *Letters) query(f Filter) dedup.Filter {
	return dedup.Filter{
		Group: l.o.Group, Statuses: []dedup.Status{dedup.Dead},
		Tag: f.Tag, Keys: f.Keys, Reasons: f.Reasons, Since: f.Since, Until: f.Until, Limit: f.Limit,
	}
}

// letterOf is a dead row as a letter.
func (l *Letters) letterOf(r dedup.Row) Letter {
	return Letter{
		Group: r.Group, Tag: r.Tag, Key: r.Name, Reason: r.Reason, Attempts: r.Attempts, Replays: r.Replays,
		DeadAt: r.DeadAt, Created: r.CreatedAt, Remark: r.Remark, BodyHash: hex.EncodeToString(r.BodyHash),
		Parked: l.isParked(r),
	}
}

func (l *Letters) isParked(row dedup.Row) bool { return isSpent(row, l.o.MaxReplays) }
