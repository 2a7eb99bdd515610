package dedup

import "context"

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

func (l *Log) dying(d Death) (*change, error) {
	if d.From.Identity == (Identity{}) {
		d.From = absent(d.Entry.Identity)
	}
	c, err := l.begin(actionDead, d.From, validateReason(d.Reason))
	if err != nil {
		return nil, err
	}
	if d.From.Status != Failed || len(d.From.BodyHash) == 0 { // it has its message since it was claimed, blamed, condemned
		c.entry = &d.Entry // or reopened
	}
	c.reason = set(d.Reason)
	c.say(d.Cause)
	return c, nil
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
	return moveAll(ctx, l, all, func(a Condemnation) (*change, error) {
		c, err := l.begin(actionCondemn, a.From, validateReason(a.Reason), validateOwner(a.Owner))
		if err != nil {
			return nil, err
		}
		if a.From.Status != Processing {
			c.to.Owner = a.Owner
		}
		c.entry, c.reason = &a.Entry, set(a.Reason)
		c.say(a.Cause)
		return c, nil
	})
}
