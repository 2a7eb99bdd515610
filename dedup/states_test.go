package dedup

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestDiagramIsTheOneOfTheDesign(t *testing.T) {
	const file = "testdata/diagram.mmd"
	if *update {
		if err := os.WriteFile(file, []byte(Diagram()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), Diagram()); diff != "" {
		t.Errorf("the transitions changed; the model and ARCHITECTURE.md must follow, then run with -update:\n%s", diff)
	}
}

func TestEveryArrowStandsOnce(t *testing.T) {
	seen := map[string]bool{}
	for _, tr := range Transitions() {
		name := fmt.Sprint(tr.Action, tr.From)
		if seen[name] {
			t.Errorf("two arrows for %s from %v", tr.Action, tr.From)
		}
		seen[name] = true
	}
}

// trial is one attempt to move one row.
type trial struct {
	name   string
	key    Key
	age    time.Duration
	real   Version // of the row in the table
	shown  Version // what the caller believes
	action Action
	own    bool // the caller shows a claim
	asked  bool // for discarded ones
}

// trials are all combinations of states, versions, ages and actions.
func trials() (all []trial) {
	states := append([]Status{Absent}, Statuses()...)
	add := func(age time.Duration, what string, stored, shown Version) {
		for _, a := range []struct {
			action     Action
			own, asked bool
		}{
			{action: ActionInsert}, {action: ActionClaim}, {action: ActionExhaust}, {action: ActionDead}, {action: ActionDiscard},
			{action: ActionReopen}, {action: ActionReopen, asked: true},
			{action: ActionSuccess, own: true}, {action: ActionFail, own: true}, {action: ActionUnclaim, own: true},
			{action: ActionDead, own: true},
		} {
			if a.own && shown.Status != Processing || a.action == ActionInsert && shown.Status != Absent {
				continue // the API cannot express it
			}
			name := fmt.Sprintf("%03d %v %d/3 %v old, shown %v, %s: %s own=%v asked=%v",
				len(all), stored.Status, stored.Attempts, age, shown.Status, what, a.action, a.own, a.asked)
			all = append(all, trial{name, key(name), age, stored, shown, a.action, a.own, a.asked})
		}
	}
	for _, stored := range states {
		for _, attempts := range []int{1, testMax} {
			for _, age := range []time.Duration{0, 2 * time.Hour, 4 * time.Hour} { // nothing, due, lease over too
				real := Version{stored, attempts, 1, "owner"}
				if stored == Absent {
					real = Version{Status: Absent}
				}
				for _, shown := range states {
					v := Version{shown, attempts, 1, "owner"}
					add(age, "same", real, v)
					if shown != stored || stored == Absent {
						continue
					}
					add(age, "older attempt", real, Version{shown, attempts - 1, 1, "owner"})
					add(age, "older replay", real, Version{shown, attempts, 0, "owner"})
					add(age, "other owner", real, Version{shown, attempts, 1, "somebody else"})
				}
				if stored == Absent {
					break
				}
			}
			if stored == Absent {
				break
			}
		}
	}
	return all
}

// wants is the oracle: what must come of a trial by the table of transitions.
func (tr trial) wants() (after Version, err error) {
	refuse := func(err error) (Version, error) { return tr.real, err }
	arrow, ok := transitionOf(tr.action, tr.shown.Status)
	ended := tr.shown.Status == Success || tr.shown.Status == Discarded
	switch {
	case !ok && ended && (tr.action == ActionReopen || tr.action == ActionDiscard && ended):
		return refuse(ErrStale)
	case !ok || arrow.Guard&GuardOwner != 0 && !tr.own:
		return refuse(ErrTransition)
	case arrow.Guard&GuardAsked != 0 && !tr.asked:
		return refuse(ErrStale)
	}
	after = tr.after()
	if tr.own && tr.action != ActionSuccess && tr.real == after {
		return after, nil // done by an earlier call of ours
	}
	same := tr.real.Status == tr.shown.Status && tr.real.Attempts == tr.shown.Attempts && tr.real.Replays == tr.shown.Replays
	if tr.real.Status == Absent {
		same = tr.shown.Status == Absent
	}
	if tr.shown.Status == Processing && tr.real.Owner != tr.shown.Owner {
		same = false
	}
	due := []time.Duration{0, testDelay, 2 * testDelay, 2 * testDelay}[tr.real.Attempts]
	switch {
	case !same && tr.action == ActionInsert:
		return refuse(ErrExists)
	case !same,
		arrow.Guard&GuardExpired != 0 && tr.age < testLease,
		arrow.Guard&GuardDue != 0 && tr.age < due*9/10,
		arrow.Guard&GuardLeft != 0 && tr.real.Attempts >= testMax,
		arrow.Guard&GuardSpent != 0 && tr.real.Attempts < testMax:
		return refuse(ErrLost)
	}
	return after, nil
}

// after is the version the action leaves when it succeeds.
func (tr trial) after() Version {
	was := tr.shown
	if was.Status == Absent {
		was = Version{}
	}
	switch tr.action {
	case ActionInsert:
		return Version{Success, 1, 0, ""}
	case ActionClaim:
		return Version{Processing, was.Attempts + 1, was.Replays, "new owner"}
	case ActionSuccess:
		return Version{Success, was.Attempts, was.Replays, was.Owner}
	case ActionFail, ActionExhaust:
		return Version{Failed, was.Attempts, was.Replays, was.Owner}
	case ActionUnclaim:
		return Version{Failed, was.Attempts - 1, was.Replays, was.Owner}
	case ActionDead:
		return Version{Dead, was.Attempts, was.Replays, was.Owner}
	case ActionReopen:
		return Version{Failed, 0, was.Replays + 1, "new token"}
	case ActionDiscard:
		return Version{Discarded, was.Attempts, was.Replays, was.Owner}
	}
	panic("no such action")
}

// run tries it on the database.
func (tr trial) run(ctx context.Context, w *world) error {
	from := Row{Key: tr.key, Version: tr.shown}
	e := entryOf(tr.key)
	claim := Claim{Key: tr.key, Attempts: tr.shown.Attempts, Replays: tr.shown.Replays, Owner: tr.shown.Owner}
	if tr.own {
		from = claim.Row()
	}
	var err error
	switch tr.action {
	case ActionInsert:
		err = w.insertSuccess(e)
	case ActionClaim:
		_, err = w.log.Claim(ctx, from, e, "new owner")
	case ActionSuccess:
		err = w.success(claim)
	case ActionFail:
		_, err = w.log.Fail(ctx, claim, "cause")
	case ActionUnclaim:
		err = w.log.Unclaim(ctx, claim)
	case ActionExhaust:
		_, err = w.log.Exhaust(ctx, from)
	case ActionDead:
		err = w.log.Dead(ctx, from, e, "permanent", "cause")
	case ActionReopen:
		_, err = w.log.Reopen(ctx, from, e, ReplayNote{By: "me", Token: "new token", Discarded: tr.asked})
	case ActionDiscard:
		err = w.log.Discard(ctx, from, e, "me", "why")
	}
	return err
}

// prepare makes the rows that the trials meet.
func (w *world) prepare(all []trial) {
	w.t.Helper()
	wantError(w.t, "prepare", w.inTx(func(tx *sql.Tx) error {
		for _, tr := range all {
			if tr.real.Status == Absent {
				continue
			}
			if _, err := tx.Exec("INSERT INTO consumer_log (group_name, msg_tag, msg_key, msg_body, consumer_status, consumer_times,"+
				" replays, owner, consumer_timestamp, created_at) VALUES (?,?,?,'body',?,?,?,?, UTC_TIMESTAMP(6) - INTERVAL ? SECOND, UTC_TIMESTAMP(6))",
				append(keyArgs(tr.key), int(tr.real.Status), tr.real.Attempts, tr.real.Replays, tr.real.Owner, int(tr.age.Seconds()))...); err != nil {
				return err
			}
		}
		return nil
	}), nil)
}

// Every state, version, age and action, on the real database: what the table allows happens, and nothing else.
func TestOnlyTheTableHappens(t *testing.T) {
	w := newWorld(t)
	all := trials()
	keys := make([]Key, len(all))
	for i, tr := range all {
		keys[i] = tr.key
	}
	w.prepare(all)
	before := w.lookUp(keys...)
	moved := map[string]int{}
	results := make([]error, len(all))
	for i, tr := range all {
		results[i] = tr.run(t.Context(), w)
	}
	after := w.lookUp(keys...)
	for i, tr := range all {
		want, wantErr := tr.wants()
		if err := results[i]; !errors.Is(err, wantErr) || wantErr == nil && err != nil {
			t.Errorf("%s: %v, want %v", tr.name, err, wantErr)
			continue
		}
		if got := after[tr.key].Version; got != want {
			t.Errorf("%s: row is %+v, want %+v", tr.name, got, want)
		}
		if want == tr.real {
			ignore := cmpopts.IgnoreFields(Row{}, "Age", "Wait")
			if diff := cmp.Diff(before[tr.key], after[tr.key], ignore, cmpopts.IgnoreUnexported(Row{})); diff != "" {
				t.Errorf("%s: refused, and yet:\n%s", tr.name, diff)
			}
			if n := w.number("SELECT COUNT(*) FROM consumer_log_event"+keyIs, keyArgs(tr.key)...); n != 0 {
				t.Errorf("%s: refused, and yet %d events", tr.name, n)
			}
			continue
		}
		moved[fmt.Sprint(tr.action, tr.shown.Status)]++
		if tr.action == ActionInsert {
			continue
		}
		events := w.events(tr.key)
		if len(events) != 1 || events[0].From != tr.real.Status || events[0].To != want.Status ||
			events[0].Attempt != want.Attempts || events[0].Replays != want.Replays || events[0].Owner != want.Owner {
			t.Errorf("%s: events %+v, want one of %v to %+v", tr.name, events, tr.real.Status, want)
		}
	}
	for _, arrow := range Transitions() {
		if moved[fmt.Sprint(arrow.Action, arrow.From)] == 0 {
			t.Errorf("no trial made the transition %s from %v", arrow.Action, arrow.From)
		}
	}
	t.Logf("%d trials, arrows taken: %v", len(all), moved)
}

func (w *world) lookUp(keys ...Key) map[Key]Row {
	w.t.Helper()
	rows, err := w.log.LookUp(w.t.Context(), keys)
	if err != nil {
		w.t.Fatal(err)
	}
	return rows
}
