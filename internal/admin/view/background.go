package view

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// background is something that takes longer than a page may wait: it is found out once for all who ask at a time, and
// kept for a while: the longer it took, the longer, so that looking costs a server little of its time.
type background[T any] struct {
	// look finds it out. What it has found so far it may hand to soFar: nobody waits for the rest when nothing is known.
	look func(ctx context.Context, soFar func(T)) (T, error)
	// paced: the look itself rests. It is not repeated for as long as it took, its rests included.
	paced bool

	mu      sync.Mutex
	ctx     context.Context // of Run; nil before and after it. Guarded by mu
	wg      sync.WaitGroup
	running bool      // guarded by mu
	tried   time.Time // when the last look ended, well or not; guarded by mu
	last    Aged[T]   // guarded by mu
	partly  bool      // last is not the end of a look; guarded by mu
}

const (
	// restAfter is how many times as long as a look took there is none, if it is not paced.
	restAfter   = 50
	longestKept = 5 * time.Minute
	askEvery    = 10 * time.Millisecond // whether a first look has found something
)

// Aged is what was found out, and when.
type Aged[T any] struct {
	Value T
	// At is when it was found out; zero: not yet.
	At time.Time
	// Took is how long that took.
	Took time.Duration
	// Err is why the last look failed; Value is then what was found before.
	Err error
	// Looking: somebody looks right now.
	Looking bool
}

func (b *background[T]) begin(ctx context.Context) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ctx = ctx
}

func (b *background[T]) end() {
	b.mu.Lock()
	b.ctx = nil
	b.mu.Unlock()
	b.wg.Wait()
}

// get is what is known. It never waits; when that is older than keep, a look begins.
func (b *background[T]) get(keep time.Duration) Aged[T] {
	b.mu.Lock()
	defer b.mu.Unlock()
	rest := restAfter * b.last.Took
	if b.paced {
		rest = b.last.Took
	}
	keep = max(keep, min(rest, longestKept))
	if !b.running && b.ctx != nil && b.ctx.Err() == nil && time.Since(b.tried) > keep {
		b.running = true
		ctx := b.ctx
		b.wg.Go(func() { b.run(ctx) })
	}
	known := b.last
	known.Looking = b.running
	return known
}

// await is what is known, and waits for the first look to find something if nothing is. Its error is that of ctx, or
// why the look failed.
func (b *background[T]) await(ctx context.Context, keep time.Duration) (Aged[T], error) {
	for {
		known := b.get(keep)
		switch {
		case !known.At.IsZero():
			return known, nil
		case !known.Looking && known.Err != nil:
			return known, known.Err
		case !known.Looking:
			return known, ErrEnding
		}
		if wait.For(ctx, askEvery) != nil {
			return known, context.Cause(ctx)
		}
	}
}

func (b *background[T]) run(ctx context.Context) {
	began := time.Now()
	value, err := b.look(ctx, b.soFar)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.running, b.tried = false, time.Now()
	if b.last.Err = err; err == nil {
		b.last.Value, b.last.At, b.last.Took, b.partly = value, b.tried, b.tried.Sub(began), false
	}
}

// soFar keeps what the first look has found until now. Of a later one, what was known before says more.
func (b *background[T]) soFar(value T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.partly || b.last.At.IsZero() {
		b.last.Value, b.last.At, b.partly = value, time.Now(), true
	}
}

const (
	// mostSurveyed bounds the letters that one survey looks at, the latest first.
	mostSurveyed = 100_000
	// mostNamed bounds the letters that a group names.
	mostNamed = 50
	// mostGroups bounds the groups: errors that are all different are one group of others.
	mostGroups = 500
	// surveyKeep is how long a survey is kept.
	surveyKeep = 10 * time.Second
	// atOnce is how many letters a survey reads without a rest. Each rest after that is surveyPace times as long as the
	// reading before it took, surveyRest at most.
	atOnce     = 5 * dedup.MaxListed
	surveyPace = 100
	surveyRest = 3 * time.Second
)

// Groups are the dead letters, grouped by why they are dead and by their errors without what differs.
type Groups struct {
	All []Group `json:"groups"`
	// More is true beyond mostSurveyed, and while the first look is still going on.
	Seen   int       `json:"seen"`
	More   bool      `json:"more"`
	Parked int       `json:"parked"`
	AsOf   time.Time `json:"as_of"`
}

// Group is a kind of failure. It names mostNamed of its letters at most.
type Group struct {
	ID          string              `json:"id"`
	Reason      dedup.Reason        `json:"reason"`
	Fingerprint string              `json:"fingerprint"`
	Count       int                 `json:"count"`
	First       time.Time           `json:"first_dead_at"`
	Last        time.Time           `json:"last_dead_at"`
	Example     string              `json:"example"`
	Filter      *deadletter.Filter  `json:"filter,omitempty"`
	Letters     []deadletter.Letter `json:"letters,omitempty"`
}

// GroupID is the name of a group.
func GroupID(reason dedup.Reason, fingerprint string) string {
	sum := sha256.Sum256([]byte(string(reason) + "\x00" + fingerprint))
	return hex.EncodeToString(sum[:8])
}

// Groups are the groups as last looked at, at most some seconds ago while somebody looks.
func (v *View) Groups() Aged[Groups] { return v.survey.get(surveyKeep) }

// Group finds a group by its name.
func (g Groups) Group(id string) (Group, bool) {
	i := slices.IndexFunc(g.All, func(g Group) bool { return g.ID == id })
	if i < 0 {
		return Group{}, false
	}
	return g.All[i], true
}

// others is the fingerprint of what has no group of its own.
const others = "(errors that are all different)"

// lookAtDead reads the dead rows page by page, through the index, and groups them. After the first pages it rests after
// each, surveyPace times as long as that one took: beside a daemon at full speed nothing may take much at once.
func (v *View) lookAtDead(ctx context.Context, soFar func(Groups)) (Groups, error) {
	s := surveyed{byID: map[string]*Group{}}
	for after := dedup.Cursor(""); ; {
		began := time.Now()
		letters, next, err := v.o.Letters.List(ctx, deadletter.Filter{Limit: dedup.MaxListed}, after)
		if err != nil {
			return Groups{}, fmt.Errorf("group the dead letters: %w", err)
		}
		for _, l := range letters {
			s.add(l)
		}
		if next == "" || s.seen >= mostSurveyed {
			return s.groups(next != ""), nil
		}
		if after = next; s.seen < atOnce {
			continue
		}
		soFar(s.groups(true))
		if err := wait.For(ctx, min(surveyPace*time.Since(began), surveyRest)); err != nil {
			return Groups{}, err
		}
	}
}

// surveyed is what a survey has seen.
type surveyed struct {
	byID         map[string]*Group
	seen, parked int
}

func (s *surveyed) groups(more bool) Groups {
	g := Groups{All: []Group{}, Seen: s.seen, More: more, Parked: s.parked, AsOf: time.Now().UTC()}
	for _, one := range s.byID {
		g.All = append(g.All, *one)
	}
	slices.SortFunc(g.All, func(a, b Group) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), b.Last.Compare(a.Last), cmp.Compare(a.ID, b.ID))
	})
	return g
}

// add takes a letter, the latest first.
func (s *surveyed) add(l deadletter.Letter) {
	if s.seen++; l.Parked {
		s.parked++
	}
	print := deadletter.Fingerprint(l.Remark)
	id := GroupID(l.Reason, print)
	if s.byID[id] == nil && len(s.byID) >= mostGroups {
		print = others
		id = GroupID(l.Reason, print)
	}
	g := s.byID[id]
	if g == nil {
		g = &Group{ID: id, Reason: l.Reason, Fingerprint: print, Last: l.DeadAt, First: l.DeadAt, Example: l.Remark}
		if print != "" && print != others {
			g.Filter = &deadletter.Filter{Reasons: []dedup.Reason{l.Reason}, Fingerprint: print}
		}
		s.byID[id] = g
	}
	g.Count++
	if l.DeadAt.Before(g.First) {
		g.First = l.DeadAt
	}
	if l.DeadAt.After(g.Last) {
		g.Last = l.DeadAt
	}
	if len(g.Letters) < mostNamed {
		g.Letters = append(g.Letters, l)
	}
}

// Stuck is a message that does not move although it could.
type Stuck struct {
	Tag      string    `json:"tag"`
	Key      string    `json:"key"`
	Status   string    `json:"status"`
	Since    time.Time `json:"since"`
	Overdue  float64   `json:"overdue_seconds"`
	Attempts int       `json:"attempts"`
	Owner    string    `json:"owner,omitempty"`
	Why      string    `json:"why"`
	Lock     string    `json:"lock,omitempty"`
}

const (
	// stuckAfter is how long past its lease or its due time a message may stand: a copy needs a moment to come.
	stuckAfter = time.Minute
	// mostStuck bounds those that are shown, mostOpen those that are looked at.
	mostStuck = 20
	mostOpen  = 1000
	stuckKeep = 5 * time.Second
)

// Stuck are the messages that do not move, as last looked at.
func (v *View) Stuck() Aged[[]Stuck] { return v.stuck.get(stuckKeep) }

// lookAtStuck reads what has been open for longest, and finds what has not moved for as long as its lease or its delay
// may take.
func (v *View) lookAtStuck(ctx context.Context) ([]Stuck, error) {
	found := []Stuck{}
	for _, status := range []dedup.Status{dedup.Processing, dedup.Failed} {
		rows, _, err := v.o.Records.List(ctx, dedup.Filter{
			Group: v.o.Group, Statuses: []dedup.Status{status}, Oldest: true, Limit: mostOpen,
		})
		if err != nil {
			return nil, fmt.Errorf("look for messages that do not move: %w", err)
		}
		for _, row := range rows {
			if late := v.o.Records.Overdue(row); late > stuckAfter && len(found) < mostStuck {
				found = append(found, v.stuckRow(ctx, row, late))
			}
		}
	}
	return found, nil
}

func (v *View) stuckRow(ctx context.Context, row dedup.Row, late time.Duration) Stuck {
	s := Stuck{
		Tag: row.Tag, Key: row.Key, Status: row.Status.String(), Since: row.At, Overdue: late.Seconds(),
		Attempts: row.Attempts, Owner: row.Owner,
	}
	s.Why, _ = operator.Meaning(row, v.o.Names)
	if lock := v.o.Lock(ctx, row.Identity); lock != operator.NoLock {
		s.Lock = lock
		if strings.HasPrefix(lock, "held by ") {
			s.Lock += "; unless somebody has just begun, nobody works under it, and a copy waits for its end"
		}
	}
	return s
}
