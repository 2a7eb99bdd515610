package operator

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/stock"
)

// because is what stands in the story of a row that is mended.
const because = "reconcile"

// mend repairs what was asked for. What is left over says why.
func (r *reconciling) mend(ctx context.Context) error {
	if r.Adopt {
		if err := r.adoptLetters(ctx); err != nil {
			return err
		}
		if err := r.adoptReleases(ctx); err != nil {
			return err
		}
	}
	if r.Republish {
		return r.republish(ctx)
	}
	return nil
}

// chosen are the findings of some kinds, by the key of their row.
func (r *reconciling) chosen(kinds ...FindingKind) map[dedup.Identity]*Finding {
	chosen := map[dedup.Identity]*Finding{}
	for i := range r.report.Findings {
		if f := &r.report.Findings[i]; slices.Contains(kinds, f.Kind) {
			chosen[f.row().Identity] = f
		}
	}
	return chosen
}

// errFound ends a survey that has found what it was for.
var errFound = errors.New("found")

// adoptLetters looks through the letters until it has filed those that were found.
func (r *reconciling) adoptLetters(ctx context.Context) error {
	chosen := r.chosen(LetterWithoutRow)
	if len(chosen) == 0 {
		return nil
	}
	_, err := r.Letters.Survey(ctx, deadletter.SurveyOptions{
		Adopt: func(k dedup.Identity) bool { return chosen[k] != nil },
		By:    r.By, Force: r.Force,
		Progress: func(p deadletter.Progress) { r.Progress("letters", p.Seen) },
		Each: func(s deadletter.Surveyed) error {
			f := chosen[s.Row.Identity]
			if f == nil {
				return nil
			}
			if f.Mended = s.Adopted; s.Adopted {
				f.Reason = s.Reason
			} else if s.Err != nil {
				f.Failure = s.Err.Error()
			}
			if delete(chosen, s.Row.Identity); len(chosen) == 0 {
				return errFound
			}
			return nil
		},
	})
	if errors.Is(err, errFound) {
		return nil
	}
	if err == nil {
		for _, f := range chosen {
			f.Failure = letterGone
		}
	}
	return err
}

// adoptReleases writes the success rows of releases whose rows are gone. The reservation proves the effect: it is
// locked while the row is written.
func (r *reconciling) adoptReleases(ctx context.Context) error {
	for key, f := range r.chosen(ReleasedWithoutSuccess) {
		if f.Status != dedup.Absent.String() {
			continue
		}
		err := r.DB.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
			rows, err := stock.LockReservationsOf(ctx, tx, f.Order)
			if err != nil {
				return err
			}
			if !slices.ContainsFunc(rows, func(row stock.Reservation) bool {
				return row.Named && row.Tag == f.Tag && row.Key == f.Key && row.Status == f.Was
			}) {
				return fmt.Errorf("order %q is not %s by it any more", f.Order, f.Was)
			}
			return r.Records.AdoptSuccess(ctx, tx.Statement.ConnPool, key, r.By, fmt.Sprintf("adopted: order %q is %s by it",
				f.Order, f.Was))
		}, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		switch {
		case err == nil, errors.Is(err, dedup.ErrExists):
			f.Mended = err == nil
		case mysqldb.Classify(err) == mysqldb.FaultUnavailable:
			return err
		}
		if err != nil {
			f.Failure = err.Error()
		}
	}
	return nil
}

func (r *reconciling) republish(ctx context.Context) error {
	chosen := r.chosen(DeadWithoutLetter, Overdue)
	var rows []dedup.Row
	for key, f := range chosen {
		if f.Hindrance == LetterRefused {
			delete(chosen, key)
			continue
		}
		rows = append(rows, f.row())
	}
	if len(rows) == 0 {
		return nil
	}
	slices.SortFunc(rows, func(a, b dedup.Row) int { return a.At.Compare(b.At) }) // the oldest first
	res, err := r.Letters.Replay(ctx, deadletter.Rows{Rows: rows, Because: because}, deadletter.ReplayOptions{
		By: r.By, Progress: func(p deadletter.Progress) { r.Progress("messages", p.Seen) },
	})
	if err != nil {
		return err
	}
	failures := map[dedup.Identity]string{}
	for _, left := range res.Left {
		failures[dedup.Identity{Group: r.Group, Tag: left.Tag, Key: left.Key}] = left.Error
	}
	for key, f := range chosen {
		failure, failed := failures[key]
		f.Mended, f.Failure = !failed, failure
	}
	return nil
}
