package dedup

import (
	"context"
	"encoding/hex"
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
	return first(l.ReopenAll(ctx, []Reopening{{from, e, note}}))
}

// Reopening is what Reopen takes.
type Reopening struct {
	From  Row
	Entry Entry
	Note  ReplayNote // several of one call may share a token, if no two are of one identity
}

// ReopenAll is Reopen for many identities; one that is stale hinders the others no more than one that is lost.
func (l *Log) ReopenAll(ctx context.Context, all []Reopening) (rows []Row, errs []error) {
	return moveAll(ctx, l, all, l.reopening)
}

func (l *Log) reopening(r Reopening) *change {
	from, note := r.From, r.Note
	var stale error
	if from.Status == Success || from.Status == Discarded && !note.Discarded {
		stale = fmt.Errorf("%w: %v", ErrStale, from.Status)
	}
	c := l.begin(actionReopen, from, stale, validateOwner(note.Token))
	c.to.Attempts, c.to.Owner = 0, note.Token
	c.to.Replays++
	c.reason = set(Reason(""))
	known := len(from.BodyHash) > 0 && (from.Status == Failed || from.Status == Dead)
	if !known || note.Mended != nil { // else the row has its message
		c.entry = &r.Entry
	}
	// A row that was taken over may keep a body that is not its message's, and knows no hash: it takes what is sent.
	c.replace = from.Status == Dead && len(from.BodyHash) == 0 && r.Entry.Body != nil
	c.by, c.why = note.By, strings.TrimSpace("replayed "+note.Filter)
	if note.Mended != nil {
		c.mend(l, *note.Mended)
	}
	return c
}

// mend makes the row take another body, and ends the identity under which a copy with the former one is filed.
func (c *change) mend(l *Log, former Entry) {
	c.replace = true
	c.why = fmt.Sprintf("body sha256 %s mended to %s: %s", hashText(c.was.BodyHash), hashText(c.entry.BodyHash[:]), c.why)
	if former.Identity != (Identity{}) {
		c.also = l.begin(actionDiscard, absent(former.Identity))
		c.also.entry, c.also.by = &former, c.by
		c.also.say(fmt.Sprintf("this body of %s was mended by %s", c.key, c.by))
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

// DiscardIn is Discard as a part of tx, which must be rolled back after any error.
func (l *Log) DiscardIn(ctx context.Context, tx Execer, d Discarding) error {
	return l.moveIn(ctx, tx, l.discarding(d))
}

// Discarding is what Discard takes.
type Discarding struct {
	From    Row
	Entry   Entry
	By, Why string
}

// DiscardAll is to Discard what ReopenAll is to Reopen.
func (l *Log) DiscardAll(ctx context.Context, all []Discarding) []error {
	_, errs := moveAll(ctx, l, all, l.discarding)
	return errs
}

func (l *Log) discarding(d Discarding) *change {
	var stale error
	if s := d.From.Status; s == Success || s == Discarded {
		stale = fmt.Errorf("%w: %v", ErrStale, s)
	}
	c := l.begin(actionDiscard, d.From, stale)
	c.say(fmt.Sprintf("discarded by %s: %s", d.By, d.Why))
	c.entry, c.by, c.why = &d.Entry, d.By, d.Why
	return c
}
