package operator

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
)

// digest stands for a key in the set of letters: 200,000 of them take some 10 MB.
type digest [16]byte

func digestOf(parts ...string) digest {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q", parts))
	return digest(sum[:16])
}

func digestOfKey(k dedup.Identity) digest { return digestOf(k.Group, k.Tag, k.Key) }

// maxKept bounds how many rows are read whole to see whether their message is kept; of the others the repair says so.
const maxKept = 1000

// confirmLetters looks again and keeps what is found twice.
func (r *reconciling) confirmLetters(ctx context.Context, s *sieve) error {
	if err := r.lookAtLetters(ctx, s); err != nil {
		return err
	}
	var left []Finding
	kept := 0
	for _, f := range s.found {
		whole := kept < maxKept && (f.Kind == DeadWithoutLetter || f.Kind == Overdue) && f.Hindrance == ""
		if whole || f.Kind == DeadWithoutLetter && f.Reason == dedup.ReasonConflict {
			kept++
			row, err := r.Records.Read(ctx, f.row().Identity)
			if err != nil {
				return err
			}
			superseded, hindrance, err := r.Letters.Missing(ctx, row)
			switch {
			case err != nil:
				return err
			case superseded && f.Kind == DeadWithoutLetter:
				continue // nothing is missing
			case hindrance != nil && whole:
				f.Hindrance = hindrance.Error()
			}
		}
		left = append(left, f)
	}
	s.found = left
	r.keep(s)
	return nil
}

// lookAtLetters reads the queue first and the rows after it: a daemon confirms a letter before it writes the row, and a
// replay moves the row before it takes the letter away. So a row that was dead before the first letter was read, and is
// dead still, must have been among them.
func (r *reconciling) lookAtLetters(ctx context.Context, s *sieve) error {
	began := time.Now()
	letters := map[digest]struct{}{}
	r.report.Letters, r.report.Rows = 0, 0
	res, err := r.Letters.Survey(ctx, deadletter.SurveyOptions{
		Progress: func(p deadletter.Progress) { r.Progress("letters", p.Seen) },
		Each: func(letter deadletter.Surveyed) error {
			letters[digestOfKey(letter.Row.Identity)] = struct{}{}
			if r.Bounds.Letters > 0 && len(letters) > r.Bounds.Letters {
				return errTooMany
			}
			switch letter.Row.Status {
			case dedup.Absent:
				f := aboutRow(LetterWithoutRow, letter.Row)
				f.Reason = letter.Reason
				if letter.Why != "" && !r.Force {
					f.Hindrance = string(letter.Why)
				}
				s.add(f)
			case dedup.Success, dedup.Discarded:
				s.add(aboutRow(StaleLetter, letter.Row))
			}
			return nil
		},
	})
	if errors.Is(err, errTooMany) {
		r.unclear(fmt.Sprintf("%s holds over %d letters, so rows were not compared with letters here: the command compares "+
			"all", r.Letters.Queue(), r.Bounds.Letters))
		s.found, s.seen = nil, map[digest]bool{}
		return nil
	}
	if err != nil {
		return err
	}
	r.report.Letters = res.Seen
	if res.Others > 0 {
		r.unclear("somebody else was reading " + r.Letters.Queue() + ", so rows were not compared with letters: run it again")
	}
	return r.lookAtRows(ctx, func(row dedup.Row) {
		_, hasLetter := letters[digestOfKey(row.Identity)]
		late := r.Records.Overdue(row) >= r.Overdue
		switch {
		case res.Others > 0: // it may hold the letter
		case row.Status == dedup.Dead && row.Reason == dedup.ReasonEffectUnknown:
			s.add(aboutRow(EffectUnknown, row))
		case row.Status == dedup.Dead && !hasLetter && row.Age > time.Since(began):
			s.add(aboutRow(DeadWithoutLetter, row))
		case row.Condemned() && late && !hasLetter:
			f := aboutRow(Overdue, row)
			f.Hindrance = LetterRefused
			s.add(f)
		case row.Status != dedup.Dead && late && hasLetter:
			s.add(aboutRow(InterruptedReplay, row))
		case row.Status != dedup.Dead && late:
			s.add(aboutRow(Overdue, row))
		}
	})
}

// errTooMany ends a survey of more letters than may be looked at.
var errTooMany = errors.New("too many letters")

// unclear says once what could not be compared.
func (r *reconciling) unclear(why string) {
	if !slices.Contains(r.report.Unclear, why) {
		r.report.Unclear = append(r.report.Unclear, why)
	}
}

func (r *reconciling) lookAtRows(ctx context.Context, each func(dedup.Row)) error {
	f := dedup.Filter{
		Group: r.Group, Statuses: []dedup.Status{dedup.Processing, dedup.Failed, dedup.Dead}, Limit: dedup.MaxListed,
	}
	for {
		rows, next, err := r.Records.List(ctx, f)
		if err != nil {
			return err
		}
		for _, row := range rows {
			each(row)
		}
		r.report.Rows += len(rows)
		r.Progress("rows", r.report.Rows)
		if next == "" {
			return nil
		}
		f.After = next
	}
}
