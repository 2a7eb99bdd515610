package view

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/wait"
)

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
