package dedup

import (
	"context"
	"errors"
	"fmt"
)

// Dead marks an identity dead, after its letter is confirmed: an absent or failed one, or a claimed one by the row of
// its own claim (Claim.Row). The entry is kept where the row does not have it yet, so that a person can read the
// message. ErrLost: somebody moved the row; the letter stands, and is stale or theirs. ErrUnknown: call again.
func (l *Log) Dead(ctx context.Context, from Row, e Entry, reason Reason, cause string) error {
	return l.DeadRows(ctx, []Death{{from, e, reason, cause}})[0]
}

// Death is what DeadRows takes.
type Death struct {
	From  Row // zero: the identity has no row
	Entry Entry
	// Reason has 1 to MaxReason bytes.
	Reason Reason
	Cause  string
}

// DeadRows is Dead for many identities.
func (l *Log) DeadRows(ctx context.Context, all []Death) (errs []error) {
	_, errs = moveAll(ctx, l, all, l.dying)
	return errs
}

func (l *Log) dying(d Death) *change {
	if d.From.Identity == (Identity{}) {
		d.From = absent(d.Entry.Identity)
	}
	c := l.begin(actionDead, d.From, validateReason(d.Reason))
	if d.From.Status != Failed || len(d.From.BodyHash) == 0 { // it has its message since it was claimed, blamed, condemned
		c.entry = &d.Entry // or reopened
	}
	c.reason = set(d.Reason)
	c.say(d.Cause)
	return c
}

// Condemnation is what CondemnAll takes.
type Condemnation struct {
	From  Row
	Entry Entry
	// Reason has 1 to MaxReason bytes.
	Reason Reason
	Cause  string
	Owner  string
}

// CondemnAll writes down that identities are to be dead, while their letters cannot be published: absent or failed
// ones, or claimed ones by the rows of their own claims (Claim.Row). The row is failed, keeps reason, cause and entry,
// and gets no further attempt, whoever comes; it waits for Dead. The owner, 1 to MaxOwner bytes and unlike every other,
// tells whose work the row is; a claimed one keeps its claim's.
func (l *Log) CondemnAll(ctx context.Context, all []Condemnation) (rows []Row, errs []error) {
	return moveAll(ctx, l, all, func(a Condemnation) *change {
		c := l.begin(actionCondemn, a.From, validateReason(a.Reason), validateOwner(a.Owner))
		if a.From.Status != Processing {
			c.to.Owner = a.Owner
		}
		c.entry, c.reason = &a.Entry, set(a.Reason)
		c.say(a.Cause)
		return c
	})
}

// parked begins the remark of a parked row.
const parked = "parked "

// Park marks a dead row whose letter is not replayed by itself any more: remark begins with why, before the last error,
// and the story gets a line. It is no transition: status, version and times stay, so that nobody who has read the row
// loses it. False: it is marked already, or somebody has moved the row.
func (l *Log) Park(ctx context.Context, row Row, by, why string) (marked bool, err error) {
	defer wrap(&err, "park %v", row.Identity)
	if row.Status != Dead {
		return false, fmt.Errorf("%w from %v", ErrTransition, row.Status)
	}
	err = l.inTx(ctx, func(tx Execer) error {
		var s statement
		s.add("UPDATE "+l.table+" FORCE INDEX (PRIMARY) SET remark = LEFT(CONCAT(?, remark), ?)", parked+why+": ", MaxRemark)
		s.add(keyIs, keyArgs(row.Identity)...)
		s.add(" AND consumer_status = ? AND consumer_times = ? AND replays = ?", int(row.Status), row.Attempts, row.Replays)
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
	return marked && err == nil, err
}

// maxAdopted bounds the replays of a letter that is adopted: its header may be forged, and the column counts on.
const maxAdopted = 1 << 30

// Adopt marks an absent identity dead whose letter lies in the dead-letter queue without a row, on behalf of a person.
// Replays are those that the letter says its row had, so that it still is its row's letter when somebody moves it by
// hand: the daemon acks an older one. For the rest it is like [Log.Dead].
func (l *Log) Adopt(ctx context.Context, e Entry, replays int, reason Reason, cause, by string) error {
	_, err := first(moveAll(ctx, l, []Death{{absent(e.Identity), e, reason, cause}}, func(d Death) *change {
		c := l.dying(d)
		c.to.Replays, c.by = max(0, min(replays, maxAdopted)), by
		return c
	}))
	return err
}

// AdoptSuccess writes the success row of an absent identity whose effect is committed, on behalf of a person: somebody
// deleted the row. The caller must hold, in tx, locks on what proves the effect. It writes a line of the story.
// ErrExists: there is a row. Whatever the error, roll tx back.
func (l *Log) AdoptSuccess(ctx context.Context, tx Execer, k Identity, by, why string) error {
	c := l.begin(actionInsert, absent(k))
	c.to.Attempts, c.entry, c.by = 1, &Entry{Identity: k}, by
	c.say(why)
	if err := l.moveIn(ctx, tx, c); errors.Is(err, ErrLost) {
		c.err = ErrExists
	}
	if c.err != nil {
		return fmt.Errorf("adopt %v as applied: %w", k, c.err)
	}
	return nil
}
