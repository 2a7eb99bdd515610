package operator

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/screen"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// Rehearse runs the handler with a message in a transaction that is always rolled back. It is the running
// handler's, so only a process that consumes has one. Its error says that no message can be rehearsed.
type Rehearse func(ctx context.Context, m deadletter.Message) (deadletter.Rehearsed, error)

// RehearseOn rehearses on a pool, see [RehearsalPool].
func RehearseOn(
	pool *sql.DB, do func(context.Context, *sql.DB, deadletter.Message) (deadletter.Rehearsed, error),
) Rehearse {
	return func(ctx context.Context, m deadletter.Message) (deadletter.Rehearsed, error) { return do(ctx, pool, m) }
}

// RehearsalRequest asks what a replay of dead letters would come to with the running handler. The names of its JSON
// form are stable.
type RehearsalRequest struct {
	Filter deadletter.Filter `json:"filter"`
	// CutOff freezes the set as that of a run does; zero: now.
	CutOff time.Time `json:"cut_off,omitzero"`
	Force  bool      `json:"force,omitempty"` // also parked letters
}

// Check says what is wrong with it.
func (r RehearsalRequest) Check() error { return check(r.Filter) }

// Rehearsal is what it came to. The names of its JSON form are stable.
type Rehearsal struct {
	// Letters of the set went through the handler, or were refused before; Moved of them were replayed or ended by
	// somebody meanwhile and are in no group; Parked stay without force.
	Letters int `json:"letters"`
	Moved   int `json:"moved,omitempty"`
	Parked  int `json:"parked,omitempty"`
	// More: there are further letters, older ones, which were not looked at.
	More   bool             `json:"more,omitempty"`
	Groups []RehearsalGroup `json:"groups"`
}

// RehearsalGroup are letters with one outcome, for one reason. The names of its JSON form are stable.
type RehearsalGroup struct {
	Outcome deadletter.Prospect `json:"outcome"`
	Count   int                 `json:"count"`
	Error   string              `json:"error,omitempty"` // that of the first
	// Changed are the rows that would be changed, by table: what statements say, without triggers and cascades.
	Changed map[string]int64 `json:"changed,omitempty"`
	First   []MessageName    `json:"first"`

	print string
}

const (
	// mostRehearsed bounds the letters of one rehearsal, and rehearsalTime how long it goes on.
	mostRehearsed = 10_000
	rehearsalTime = 5 * time.Minute
	// rehearsedAtOnce is how many transactions of it are open at a time, each of one letter.
	rehearsedAtOnce = 4
	// mostOutcomes bounds its groups, and firstOfGroup the letters that one names.
	mostOutcomes = 50
	firstOfGroup = 5
	// rehearsalTerms is how many processes begin one: a letter may end each of them.
	rehearsalTerms = 2
)

// otherErrors stands for errors that are all different.
const otherErrors = "errors that are all different"

// Rehearse asks for a rehearsal, and a daemon of the fleet takes it up as it does a run; one that does not consume has
// no handler and leaves it. A SameSetError names the one of the same letters that goes on.
func (d *Operator) Rehearse(ctx context.Context, who Actor, id string, r RehearsalRequest) (Act, error) {
	err := r.Check()
	if err != nil {
		return Act{}, err
	}
	if r.Filter, err = d.resolve(ctx, r.Filter); err != nil {
		return Act{}, err
	}
	text, _ := json.Marshal(sorted(r.Filter)) // which has a JSON form
	return d.Ask(ctx, who, TaskRequest{ID: id, Kind: KindRehearse, Detail: r, Alone: string(text)})
}

// Rehearsed is the report of an act that is a rehearsal; nil when it has none.
func (a Act) Rehearsed() *Rehearsal {
	report := new(Rehearsal)
	if a.Kind != KindRehearse || a.Result == nil || json.Unmarshal(a.Result.Report, report) != nil {
		return nil
	}
	return report
}

// rehearse is the task of KindRehearse. Whoever begins it again finds out once more.
func (d *Operator) rehearse(ctx context.Context, t Task, r RehearsalRequest) (any, error) {
	if t.Act.Terms > rehearsalTerms {
		return nil, fmt.Errorf("%w: %d daemons began it and did not end it. Perhaps a letter ends the process that runs it: "+
			"their logs say more", deadletter.ErrNoRehearsal, rehearsalTerms)
	}
	if err := d.rollsBack(ctx); err != nil {
		return nil, err
	}
	if r.CutOff.IsZero() {
		r.CutOff = t.Act.CutOff
	}
	set := deadletter.Set{Filter: resolved(r.Filter), CutOff: r.CutOff, Name: t.Act.ID}
	sum, began := &Rehearsal{Groups: []RehearsalGroup{}}, time.Now()
	for after := dedup.Cursor(""); ; {
		page, next, err := d.o.Letters.JudgeSet(ctx, set, deadletter.JudgeOptions{
			Force: r.Force, Messages: true, After: after, Limit: MaxPreviewed,
		})
		if err == nil {
			err = d.rehearsePage(ctx, sum, page)
		}
		sum.sort()
		t.Progress("letters", sum.Letters)
		if err != nil || next == "" {
			return sum, err
		}
		if sum.Letters >= mostRehearsed || time.Since(began) > rehearsalTime {
			sum.More = true
			return sum, nil
		}
		after = next
	}
}

// rehearsePage rehearses some letters, each by itself. What has moved meanwhile is left out: nobody can say by which
// state of the tables it was judged.
func (d *Operator) rehearsePage(ctx context.Context, sum *Rehearsal, page []deadletter.Judged) error {
	results := make([]deadletter.Rehearsed, len(page))
	group, each := errgroup.WithContext(ctx)
	group.SetLimit(rehearsedAtOnce)
	for i, j := range page {
		group.Go(func() (err error) {
			if err = each.Err(); err == nil {
				results[i], err = d.rehearseOne(each, j)
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	keys := make([]dedup.Identity, len(page))
	for i, j := range page {
		keys[i] = dedup.Identity{Group: j.Group, Tag: j.Tag, Key: j.Key}
	}
	now, err := d.o.Records.LookUp(ctx, keys)
	if err != nil {
		return err
	}
	for i, j := range page {
		row := now[keys[i]]
		unknown := j.Verdict == deadletter.VerdictTooOld
		switch {
		case j.Verdict == deadletter.VerdictParked:
			sum.Parked++
		case j.Verdict == deadletter.VerdictLater, j.Status != dedup.Dead.String() && !unknown:
		case unknown, row.Status == dedup.Dead && row.Replays == j.Replays:
			sum.Letters++
			sum.add(j, results[i])
		default:
			sum.Letters++
			sum.Moved++
		}
	}
	return nil
}

// rehearseOne rehearses a letter, unless it is known before that it must not, or would not, come to the handler.
func (d *Operator) rehearseOne(ctx context.Context, j deadletter.Judged) (deadletter.Rehearsed, error) {
	refused := func(why string) (deadletter.Rehearsed, error) {
		return deadletter.Rehearsed{Prospect: deadletter.NotRehearsed, Err: errors.New(why)}, nil
	}
	switch {
	case j.Tag == wire.TagConflict:
		return refused("another body has its key: it would be a conflict again")
	case j.Tag == wire.TagUnidentified:
		return refused("nobody can identify it: it would be dead again")
	case mayKill(j.Reason):
		return refused(killed + ": replay it alone")
	case j.Verdict == deadletter.VerdictTooOld:
		return refused("nothing is known of its key")
	case j.Verdict == deadletter.VerdictFromQueue:
		return refused("its row keeps too little of its message: only the queue has it")
	case j.Message == nil:
		return refused("a replay would leave it")
	}
	return d.o.Rehearse(ctx, *j.Message)
}

// killed is why mayKill forbids a rehearsal.
const killed = "a process has died with it, perhaps of it, and this one shall not"

func mayKill(r dedup.Reason) bool { return r == dedup.ReasonCrashed || r == dedup.ReasonDeliveryLimit }

// rollsBack says why nothing may be rehearsed in a schema: with tables that no rollback changes back a statement, a
// trigger or a view may write what stays.
func (d *Operator) rollsBack(ctx context.Context) error {
	var table, engine string
	err := d.db.QueryRowContext(ctx, "SELECT table_name, engine FROM information_schema.tables WHERE table_schema = "+
		"DATABASE() AND table_type = 'BASE TABLE' AND engine NOT IN (SELECT engine FROM information_schema.engines WHERE "+
		"transactions = 'YES') LIMIT 1").Scan(&table, &engine)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for tables that cannot be rolled back: %w", err)
	}
	return fmt.Errorf("%w: the table %s is %s, and no rollback takes back what is written there: ALTER TABLE %[2]s "+
		"ENGINE = InnoDB, or keep it in a schema to which no handler writes", deadletter.ErrNoRehearsal, table, engine)
}

// add takes a letter into its group.
func (s *Rehearsal) add(j deadletter.Judged, r deadletter.Rehearsed) {
	g := RehearsalGroup{Outcome: r.Prospect}
	if r.Err != nil {
		line, _, _ := strings.Cut(r.Err.Error(), "\n") // a panic has its stack behind it
		g.Error = screen.Shorten(line, 300)
		g.print = deadletter.Fingerprint(line)
	}
	same := func(o RehearsalGroup) bool { return o.Outcome == g.Outcome && o.print == g.print }
	at := slices.IndexFunc(s.Groups, same)
	if at < 0 && len(s.Groups) >= mostOutcomes && g.print != otherErrors {
		g.Error, g.print = otherErrors, otherErrors
		at = slices.IndexFunc(s.Groups, same)
	}
	if at < 0 {
		at = len(s.Groups)
		s.Groups = append(s.Groups, g)
	}
	of := &s.Groups[at]
	if of.Count++; len(of.First) < firstOfGroup {
		of.First = append(of.First, MessageName{j.Tag, j.Key})
	}
	for table, n := range r.Changed {
		if of.Changed == nil {
			of.Changed = map[string]int64{}
		}
		of.Changed[table] += n
	}
}

// sort puts first what a person must do something about.
func (s *Rehearsal) sort() {
	order := deadletter.Prospects()
	slices.SortStableFunc(s.Groups, func(a, b RehearsalGroup) int {
		return cmp.Or(cmp.Compare(slices.Index(order, a.Outcome), slices.Index(order, b.Outcome)),
			cmp.Compare(b.Count, a.Count))
	})
}

// Rows say in words what would be changed, table by table.
func (g RehearsalGroup) Rows() (all []string) {
	for _, table := range slices.Sorted(maps.Keys(g.Changed)) {
		n := g.Changed[table]
		text := fmt.Sprintf("%s %d", table, n)
		if n == 0 {
			text = table + " some"
		}
		all = append(all, text)
	}
	return all
}
