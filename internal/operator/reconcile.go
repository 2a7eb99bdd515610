package operator

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// Kind names a disagreement.
type FindingKind string

// The kinds.
const (
	// LetterWithoutRow: a letter is in the queue, and the log does not know its message. Adopt files it as dead.
	LetterWithoutRow FindingKind = "letter_without_row"
	// StaleLetter: the message of a letter has ended (success, or discarded). The next replay drops it.
	StaleLetter FindingKind = "stale_letter"
	// DeadWithoutLetter: the row says that a letter is in the queue, and there is none: purged, or moved by hand.
	// Republish sends the message again.
	DeadWithoutLetter FindingKind = "dead_without_letter"
	// EffectUnknown: the log of the consumer before rollbackd left a message open, so it may have had its effect; there is
	// no letter. A person finds out, and discards or replays it.
	EffectUnknown FindingKind = "effect_unknown"
	// Overdue: a claim whose lease ended, or a retry that came due, long ago. No daemon runs, or its last copy is gone:
	// then Republish sends the message again.
	Overdue FindingKind = "overdue"
	// InterruptedReplay is Overdue with a letter in the queue: a replay was killed after it had reopened the row. The next
	// one finishes it.
	InterruptedReplay FindingKind = "interrupted_replay"
	// ReleasedWithoutSuccess: a reservation was given back by a message that the log does not show as success. Adopt
	// writes the row, if there is none.
	ReleasedWithoutSuccess FindingKind = "released_without_success"
	// SuccessNotReleased: the message whose key is the order's number is success, and the order still has something
	// reserved.
	SuccessNotReleased FindingKind = "success_not_released"
	// NamedNotReleased: a reservation names the message that released it, and is reserved or deducted.
	NamedNotReleased FindingKind = "named_not_released"
	// NegativeStock: less than nothing is on stock.
	NegativeStock FindingKind = "negative_stock"
)

// Kinds lists all of them, in the order of a report.
func FindingKinds() []FindingKind {
	return []FindingKind{
		LetterWithoutRow, StaleLetter, DeadWithoutLetter, EffectUnknown, Overdue, InterruptedReplay,
		ReleasedWithoutSuccess, SuccessNotReleased, NamedNotReleased, NegativeStock,
	}
}

// Finding is one disagreement. The names of its JSON form are stable.
type Finding struct {
	Kind   FindingKind  `json:"kind"`
	Tag    string       `json:"tag,omitempty"`
	Key    string       `json:"key,omitempty"`
	Status string       `json:"status,omitempty"` // of the row
	Since  *time.Time   `json:"since,omitempty"`  // its last transition
	Reason dedup.Reason `json:"reason,omitempty"` // why it is dead
	Order  string       `json:"order_sn,omitempty"`
	SKU    int64        `json:"sku_id,omitempty"`
	Was    string       `json:"reservation,omitempty"` // status of the reservation
	Items  []Item       `json:"items,omitempty"`       // what is reserved and should have been released
	// Hindrance says why the usual repair will not work: a letter that may have had its effect, a body that was cut.
	Hindrance string `json:"hindrance,omitempty"`
	Mended    bool   `json:"mended"`
	// Failure is why mending was tried and did not work.
	Failure string `json:"failure,omitempty"`

	// The rest of the row, so that another process may mend the finding.
	Group    string `json:"group,omitempty"`
	Attempts int    `json:"attempts,omitempty"`
	Replays  int    `json:"replays,omitempty"`
	Owner    string `json:"owner,omitempty"` // which wrote the row last
}

// row is the row as it was found.
func (f *Finding) row() dedup.Row {
	row := dedup.Row{
		Identity: dedup.Identity{Group: f.Group, Tag: f.Tag, Key: f.Key},
		Version:  dedup.Version{Status: dedup.Absent, Attempts: f.Attempts, Replays: f.Replays, Owner: f.Owner},
	}
	for _, s := range dedup.Statuses() {
		if s.String() == f.Status {
			row.Status = s
		}
	}
	if f.Since != nil {
		row.At = *f.Since
	}
	return row
}

// LetterRefused is the hindrance of a message that failed for good, whose letter the dead-letter queue did not take:
// its delivery waits until it does, in the hands of a daemon or in the main queue. Sent again it would run once more.
const LetterRefused = "the dead-letter queue has not taken its letter, and its delivery waits until it does"

// Item is a quantity of one sku.
type Item struct {
	SKU      int64 `json:"sku_id"`
	Quantity int64 `json:"quantity"`
}

// Report is what a run found. The names of its JSON form are stable.
type Report struct {
	Findings     []Finding `json:"findings"`     // by kind, then tag and key
	Letters      int       `json:"letters"`      // that were looked at
	Rows         int       `json:"rows"`         // in processing, failed and dead
	Reservations int       `json:"reservations"` // none when the stock was left out
	// More findings there are of each kind than were kept, see [Bounds].
	More map[FindingKind]int `json:"more,omitempty"`
	// TooOld counts releases whose success row may have been deleted after its retention, so that nothing follows.
	TooOld int `json:"too_old"`
	// Unclear says what could not be compared. What is left is true, but not all.
	Unclear []string `json:"unclear"`
}

// Open counts the findings that are not mended.
func (r *Report) Open() (n int) {
	for i := range r.Findings {
		if !r.Findings[i].Mended {
			n++
		}
	}
	return n
}

// Reconciliation finds where the servers tell different stories of one message: consumer_log, the dead-letter queue
// and, where orders are known, the stock tables. Looking changes nothing, and what is in motion is never reported:
// whatever disagrees is looked at a second time, a moment later, and only what stood still in between counts. So it may
// run beside daemons and replays. Memory holds keys, never bodies: 16 MB for 200,000 letters that agree, 260 MB for
// 200,000 that were purged. Every query reads an index.
type Reconciliation struct {
	Lookup

	Letters *deadletter.Letters
	// Retention is how long success rows are kept; 0: for ever.
	Retention time.Duration
	// Overdue is how long after its lease or due time an open row counts; 0: an hour.
	Overdue time.Duration
	// Settle is the pause before the second look; 0: two seconds.
	Settle time.Duration
	// Except are tags of releases that are not rollbackd's: a service that gives stock back by itself.
	Except []string

	// Adopt files letters without a row as dead, and writes success rows that somebody deleted. Republish sends messages
	// again whose copies are gone. By is who asks for it.
	Adopt, Republish bool
	By               string
	// Force also adopts letters that may have had their effect, because their rows may have outlived the retention.
	Force bool
	// Again: for [Reconciliation.Mend], By may have been at it before, in a process that died before it said how it went.
	Again bool

	// Bounds of the run; without them it looks at everything.
	Bounds Bounds

	// Progress, if set, is called now and then, by the goroutine that called Run.
	Progress func(what string, seen int)
}

type reconciling struct {
	Reconciliation
	report Report
	groups []string // ours is the first
	tags   []string
	began  time.Time
}

// Run looks, mends if it was asked to, and reports. It stops at the first server that does not answer; the report is
// then what was found and mended so far, and not all.
func (o Reconciliation) Run(ctx context.Context) (Report, error) {
	o.Overdue, o.Settle = cmp.Or(o.Overdue, time.Hour), cmp.Or(o.Settle, 2*time.Second)
	if o.Progress == nil {
		o.Progress = func(string, int) {}
	}
	if o.Records == nil || o.Letters == nil || o.Group == "" {
		return Report{}, errors.New("reconcile: no log, no letters or no group")
	}
	r := &reconciling{Reconciliation: o, began: time.Now(), report: Report{
		Findings: []Finding{}, Unclear: []string{}, More: map[FindingKind]int{},
	}}
	err := r.all(ctx)
	if err != nil {
		err = fmt.Errorf("reconcile: %w", err)
	}
	slices.SortStableFunc(r.report.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(slices.Index(FindingKinds(), a.Kind), slices.Index(FindingKinds(), b.Kind)),
			cmp.Compare(a.Tag, b.Tag), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Order, b.Order), cmp.Compare(a.SKU, b.SKU))
	})
	return r.report, err
}

// all looks at everything, a moment later again at what disagreed, and mends what stood.
func (r *reconciling) all(ctx context.Context) error {
	remembers, err := r.Records.Remembers(ctx, r.Group)
	if err != nil {
		return err
	}
	if remembers > 0 && (r.Retention == 0 || remembers < r.Retention) {
		r.Retention = remembers
	}
	looks := []func(context.Context, *sieve) error{r.lookAtLetters}
	if r.OrderOf != nil {
		looks = append(looks, r.lookAtStock)
	}
	first, pause := make([]*sieve, len(looks)), time.Duration(0)
	for i, look := range looks {
		first[i] = &sieve{seen: map[digest]bool{}}
		if err := look(ctx, first[i]); err != nil {
			return err
		}
		if len(first[i].seen) > 0 {
			pause = r.Settle // what is in motion comes to rest
		}
	}
	if err := wait.For(ctx, pause); err != nil {
		return err
	}
	for i, look := range looks {
		second := &sieve{before: first[i], seen: map[digest]bool{}}
		if len(first[i].seen) == 0 {
			continue
		}
		if err := look(ctx, second); err != nil {
			return err
		}
		r.report.Findings = append(r.report.Findings, second.found...)
	}
	return r.mend(ctx)
}

// sieve keeps what one look finds, at the second one what the first has found too. Of the first it holds 16 bytes per
// finding: a purged queue may give 200,000.
type sieve struct {
	before *sieve // of the first look; nil at that itself
	seen   map[digest]bool
	orders []string  // with which something is wrong
	found  []Finding // at both looks, Bounds.Findings at most
}

// add takes a finding; the same one twice at one look counts once.
func (r *reconciling) add(s *sieve, f Finding) {
	id := digestOf(string(f.Kind), f.Tag, f.Key, f.Order, fmt.Sprint(f.SKU, f.row().Version))
	known := s.seen[id]
	s.seen[id] = true
	switch {
	case known, s.before == nil, !s.before.seen[id]:
	case r.Bounds.Findings > 0 && len(s.found) >= r.Bounds.Findings:
		r.report.More[f.Kind]++
	default:
		s.found = append(s.found, f)
	}
}

func aboutRow(kind FindingKind, row dedup.Row) Finding {
	f := Finding{
		Kind: kind, Group: row.Group, Tag: row.Tag, Key: row.Key, Status: row.Status.String(), Reason: row.Reason,
		Attempts: row.Attempts, Replays: row.Replays, Owner: row.Owner,
	}
	if row.Status != dedup.Absent {
		at := row.At // a pointer into row would keep all of it
		f.Since = &at
	}
	return f
}

// digest stands for a key in the set of letters: 200,000 of them take some 10 MB.
type digest [16]byte

func digestOf(parts ...string) digest {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q", parts))
	return digest(sum[:16])
}

func digestOfKey(k dedup.Identity) digest { return digestOf(k.Group, k.Tag, k.Key) }

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
			if letter.Row.Condemned() && letter.Row.Replays > letter.Replays {
				return nil // it is an older one than that which is refused
			}
			letters[digestOfKey(letter.Row.Identity)] = struct{}{}
			if r.Bounds.Letters > 0 && len(letters) > r.Bounds.Letters {
				return errEnough
			}
			switch letter.Row.Status {
			case dedup.Absent:
				f := aboutRow(LetterWithoutRow, letter.Row)
				f.Reason = letter.Reason
				if letter.Why != "" && !r.Force {
					f.Hindrance = string(letter.Why)
				}
				r.add(s, f)
			case dedup.Success, dedup.Discarded:
				r.add(s, aboutRow(StaleLetter, letter.Row))
			}
			return nil
		},
	})
	if errors.Is(err, errEnough) {
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
	err = r.lookAtRows(ctx, func(row dedup.Row) {
		_, hasLetter := letters[digestOfKey(row.Identity)]
		late := r.Records.Overdue(row) >= r.Overdue
		switch {
		case res.Others > 0: // it may hold the letter
		case row.Status == dedup.Dead && row.Reason == dedup.ReasonEffectUnknown:
			r.add(s, aboutRow(EffectUnknown, row))
		case row.Status == dedup.Dead && !hasLetter && row.Age > time.Since(began):
			r.add(s, aboutRow(DeadWithoutLetter, row))
		case row.Condemned() && late && !hasLetter:
			f := aboutRow(Overdue, row)
			f.Hindrance = LetterRefused
			r.add(s, f)
		case row.Status != dedup.Dead && late && hasLetter:
			r.add(s, aboutRow(InterruptedReplay, row))
		case row.Status != dedup.Dead && late:
			r.add(s, aboutRow(Overdue, row))
		}
	})
	if err != nil {
		return err
	}
	return r.lookAtKept(ctx, s)
}

// maxKept bounds how many rows are read whole to see whether their message is kept; of the others the repair says so.
const maxKept = 1000

// lookAtKept says what hinders the sending of messages from their rows, and leaves out what nobody misses.
func (r *reconciling) lookAtKept(ctx context.Context, s *sieve) error {
	all, kept := s.found, 0
	s.found = nil
	for _, f := range all {
		dead := f.Kind == DeadWithoutLetter
		whole := kept < maxKept && (dead || f.Kind == Overdue) && f.Hindrance == ""
		if whole || dead && f.Reason == dedup.ReasonConflict {
			kept++
			row, err := r.Records.Read(ctx, f.row().Identity)
			if err != nil {
				return err
			}
			superseded, hindrance, err := r.Letters.Missing(ctx, row)
			if err != nil {
				return err
			}
			if superseded && dead {
				continue
			}
			if hindrance != nil && whole {
				f.Hindrance = hindrance.Error()
			}
		}
		s.found = append(s.found, f)
	}
	return nil
}

// errEnough ends a survey: what it was for is found, or more letters than may be looked at.
var errEnough = errors.New("enough letters were looked at")

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
