package dedup

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// Reopen makes an ended identity start anew: attempts 0, one replay more, due at once. From is the row as it was read:
// absent, failed, dead, or processing with an expired lease; discarded only when the note says so. The letter may be
// published only after Reopen returned nil for this very note.
//
// ErrStale: the row is in success, or discarded and nobody asked for those: the letter is stale. ErrLost: the lease
// lives, or somebody moved the row; the letter stays. ErrUnknown: call again with the same note.
func (l *Log) Reopen(ctx context.Context, from Row, e Entry, note ReplayNote) (Row, error) {
	rows, errs := l.ReopenAll(ctx, []Reopening{{from, e, note}})
	return rows[0], errs[0]
}

// Reopening is what Reopen takes.
type Reopening struct {
	From  Row
	Entry Entry
	Note  ReplayNote // several of one call may share a token, if no two are of one identity
}

// ReopenAll does many Reopens in one transaction. Rows and errs are as long as all: one that is stale or lost does not
// hinder the others. No identity may be named twice.
func (l *Log) ReopenAll(ctx context.Context, all []Reopening) (rows []Row, errs []error) {
	rows = make([]Row, len(all))
	errs = l.changeAll(ctx, len(all), func(i int) (*change, error) { return l.reopening(&all[i]) },
		func(i int, c *change) { rows[i] = l.left(all[i].From, c) })
	return rows, errs
}

func (l *Log) reopening(r *Reopening) (*change, error) {
	from, note := r.From, r.Note
	c, err := l.begin(actionReopen, from)
	if errors.Is(err, ErrTransition) && from.Status == Success {
		err = fmt.Errorf("reopen %v: %w: %v", from.Identity, ErrStale, from.Status)
	}
	if err == nil && c.step.Guard&guardAsked != 0 && !note.Discarded {
		err = fmt.Errorf("reopen %v: %w: %v", from.Identity, ErrStale, from.Status)
	}
	if err == nil {
		err = validateOwner(note.Token)
	}
	if err != nil {
		return nil, err
	}
	replays := 1
	if from.Status != Absent {
		replays = from.Replays + 1
	}
	none := Reason("")
	c.to = Version{Failed, 0, replays, note.Token}
	c.own, c.entry, c.reason = true, &r.Entry, &none
	if known := from.Status == Failed || from.Status == Dead; known && len(from.BodyHash) > 0 && note.Mended == nil {
		c.entry = nil // the row has its message
	}
	// A row that was taken over may keep a body that is not its message's, and knows no hash: it takes what is sent.
	c.replace = from.Status == Dead && len(from.BodyHash) == 0 && r.Entry.Body != nil
	c.by, c.why = note.By, strings.TrimSpace("replayed "+note.Filter)
	if note.Mended != nil {
		c.mend(from, *note.Mended)
	}
	return c, nil
}

// mend makes the row take another body, and ends the identity under which a copy with the former one is filed.
func (c *change) mend(from Row, former Entry) {
	c.replace = true
	c.why = fmt.Sprintf("body sha256 %s mended to %s: %s", hashText(from.BodyHash), hashText(c.entry.BodyHash[:]), c.why)
	if former.Identity == (Identity{}) {
		return
	}
	step, _ := transitionOf(actionDiscard, Absent)
	remark := cutText(fmt.Sprintf("this body of %s was mended by %s", from.Identity, c.by), MaxRemark)
	c.also = &change{
		step: step, key: former.Identity, from: Version{Status: Absent}, to: Version{Status: Discarded},
		entry: &former, remark: &remark, by: c.by, why: remark,
	}
}

func hashText(hash []byte) string {
	if len(hash) == 0 {
		return "unknown"
	}
	return hex.EncodeToString(hash)
}

// Discard ends an identity by a person's will: an absent, failed or dead one, or a processing one with an expired
// lease. ErrStale: it has ended already. ErrLost: the lease lives, or somebody moved the row. ErrUnknown: look again.
func (l *Log) Discard(ctx context.Context, from Row, e Entry, by, why string) error {
	return l.DiscardAll(ctx, []Discarding{{from, e, by, why}})[0]
}

// Discarding is what Discard takes.
type Discarding struct {
	From    Row
	Entry   Entry
	By, Why string
}

// DiscardAll is to Discard what ReopenAll is to Reopen.
func (l *Log) DiscardAll(ctx context.Context, all []Discarding) []error {
	return l.changeAll(ctx, len(all), func(i int) (*change, error) { return l.discarding(&all[i]) }, func(int, *change) {})
}

func (l *Log) discarding(d *Discarding) (*change, error) {
	from := d.From
	c, err := l.begin(actionDiscard, from)
	if errors.Is(err, ErrTransition) && (from.Status == Success || from.Status == Discarded) {
		err = fmt.Errorf("discard %v: %w: %v", from.Identity, ErrStale, from.Status)
	}
	if err != nil {
		return nil, err
	}
	c.to = Version{Status: Discarded}
	if from.Status != Absent {
		c.to = Version{Discarded, from.Attempts, from.Replays, from.Owner}
	}
	remark := cutText(fmt.Sprintf("discarded by %s: %s", d.By, d.Why), MaxRemark)
	c.entry, c.remark = &d.Entry, &remark
	c.by, c.why = d.By, d.Why
	return c, nil
}

// changeAll makes those of n changes that begin allows, together, and tells of each that was made.
func (l *Log) changeAll(ctx context.Context, n int, begin func(int) (*change, error), made func(int, *change)) []error {
	errs := make([]error, n)
	var changes []*change
	var of []int
	for i := range n {
		c, err := begin(i)
		if errs[i] = err; err == nil {
			changes, of = append(changes, c), append(of, i)
		}
	}
	if len(changes) == 0 {
		return errs
	}
	for j, err := range l.moveAll(ctx, changes) {
		if errs[of[j]] = err; err == nil {
			made(of[j], changes[j])
		}
	}
	return errs
}
