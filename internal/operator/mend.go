package operator

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/screen"
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
				return errEnough
			}
			return nil
		},
	})
	if err != nil && !errors.Is(err, errEnough) {
		return err
	}
	for _, f := range chosen {
		f.Failure = letterGone
	}
	return nil
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
		switch f.Mended = err == nil; {
		case mysqldb.Classify(err) == mysqldb.FaultUnavailable:
			return err
		case err != nil:
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
	for _, f := range chosen {
		f.Mended = true
	}
	for _, left := range res.Left {
		if f := chosen[dedup.Identity{Group: r.Group, Tag: left.Tag, Key: left.Key}]; f != nil {
			f.Mended, f.Failure = false, left.Error
		}
	}
	return nil
}

// Repair is what a machine may do about a finding.
type Repair string

// The repairs. What has none is a person's: its cure says how.
const (
	NoRepair        Repair = ""
	RepairAdopt     Repair = "adopt"     // file the letter as dead, or write the success row again
	RepairRepublish Repair = "republish" // send the message again, from its row
	RepairReplay    Repair = "replay"    // drop the letter of what has ended, or end a replay that was cut off
)

// Repair is what [Reconciliation.Mend] would do. A risk is why a person must be sure of something first, "" when
// nothing is to be feared: such a finding is mended with Force only.
func (f *Finding) Repair() (by Repair, risk string) {
	a := f.advice()
	return a.Repair, a.Risk
}

// MendOrder asks for the mending of one finding of a comparison. The names of its JSON form are stable.
type MendOrder struct {
	// Of is the act of the comparison, and Number that of the finding in its report, from 0.
	Of      string  `json:"of"`
	Number  int     `json:"number"`
	Finding Finding `json:"finding"`
	// Force: a person is sure of what is at risk.
	Force bool `json:"force,omitempty"`
}

// ErrNoRepair says that a finding is a person's to mend, or that Force is needed.
var ErrNoRepair = errors.New("no machine may mend this")

// ErrNoFinding says that a comparison has no finding with a number.
var ErrNoFinding = errors.New("the comparison has no such finding")

// Order asks for the mending of the finding with this number, of the comparison whose act is of. Force says that a
// person is sure where there is a risk. Its error is ErrNoFinding, also of a comparison that has found nothing out and
// is nil, or ErrNoRepair.
func (r *Report) Order(of string, number int, force bool) (MendOrder, error) {
	if r == nil || number < 0 || number >= len(r.Findings) {
		return MendOrder{}, ErrNoFinding
	}
	f := r.Findings[number]
	switch by, risk := f.Repair(); {
	case by == NoRepair:
		return MendOrder{}, fmt.Errorf("%w: see its cure", ErrNoRepair)
	case risk != "" && !force:
		return MendOrder{}, fmt.Errorf("%w unless a person is sure: %s", ErrNoRepair, risk)
	}
	return MendOrder{Of: of, Number: number, Finding: f, Force: force}, nil
}

// Alone names what two mends must not work on at once, whichever comparisons found it.
func (o MendOrder) Alone() string {
	return fmt.Sprintf("%s %q %q", o.Finding.Kind, o.Finding.Tag, o.Finding.Key)
}

// ErrLeft says that a finding was left as it is.
var ErrLeft = errors.New("it was not mended")

// Mend mends one finding that was written down, by the same guarded steps as Run: what has moved since is left as it
// is. Its error says why it was not mended: a server's, ErrNoRepair, or ErrLeft with what stood in the way. Of o it
// needs what Run needs, By, and Force for a finding with a risk. The same finding again is ErrLeft, but with Again what
// By has done before counts.
func (o Reconciliation) Mend(ctx context.Context, f Finding) (Finding, error) {
	f.Mended, f.Failure = false, ""
	by, risk := f.Repair()
	if by == NoRepair || risk != "" && !o.Force {
		return f, ErrNoRepair
	}
	if f.Kind == ReleasedWithoutSuccess && o.OrderOf == nil {
		return f, fmt.Errorf("%w: the stock tables are not known here", ErrNoRepair)
	}
	o.Progress = func(string, int) {}
	o.Adopt, o.Republish = by == RepairAdopt, by == RepairRepublish
	r := &reconciling{Reconciliation: o, report: Report{Findings: []Finding{f}}}
	err := r.mend(ctx)
	if by == RepairReplay {
		err = r.replayOne(ctx)
	}
	if err == nil && o.Again && !r.report.Findings[0].Mended {
		err = r.again(ctx, by)
	}
	f = r.report.Findings[0]
	if err != nil {
		return f, fmt.Errorf("reconcile: %w", err)
	}
	if !f.Mended {
		return f, fmt.Errorf("%w: %s", ErrLeft, cmp.Or(f.Failure, "it has moved since it was found"))
	}
	return f, nil
}

// letterGone is why there is nothing to be done with a letter.
const letterGone = "its letter is not in the queue any more"

// again finds out what a process has done that died while it mended the finding, or right after. A row that it reopened
// and nobody has begun since may be without a message: that is sent, once more at worst, which has no second effect.
func (r *reconciling) again(ctx context.Context, by Repair) error {
	f := &r.report.Findings[0]
	if f.Kind == StaleLetter {
		if f.Failure == letterGone {
			f.Mended, f.Failure = true, ""
		}
		return nil
	}
	events, err := r.Records.Events(ctx, f.row().Identity)
	if err != nil {
		return err
	}
	ours := -1 // the last one
	for i, event := range events {
		if event.By == r.By {
			ours, f.Mended, f.Failure = i, true, ""
		}
	}
	if by != RepairRepublish || ours < 0 || ours < len(events)-1 {
		return nil
	}
	row, err := r.Records.Read(ctx, f.row().Identity)
	if err != nil || row.Status != dedup.Failed || row.Attempts > 0 || row.Replays != events[ours].Replays {
		return err
	}
	*f = aboutRow(f.Kind, row)
	f.Mended = true
	return r.republish(ctx)
}

// replayOne goes through the queue as `dlq replay --tag T --key K` does.
func (r *reconciling) replayOne(ctx context.Context) error {
	f := &r.report.Findings[0]
	res, err := r.Letters.Replay(ctx, deadletter.Filter{Tag: f.Tag, Keys: []string{f.Key}},
		deadletter.ReplayOptions{By: r.By})
	f.Mended = res.Replayed+res.Stale+res.Duplicates > 0
	if f.Mended {
		return nil
	}
	if len(res.Left) > 0 {
		f.Failure = cmp.Or(res.Left[0].Error, string(res.Left[0].Why))
	} else if err == nil {
		f.Failure = letterGone
	}
	return err
}

// Bounds keep a run small that a page asks for, beside daemons. A zero one is none.
type Bounds struct {
	// Findings are kept at most; the others are counted in Report.More.
	Findings int
	// Letters are looked at at most: what is beyond them cannot be told from what is missing, so with more of them rows
	// are not compared with letters.
	Letters int
	// Time is how long reservations are gone through. What is beyond is not compared.
	Time time.Duration
	// Rest makes it rest after each page of reservations for as long as that page took.
	Rest bool
}

// Means says in a sentence or two what a disagreement of this kind is; "" of a kind that this version does not know.
func (k FindingKind) Means() string { return usual[k].Means }

// Advice is what is said of a finding, on a page and to a program. The names of its JSON form are stable.
type Advice struct {
	Means  string `json:"means"` // what it is
	Repair Repair `json:"repair,omitempty"`
	Does   string `json:"does,omitempty"` // what the repair would do; "" when a person must mend it
	Risk   string `json:"risk,omitempty"` // what a person must be sure of first; "": nothing
	Cure   string `json:"cure,omitempty"` // what to do, as commands
}

// usual is what is said of each kind while nothing stands in the way. In a cure stands {program} for the name of the
// program, {message} for the message as flags, {asked} for the same as log explain is asked for it, {why} for what is
// in the way, {order} and {sku} for what the reservation is of, and {body} for what gives back what is still reserved.
var usual = map[FindingKind]Advice{
	LetterWithoutRow: {Repair: RepairAdopt, Cure: "{program} reconcile --adopt",
		Means: "A letter is in the dead-letter queue, and the log does not know its message.",
		Does:  "Its letter is filed as dead in the log, so that it can be replayed or discarded like any other."},
	StaleLetter: {Repair: RepairReplay, Cure: "{program} dlq replay {message}",
		Means: "A letter's message has ended already. It does no harm; the next replay drops it.",
		Does:  "The letter is dropped from the dead-letter queue."},
	DeadWithoutLetter: {Repair: RepairRepublish, Cure: "{program} reconcile --republish",
		Means: "The row says dead, and no letter is in the queue: it was purged, or moved by hand.",
		Does:  "The message is sent again, from its row. It has no second effect."},
	EffectUnknown: {Means: "The log of the consumer before rollbackd left it open, and was taken over. Whether it " +
		"had its effect is not known; a person must find out.",
		Cure: "{program} dlq export --reason " + string(dedup.ReasonEffectUnknown) + " -o open.ndjson    # then, of each " +
			"line: did it have its effect? dlq discard --from, or dlq replay --from"},
	Overdue: {Repair: RepairRepublish,
		Means: "An attempt should have begun long ago. No daemon runs, or the last copy of the message is gone. One " +
			"whose remark says \"put off\" is what the handler's service does not take.",
		Does: "The message is sent again, from its row. Do this when a daemon runs and the main queue is empty: else it " +
			"is only waiting. It has no second effect.",
		Cure: "{program} reconcile --republish    # when a daemon runs and the main queue is empty: else it is only waiting"},
	InterruptedReplay: {Repair: RepairReplay, Cure: "{program} dlq replay {message}",
		Means: "A replay reopened the row and was cut off before it sent the message; its letter is still there.",
		Does:  "The replay that was cut off is ended: the message is sent again and its letter dropped."},
	ReleasedWithoutSuccess: {Repair: RepairAdopt, Cure: "{program} reconcile --adopt",
		Means: "A message gave the stock back, and the log does not show it as success.",
		Does:  "The success row is written again, which the reservation proves."},
	SuccessNotReleased: {Cure: giveBack,
		Means: "The message of this order is success, and the order still has something reserved."},
	NamedNotReleased: {Means: "A reservation names the message that released it, and is not released.",
		Cure: "UPDATE stock_reservation SET rollback_tag = NULL, rollback_key = NULL WHERE order_sn = x'{order}' AND " +
			"sku_id = {sku}    -- in MySQL; and take the goods off the stock again if they have left"},
	NegativeStock: {Means: "Less than nothing is on stock.",
		Cure: "UPDATE stock SET amount = …, version = version + 1 WHERE sku_id = {sku}    -- in MySQL, after counting the " +
			"goods"},
}

// giveBack sends a message of its own that gives back what is still reserved, under an identity that nobody has had:
// with the tag of the message that is success, and a key that ROLLBACKD_KEY_FROM takes from the order's number, it
// would have the identity of that one and end as conflict. It is printf, because echo turns \b and \n into other
// characters in some shells.
const giveBack = `printf '%s\n' '{body}' | {program} publish --key-field repair --tag repair`

// look is the cure where there is no other.
const look = "{program} log explain {asked}"

// advice is what is said of the finding, with a cure whose words in brackets are yet to be filled in.
func (f *Finding) advice() Advice {
	a := usual[f.Kind]
	a.Cure = cmp.Or(a.Cure, look)
	byPerson := func(cure string) { a.Repair, a.Does, a.Cure = NoRepair, "", cure }
	switch f.Kind {
	case LetterWithoutRow:
		switch deadletter.Why(f.Hindrance) {
		case "":
		case deadletter.WhyKeyTaken:
			a.Risk = "Another body had this key, and that row is gone: this one may take effect too."
			a.Cure += " --force    # another body had its key and that row is gone: make sure first that this one may take " +
				"effect too"
		default:
			a.Risk = "The message may have had its effect, and its row be deleted since."
			a.Cure += " --force    # it may have had its effect, and its row be deleted since: make sure first that it had not"
		}
	case DeadWithoutLetter, Overdue:
		switch f.Hindrance {
		case "":
		case LetterRefused:
			byPerson(look + "    # it failed for good, and its letter waits for room in the dead-letter queue: see there")
		default:
			byPerson("{program} dlq replay --from FILE    # with the whole message from its producer, because {why}")
		}
	case ReleasedWithoutSuccess:
		switch f.Status {
		case dedup.Absent.String():
		case dedup.Dead.String():
			byPerson("{program} dlq replay {message}    # it finds the stock given back, and ends without a second effect")
		case dedup.Discarded.String():
			byPerson(look + "    # a person ended it although it had its effect: nothing needs to be done but to know it")
		default:
			byPerson("{program} run    # its next attempt finds the stock given back, and ends without a second effect")
		}
	case NamedNotReleased:
		if f.Was == stock.Reserved {
			a.Cure = giveBack
		}
	}
	return a
}

// Advice says of the finding what it is and what mends it, for a program that is called name. It is pure.
func (f *Finding) Advice(name string, now time.Time) Advice {
	tag, key := ShellWord(f.Tag), ShellWord(f.Key)
	asked := key + " --tag " + tag
	if strings.HasPrefix(f.Key, "-") { // else it would be taken for a flag
		asked = "--tag " + tag + " -- " + key
	}
	body, _ := json.Marshal(struct { // which has a JSON form
		Order  string `json:"order_sn"`
		Reason string `json:"reason"`
		Items  []Item `json:"items"`
		Repair string `json:"repair"`
	}{f.Order, because, f.Items, fmt.Sprintf("repair/%s/%s", f.Order, now.UTC().Format("20060102T150405Z"))})
	a := f.advice()
	a.Cure = strings.NewReplacer("{program}", name, "{message}", "--tag "+tag+" --key "+key, "{asked}", asked,
		"{why}", f.Hindrance, "{order}", hex.EncodeToString([]byte(f.Order)), "{sku}", strconv.FormatInt(f.SKU, 10),
		"{body}", strings.ReplaceAll(string(screen.JSON(body)), "'", `'\''`)).Replace(a.Cure)
	return a
}

// Cure is the command that mends the finding, for a program that is called name.
func (f *Finding) Cure(name string, now time.Time) string { return f.Advice(name, now).Cure }

// Reservation is the status of its reservation, and its sku, in words.
func (f *Finding) Reservation() string {
	if f.SKU == 0 {
		return f.Was
	}
	return strings.TrimPrefix(fmt.Sprintf("%s, sku %d", f.Was, f.SKU), ", ")
}

// Outcome says whether it was mended, or why not; "" when nothing stands in the way and nothing was tried.
func (f *Finding) Outcome() string {
	switch {
	case f.Mended:
		return "mended"
	case f.Failure != "":
		return "not mended: " + f.Failure
	case f.Hindrance != "":
		return f.Hindrance
	}
	return ""
}
