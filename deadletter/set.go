package deadletter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// Set is a set of dead letters that is frozen at a moment: the dead rows that a filter chooses and whose last
// transition is not later than CutOff. What dies later is not of it.
type Set struct {
	Filter Filter
	CutOff time.Time // by the database's clock
	// Name is unlike that of every other set, 1 to 40 bytes: it stands in the owner of each row that is reopened, so that
	// another process can go on where this one dies.
	Name string
	// Confirmed is a moment by the database's clock: what was reopened under Name until then was published. What was
	// reopened later, and nobody has begun to process, is published again. Zero: nothing was.
	Confirmed time.Time
	// What became of the letters that other processes have replayed under Name.
	Applied, FailedAgain int
	// Open are those without an outcome, with the replays of their rows.
	Open map[dedup.Identity]int
}

// SetResult is what a run over a set did. Of Left only the first are named.
type SetResult struct {
	Result
	LeftCount int
	LeftBy    map[Why]int
	// Confirmed: everything that was ever reopened for the set is published and confirmed.
	Confirmed bool
}

// maxLeftOfSet bounds the letters that stay and are named.
const maxLeftOfSet = 500

// ReplaySet replays a set as Replay does, but takes each letter from its row, which is found through an index however
// long the queue is: the row is reopened, and the message that it keeps is published. The letters in the queue are
// stale then; [Letters.Sweep] drops them. Rows that keep too little of their message are looked for in the queue, all
// in one walk.
//
// It may be called again with the same set after any error, by any process, and goes on.
func (l *Letters) ReplaySet(ctx context.Context, set Set, o ReplayOptions) (SetResult, error) {
	o.token, o.within = setToken(set.Name), withinByItself
	r := newRun(l, Filter{All: true}, o, set.Filter.String())
	r.tally.keep = maxLeftOfSet
	s := &setSource{run: r, set: set, poor: map[dedup.Identity]dedup.Row{}}
	err := errors.Join(set.validate(), r.o.validate())
	if err == nil {
		err = r.connected(ctx, func(q *queue, p *rabbit.Publisher) error {
			w := newWatch(r, q.conn)
			w.open = set.Open
			if w.open == nil {
				w.open = map[dedup.Identity]int{}
			}
			r.tally.Applied, r.tally.FailedAgain = set.Applied, set.FailedAgain
			if err := move(ctx, r, s, toReplay(r, p, w, func(*letter) {}), w); err != nil {
				return err
			}
			return s.fromQueue(ctx, q, p)
		})
	}
	if err != nil {
		err = fmt.Errorf("replay dead letters: %w", err)
	}
	return r.tally.ofSet(), err
}

// DiscardSet discards a set as Discard does, by its rows.
func (l *Letters) DiscardSet(ctx context.Context, set Set, o DiscardOptions) (SetResult, error) {
	r := newRun(l, Filter{All: true}, ReplayOptions{By: o.By, DryRun: o.DryRun, Progress: o.Progress, token: setToken(
		set.Name)}, set.Filter.String())
	r.tally.keep = maxLeftOfSet
	s := &setSource{run: r, set: set, discard: true}
	err := set.validate()
	if err == nil {
		err = move(ctx, r, s, toDiscard(r, o.Why, func(*letter) {}), newWatch(r, nil))
	}
	if err != nil {
		err = fmt.Errorf("discard dead letters: %w", err)
	}
	return r.tally.ofSet(), err
}

// setToken begins the owner of the rows that are reopened for a set.
func setToken(name string) string { return "run/" + name + "/" }

func (s Set) validate() error {
	if s.Name == "" || len(s.Name) > 40 || s.CutOff.IsZero() || s.Filter.Limit != 0 || len(s.Filter.Keys) > MaxSetKeys {
		return fmt.Errorf("a set wants a name of 1 to 40 bytes, a cut-off, no limit and at most %d keys", MaxSetKeys)
	}
	return s.Filter.validate()
}

// MaxSetKeys bounds the keys of a set's filter.
const MaxSetKeys = 1000

// query asks for the rows of a set, oldest first; keys are at most dedup.MaxListedKeys of those of the filter.
func (s Set) query(group string, keys []string) dedup.Filter {
	q := s.Filter.query(group)
	q.Keys, q.UpTo, q.Oldest, q.Limit = keys, s.CutOff, true, dedup.MaxListed
	return q
}

// setSource is the rows of a set.
type setSource struct {
	*run
	set     Set
	discard bool

	again  bool      // the rows that were reopened before have been looked for
	now    time.Time // by the database's clock, when that began
	keys   [][]string
	listed bool // keys is cut up
	after  dedup.Cursor
	rows   []dedup.Row // listed and not taken yet
	// poor are rows that keep too little: they are looked for in the queue.
	poor map[dedup.Identity]dedup.Row
}

func (s *setSource) next(ctx context.Context) ([]*letter, error) {
	for len(s.rows) == 0 {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		if err := s.list(ctx); err != nil {
			return nil, err
		}
	}
	n := min(window, len(s.rows))
	letters := make([]*letter, n)
	for i, row := range s.rows[:n] {
		id := wire.Identified{Identity: row.Identity}
		letters[i] = &letter{own: id, id: id, row: row, formerRow: absent, stored: true,
			info: wire.CopyInfo{Reason: row.Reason}}
	}
	s.rows = s.rows[n:]
	s.tally.Seen += n
	return letters, nil
}

// list reads the next rows; io.EOF when there are no more.
func (s *setSource) list(ctx context.Context) (err error) {
	if !s.again && !s.discard {
		return s.listBegun(ctx)
	}
	s.tally.passed = true
	if !s.listed {
		s.listed, s.keys = true, [][]string{nil}
		if len(s.set.Filter.Keys) > 0 {
			s.keys = slices.Collect(slices.Chunk(s.set.Filter.Keys, dedup.MaxListedKeys))
		}
	}
	if len(s.keys) == 0 {
		return io.EOF
	}
	q := s.set.query(s.l.o.Group, s.keys[0])
	q.After = s.after
	rows, next, err := s.l.o.Records.List(ctx, q)
	if err != nil {
		return err
	}
	if s.after = next; next == "" {
		s.keys = s.keys[1:]
	}
	if want := s.set.Filter.Fingerprint; want != "" {
		rows = slices.DeleteFunc(rows, func(r dedup.Row) bool { return Fingerprint(r.Remark) != want })
	}
	s.rows = rows
	return nil
}

// listBegun reads rows that were reopened before and perhaps not published: the process may have died in between.
func (s *setSource) listBegun(ctx context.Context) (err error) {
	const some = 1000
	if s.now.IsZero() {
		if s.now, err = s.l.o.Records.Now(ctx); err != nil {
			return err
		}
	}
	s.rows, err = s.l.o.Records.Begun(ctx, s.l.o.Group, setToken(s.set.Name), s.set.Confirmed, s.now, some)
	if len(s.rows) < some {
		s.again = true
	}
	if n := len(s.rows); n > 0 {
		s.set.Confirmed = s.rows[n-1].At // what is left has another time, or comes with the next pass
	}
	return err
}

// lookUp reads the rows again, with their messages.
func (s *setSource) lookUp(ctx context.Context, letters []*letter) error {
	if s.discard {
		return nil // the row as it was listed is compared when it is changed
	}
	rows, err := s.l.o.Records.ReadAll(ctx, keysOf(letters, func(lt *letter) dedup.Identity { return lt.id.Identity }))
	if err != nil {
		return err
	}
	for _, lt := range letters {
		if lt.blockedBy, lt.err = s.remake(ctx, lt, rows[lt.row.Identity]); isFault(lt.err) {
			return lt.err
		}
	}
	return nil
}

func (s *setSource) remake(ctx context.Context, lt *letter, row dedup.Row) (Why, error) {
	if row.Version != lt.row.Version || !row.At.Equal(lt.row.At) {
		return WhyMoved, nil
	}
	return s.fill(ctx, lt, row)
}

func (s *setSource) judge(lt *letter) (verdict, Why) {
	switch lt.blockedBy {
	case "":
	case WhyMoved:
		return later, "" // somebody else has it
	case WhyCut:
		if v, why := decide(lt.row, s.situation()); v != act {
			return v, why
		}
		s.poor[lt.row.Identity] = lt.row
		return later, ""
	default:
		return leave, lt.blockedBy
	}
	return decide(lt.row, s.situation())
}

func (s *setSource) situation() situation {
	return situation{
		discard: s.discard, discarded: s.o.Discarded, force: s.o.Force, token: s.token, most: s.l.o.MaxReplays,
	}
}

func (s *setSource) close(_ context.Context, err error) error { return err }

// errShared ends a walk through a queue of which others hold a part.
var errShared = errors.New("somebody else is reading the dead-letter queue, and letters that the rows do not keep " +
	"may be among those that he holds")

// fromQueue walks through the queue for the letters of rows that keep too little.
func (s *setSource) fromQueue(ctx context.Context, q *queue, p *rabbit.Publisher) error {
	if len(s.poor) == 0 {
		return nil
	}
	f := Filter{All: true, due: func(row dedup.Row) bool {
		mine := row.Status == dedup.Dead && !row.At.After(s.set.CutOff) || reopenedBy(row, setToken(s.set.Name))
		_, poor := s.poor[row.Identity]
		return poor && mine
	}}
	if len(s.poor) <= dedup.MaxListedKeys {
		f.All = false
		for id := range s.poor {
			f.Keys = append(f.Keys, id.Key)
		}
	}
	r := newRun(s.l, f, s.o, s.asked)
	r.tally.keep = maxLeftOfSet
	from, err := fromQueue(ctx, r, q, false)
	if err != nil {
		return err
	}
	w := newWatch(r, q.conn)
	err = move(ctx, r, from, toReplay(r, p, w, func(lt *letter) { delete(s.poor, lt.id.Identity) }), w)
	s.tally.add(r.tally)
	if err == nil && len(s.poor) > 0 && r.tally.Others > 0 {
		err = errShared
	}
	if err == nil {
		for id := range s.poor {
			s.tally.leave(&letter{id: wire.Identified{Identity: id}, formerRow: absent, row: s.poor[id]}, WhyCut,
				errors.New("its row keeps too little of it, and no letter of it is in the queue"))
		}
	}
	return err
}

// Recount takes in what became of letters that a run over set has replayed, by the steps that name it: those that have
// an outcome are counted, of the others at most so many are kept to be watched.
func (l *Letters) Recount(ctx context.Context, set *Set, steps []dedup.FeedEvent, most int) error {
	keys := make([]dedup.Identity, len(steps))
	for i, step := range steps {
		keys[i] = step.Identity
	}
	rows, err := l.o.Records.LookUp(ctx, unique(keys))
	if err != nil {
		return err
	}
	for _, step := range steps {
		switch outcomeOf(rows[step.Identity], step.Replays) {
		case applied:
			set.Applied++
		case failedAgain:
			set.FailedAgain++
		case noneYet:
			if len(set.Open) < most {
				set.Open[step.Identity] = step.Replays
			}
		}
	}
	return nil
}
