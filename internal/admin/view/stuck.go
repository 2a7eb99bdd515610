package view

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/operator"
)

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

// lookAtStuck reads what is open and has not moved for as long as its lease or its longest delay may take.
func (v *View) lookAtStuck(ctx context.Context) ([]Stuck, error) {
	found := []Stuck{}
	for _, status := range []dedup.Status{dedup.Processing, dedup.Failed} {
		rows, _, err := v.o.Records.List(ctx, dedup.Filter{
			Group: v.o.Group, Statuses: []dedup.Status{status}, Until: time.Now().Add(-stuckAfter), Limit: mostOpen,
		})
		if err != nil {
			return nil, fmt.Errorf("look for messages that do not move: %w", err)
		}
		for _, row := range slices.Backward(rows) { // the oldest first
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
