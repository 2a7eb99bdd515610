package dedup

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
)

// errShort says that a statement over many rows did not find all of them as they were read.
var errShort = errors.New("a statement over many rows changed fewer")

// shape is what changes must have in common to share a statement.
type shape struct {
	step       transition
	group, tag string
	from, to   Version
	backdate   int64
	dropBody   bool
	reason     Reason
	reasoned   bool
	remarked   bool
	keepsOwner bool
	silent     bool
	asMade     bool
	by         string
}

// shapeOf is the shape of a change. One that writes what a row may have already of its message, has a time of its own,
// or changes a second row, has a statement of its own.
func shapeOf(c *change) (_ shape, ok bool) {
	s := shape{
		step: c.step, group: c.key.Group, tag: c.key.Tag, from: c.from, to: c.to, backdate: c.backdate.Microseconds(),
		dropBody: c.dropBody, remarked: c.remark != nil, silent: c.silent, asMade: c.asMade, by: c.by,
	}
	if c.reason != nil {
		s.reason, s.reasoned = *c.reason, true
	}
	if c.keepsOwner() && c.from.Status != Processing { // then the statement does not name it
		s.from.Owner, s.to.Owner, s.keepsOwner = "", "", true
	} else if c.from.Status != Processing {
		s.from.Owner = ""
	}
	return s, c.also == nil && !c.replace && c.at == nil && (c.entry == nil || c.from.Status == Absent)
}

// maxSameShape is how many changes share an UPDATE at most: each remark is looked for among those before it.
const maxSameShape = 200

// runsOf cuts changes, which are in the order of their keys, into runs of one shape each. A run of one has a statement
// of its own.
func runsOf(changes []*change) (runs [][]*change) {
	of := map[shape]int{}
	size := map[shape]int{}
	for _, c := range changes {
		s, shared := shapeOf(c)
		at, open := of[s]
		bytes := c.size()
		if !shared || !open || len(runs[at]) >= maxSameShape || size[s]+bytes > maxBytes {
			at = len(runs)
			runs = append(runs, nil)
			size[s] = 0
			if shared {
				of[s] = at
			}
		}
		runs[at] = append(runs[at], c)
		size[s] += bytes
	}
	return runs
}

// size is how many bytes a change takes in a statement at most.
func (c *change) size() int {
	n := rowOverhead + 4*(len(c.key.Group)+len(c.key.Tag)+len(c.key.Key)) + 8*len(c.why)
	if e := c.entry; e != nil {
		n += 2*min(len(e.Body), MaxBody) + 2*min(len(e.Properties), MaxProperties) + 2*len(e.MessageID)
	}
	return n
}

// applyMany makes all changes inside tx by few statements. errShort: one of them found its row moved, and the
// transaction must be rolled back: whoever wants to know which makes them one by one.
func (l *Log) applyMany(ctx context.Context, tx Execer, changes []*change) error {
	for _, run := range runsOf(changes) {
		if len(run) == 1 {
			if err := l.apply(ctx, tx, run[0]); err != nil {
				return short(err)
			}
			continue
		}
		if err := l.applyRun(ctx, tx, run); err != nil {
			return short(err)
		}
	}
	return nil
}

// short is err, or errShort when err says that a row was moved.
func short(err error) error {
	if errors.Is(err, ErrLost) {
		return errShort
	}
	return err
}

// applyRun makes changes of one shape, each with its event.
func (l *Log) applyRun(ctx context.Context, tx Execer, run []*change) error {
	var s statement
	if run[0].from.Status == Absent {
		s = l.insertRun(run)
	} else {
		s = l.updateRun(run)
	}
	res, err := tx.ExecContext(ctx, s.String(), s.args...)
	if run[0].from.Status == Absent && l.exists(err) {
		return ErrLost
	}
	if err != nil {
		return err
	}
	affected, err := res.RowsAffected()
	if err != nil {
		return err
	}
	if affected != int64(len(run)) {
		return ErrLost
	}
	if run[0].silent {
		return nil
	}
	e := l.eventRun(run)
	if _, err := tx.ExecContext(ctx, e.String(), e.args...); err != nil {
		return fmt.Errorf("write %d events: %w", len(run), err)
	}
	return nil
}

// updateRun is update for changes of one shape: the guards are the same for each row, and so is all that is written but
// the remarks.
func (l *Log) updateRun(run []*change) (s statement) {
	c := *run[0]
	c.remark = nil
	l.set(&s, &c)
	if run[0].remark != nil {
		s.add(", remark = ELT(FIELD(msg_key")
		for _, c := range run {
			s.add(", ?", []byte(c.key.Key))
		}
		s.add(")")
		for _, c := range run {
			s.add(", ?", *c.remark)
		}
		s.add(")")
	}
	s.add(" WHERE ")
	keys := make([]Identity, len(run))
	for i, c := range run {
		keys[i] = c.key
	}
	addKeys(&s, keys)
	l.guard(&s, &c)
	return s
}

// insertRun is insert for changes of one shape.
func (l *Log) insertRun(run []*change) (s statement) {
	s.add(l.insertHead())
	for i, c := range run {
		if i > 0 {
			s.add(", ")
		}
		l.insertValues(&s, c)
	}
	return s
}

// eventRun is event for many changes.
func (l *Log) eventRun(run []*change) (s statement) {
	s.add(l.eventHead())
	for i, c := range run {
		if i > 0 {
			s.add(", ")
		}
		l.eventValues(&s, c)
	}
	return s
}

// Hold locks the rows of claims until tx ends, and compares each with its claim. ErrLost: somebody else has one of
// them.
func (l *Log) Hold(ctx context.Context, tx Execer, claims []Claim) error {
	for some := range slices.Chunk(claims, lookUpAnyRows) {
		var s statement
		s.add("SELECT msg_key, consumer_status, consumer_times, replays, owner, group_name, msg_tag FROM " + l.table +
			" FORCE INDEX (PRIMARY) WHERE ")
		addKeys(&s, identitiesOf(some))
		s.add(" ORDER BY group_name, msg_tag, msg_key FOR UPDATE")
		held, err := l.versions(ctx, tx, s)
		if err != nil {
			return fmt.Errorf("hold %d claims from %v: %w", len(some), some[0].Identity, err)
		}
		for _, c := range some {
			if held[c.Identity] != c.version() {
				return fmt.Errorf("hold %v: %w", c.Identity, ErrLost)
			}
		}
	}
	return nil
}

// versions reads the versions of rows.
func (l *Log) versions(ctx context.Context, tx Execer, s statement) (map[Identity]Version, error) {
	rows, err := tx.QueryContext(ctx, s.String(), s.args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	found := map[Identity]Version{}
	for rows.Next() {
		var k Identity
		var v Version
		var owner sql.NullString
		if err := rows.Scan(&k.Key, &v.Status, &v.Attempts, &v.Replays, &owner, &k.Group, &k.Tag); err != nil {
			return nil, err
		}
		v.Owner = owner.String
		found[k] = v
	}
	return found, rows.Err()
}

// addKeys writes the condition that a row is one of keys. MariaDB and MySQL read it as ranges of the primary key.
func addKeys(s *statement, keys []Identity) {
	first, same := keys[0], true
	for _, k := range keys {
		same = same && k.Group == first.Group && k.Tag == first.Tag
	}
	if same {
		s.add("group_name = ? AND msg_tag = ? AND msg_key IN (", []byte(first.Group), []byte(first.Tag))
	} else {
		s.add("(group_name, msg_tag, msg_key) IN (")
	}
	for i, k := range keys {
		if i > 0 {
			s.add(", ")
		}
		if same {
			s.add("?", []byte(k.Key))
		} else {
			s.add("(?, ?, ?)", keyArgs(k)...)
		}
	}
	s.add(")")
}

func identitiesOf(claims []Claim) []Identity {
	keys := make([]Identity, len(claims))
	for i, c := range claims {
		keys[i] = c.Identity
	}
	return keys
}

// SuccessAll is Success for many claims, whose rows tx holds. ErrLost: nothing is known of any of them.
func (l *Log) SuccessAll(ctx context.Context, tx Execer, claims []Claim) error {
	changes := make([]*change, len(claims))
	for i, claim := range claims {
		c, err := l.succeeding(claim)
		if err != nil {
			return err
		}
		changes[i] = c
	}
	slices.SortFunc(changes, func(a, b *change) int { return a.key.Compare(b.key) })
	err := l.applyMany(ctx, tx, changes)
	if errors.Is(err, errShort) {
		err = ErrLost
	}
	if err != nil {
		return fmt.Errorf("success of %d claims: %w", len(claims), err)
	}
	return nil
}

// ClaimAll is Claim for many rows that are failed and know their message already, in one transaction. All get one
// owner, which is unlike that of every other claim of their identities. Claims and errs are as long as rows: one that
// is lost does not hinder the others. No identity may be named twice.
func (l *Log) ClaimAll(ctx context.Context, rows []Row, owner string) (claims []Claim, errs []error) {
	claims = make([]Claim, len(rows))
	errs = l.changeAll(ctx, len(rows),
		func(i int) (*change, error) {
			if rows[i].Status != Failed || len(rows[i].BodyHash) == 0 {
				return nil, fmt.Errorf("claim %v: %w: it does not know its message", rows[i].Identity, ErrTransition)
			}
			return l.claiming(rows[i], nil, owner)
		},
		func(i int, c *change) { claims[i] = claimOf(rows[i], c) })
	return claims, errs
}

// ClaimNew is Claim for many identities without a row, in one transaction. For the rest it is like ClaimAll: ErrLost
// says that there is a row by now.
func (l *Log) ClaimNew(ctx context.Context, entries []Entry, owner string) (claims []Claim, errs []error) {
	claims = make([]Claim, len(entries))
	errs = l.changeAll(ctx, len(entries),
		func(i int) (*change, error) { return l.claiming(absent(entries[i].Identity), &entries[i], owner) },
		func(i int, c *change) { claims[i] = claimOf(absent(entries[i].Identity), c) })
	return claims, errs
}

// MarkAll is Success for many claims whose effects are not in this database, in one transaction of its own. Errs is as
// long as claims: one that is lost does not hinder the others. ErrLost: the lease was over and somebody else has the
// row. ErrUnknown: call again. No identity may be named twice.
func (l *Log) MarkAll(ctx context.Context, claims []Claim) (errs []error) {
	return l.changeAll(ctx, len(claims),
		func(i int) (*change, error) {
			c, err := l.succeeding(claims[i])
			if err == nil {
				c.own = true
			}
			return c, err
		},
		func(int, *change) {})
}

// Failure is what FailAll and PutOffAll take.
type Failure struct {
	Claim Claim
	Cause string
}

// FailAll is Fail for many claims, in one transaction. Rows and errs are as long as all: one that is lost does not
// hinder the others. No identity may be named twice.
func (l *Log) FailAll(ctx context.Context, all []Failure) (rows []Row, errs []error) {
	rows = make([]Row, len(all))
	errs = l.changeAll(ctx, len(all), func(i int) (*change, error) { return l.failing(all[i].Claim, all[i].Cause) },
		func(i int, c *change) { rows[i] = l.left(all[i].Claim.Row(), c) })
	return rows, errs
}

// UnclaimAll is Unclaim for many claims, in one transaction. Errs is as long as claims: one that is lost does not
// hinder the others. No identity may be named twice.
func (l *Log) UnclaimAll(ctx context.Context, claims []Claim) (errs []error) {
	return l.changeAll(ctx, len(claims), func(i int) (*change, error) { return l.unclaiming(claims[i], "") },
		func(int, *change) {})
}

// PutOffAll is UnclaimAll for attempts that somebody else put off, who said why; one without a cause never ran. The
// cause is the row's remark then, and the row stands in the log since before the first of such attempts.
func (l *Log) PutOffAll(ctx context.Context, all []Failure) (errs []error) {
	return l.changeAll(ctx, len(all), func(i int) (*change, error) { return l.unclaiming(all[i].Claim, all[i].Cause) },
		func(int, *change) {})
}

// Blamed is what BlameAll takes.
type Blamed struct {
	Entry Entry
	Cause string
}

// BlameAll records the first attempt of messages without a row, whose handler said in a transaction with others, and in
// time, that they failed: no claim counted that attempt. Their rows are failed, with one attempt, and due after its
// delay. All is one transaction; the owner, 1 to MaxOwner bytes, is unlike that of every other call.
//
// Rows and errs are as long as all: one that is lost does not hinder the others. ErrLost: there is a row by now, and
// nothing is counted. ErrUnknown: call again with the same owner. No identity may be named twice.
func (l *Log) BlameAll(ctx context.Context, all []Blamed, owner string) (rows []Row, errs []error) {
	rows = make([]Row, len(all))
	errs = l.changeAll(ctx, len(all),
		func(i int) (*change, error) {
			c, err := l.begin(actionBlame, absent(all[i].Entry.Identity))
			if err == nil {
				err = validateOwner(owner)
			}
			if err != nil {
				return nil, err
			}
			c.to = Version{Failed, 1, 0, owner}
			c.own, c.entry = true, &all[i].Entry
			c.why = cutText(all[i].Cause, MaxRemark)
			c.remark = &c.why
			return c, nil
		},
		func(i int, c *change) { rows[i] = l.left(absent(all[i].Entry.Identity), c) })
	return rows, errs
}
