package dedup

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/golden"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

func TestDiagramIsTheOneOfTheDesign(t *testing.T) {
	golden.Is(t, "testdata/diagram.mmd", diagram()) // when it changes, the model and ARCHITECTURE.md follow
}

// trial is one attempt to move one row.
type trial struct {
	name   string
	key    Identity
	age    time.Duration
	real   Version // of the row in the table
	shown  Version // what the caller believes
	action action
	own    bool // the caller shows a claim
	asked  bool // for discarded ones
}

// trials are all combinations of states, versions, ages and actions.
func trials() (all []trial) {
	states := append([]Status{Absent}, Statuses()...)
	add := func(age time.Duration, what string, stored, shown Version) {
		for _, a := range []struct {
			action     action
			own, asked bool
		}{
			{action: actionInsert}, {action: actionBlame}, {action: actionClaim}, {action: actionForgive},
			{action: actionExhaust}, {action: actionDead}, {action: actionDiscard},
			{action: actionCondemn}, {action: actionCondemn, own: true},
			{action: actionReopen}, {action: actionReopen, asked: true},
			{action: actionSuccess, own: true}, {action: actionFail, own: true}, {action: actionUnclaim, own: true},
			{action: actionDead, own: true}, {action: actionTakeDone}, {action: actionTakeOpen},
		} {
			unseen := a.action == actionInsert || a.action == actionBlame
			if a.own && shown.Status != Processing || unseen && shown.Status != Absent && shown.Status != Failed {
				continue // the API cannot express it
			}
			stored, shown := stored, shown
			if a.action == actionForgive { // else the API refuses it
				shown.Owner += MarkGroup
				if stored.Status != Absent {
					stored.Owner += MarkGroup
				}
			}
			if a.action == actionTakeDone || a.action == actionTakeOpen { // else the API refuses it
				shown.Owner, shown.Replays = markTaken+shown.Owner, shown.Replays-1
				if stored.Status != Absent {
					stored.Owner, stored.Replays = markTaken+stored.Owner, stored.Replays-1
				}
				if shown.Status == Dead && shown.Replays < 0 {
					continue
				}
			}
			name := fmt.Sprintf("%03d %v %d/3 %v old, shown %v, %s: %s own=%v asked=%v",
				len(all), stored.Status, stored.Attempts, age, shown.Status, what, a.action, a.own, a.asked)
			all = append(all, trial{name, key(name), age, stored, shown, a.action, a.own, a.asked})
		}
	}
	for _, stored := range states {
		for i, attempts := range []int{1, testMax} {
			// nothing, due, lease over too; and the same ahead of a clock that has gone back
			for j, age := range []time.Duration{0, 2 * time.Hour, 4 * time.Hour, -time.Minute, -40 * 24 * time.Hour} {
				real := Version{stored, attempts, 1, "owner"}
				if stored == Absent {
					real = Version{Status: Absent}
				}
				if stored == Absent && i+j > 0 {
					continue // nothing is there in one way only
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
	case !ok && ended && (tr.action == actionReopen || tr.action == actionDiscard && ended):
		return refuse(ErrStale)
	case !ok || arrow.Guard&guardOwner != 0 && !tr.own:
		return refuse(ErrTransition)
	case arrow.Guard&guardAsked != 0 && !tr.asked:
		return refuse(ErrStale)
	}
	after = tr.after()
	if kept := tr.shown.Owner; after.Owner == kept && tr.shown.Status != Absent && tr.shown.Status != Processing {
		after.Owner = tr.real.Owner // who ends a row leaves the name of its last claim there, and compares it in no state
	}
	if tr.own && tr.action != actionSuccess && tr.real == after {
		return after, nil // done by an earlier call of ours
	}
	same := tr.real.Status == tr.shown.Status && tr.real.Attempts == tr.shown.Attempts &&
		tr.real.Replays == tr.shown.Replays
	if tr.real.Status == Absent {
		same = tr.shown.Status == Absent
	}
	if compared := tr.shown.Status == Processing || arrow.Guard&guardTaken != 0; compared &&
		tr.real.Owner != tr.shown.Owner {
		same = false
	}
	due := []time.Duration{0, testDelay, 2 * testDelay, 2 * testDelay}[tr.real.Attempts]
	switch {
	case !same && tr.action == actionInsert && tr.shown.Status == Absent:
		return refuse(ErrExists)
	case !same,
		arrow.Guard&guardExpired != 0 && tr.age.Abs() < testLease,
		arrow.Guard&guardDue != 0 && tr.age.Abs() < due*9/10,
		arrow.Guard&guardLeft != 0 && tr.real.Attempts >= testMax,
		arrow.Guard&guardSpent != 0 && tr.real.Attempts < testMax:
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
	to := func(s Status, attempts int, owner string) Version {
		return Version{s, was.Attempts + attempts, was.Replays, owner}
	}
	switch tr.action {
	case actionInsert:
		return to(Success, 1, was.Owner)
	case actionBlame:
		return to(Failed, 1, "new token")
	case actionClaim:
		return to(Processing, 1, "new owner")
	case actionSuccess:
		return to(Success, 0, was.Owner)
	case actionFail, actionExhaust:
		return to(Failed, 0, was.Owner)
	case actionUnclaim:
		return to(Failed, -1, was.Owner)
	case actionForgive:
		return to(Failed, -1, strings.TrimSuffix(was.Owner, MarkGroup)+MarkAlone)
	case actionCondemn:
		if tr.shown.Status == Processing {
			return to(Failed, 0, was.Owner)
		}
		return to(Failed, 0, "new token")
	case actionDead:
		return to(Dead, 0, was.Owner)
	case actionReopen:
		return Version{Failed, 0, was.Replays + 1, "new token"}
	case actionDiscard:
		return to(Discarded, 0, was.Owner)
	case actionTakeDone:
		return Version{Success, 7, 0, markTaken + "new origin"}
	case actionTakeOpen:
		return Version{Dead, 7, 0, markTaken + "new origin"}
	}
	panic("no such action")
}

// run tries it on the database.
func (tr trial) run(ctx context.Context, w *world) (err error) {
	from, e := Row{Identity: tr.key, Version: tr.shown}, entryOf(tr.key)
	switch tr.action {
	case actionInsert:
		if tr.shown.Status == Absent {
			return w.insertSuccess(e)
		}
		err = w.inTx(func(tx *sql.Tx) error { return w.log.ApplyAll(ctx, tx, []Row{from}) })
	case actionSuccess:
		err = w.success(tr.claim())
	case actionForgive:
		_, err = w.log.Forgive(ctx, from)
	case actionExhaust:
		_, err = w.log.Exhaust(ctx, from)
	case actionTakeDone, actionTakeOpen:
		t := Taken{Entry: e, From: from, Status: Success, Attempts: 7, Origin: "new origin", Remark: "cause", By: "me"}
		if tr.action == actionTakeOpen {
			t.Status = Dead
		}
		_, err = w.log.TakeOver(ctx, w.waypoint(strings.Fields(tr.name)[0]), nil, []Taken{t})
	default:
		err = runAll(ctx, w, tr.action, []trial{tr})[0]
	}
	return err
}

// Every state, version, age and action, on the real database: what the table allows happens, and nothing else; in
// memory the same comes of it and the same rows are left, so that what a handler's test sees is what production does.
func TestOnlyTheTableHappens(t *testing.T) {
	w := newWorld(t)
	all := trials()
	moved := w.judge(all, func() []error {
		results, in := make([]error, len(all)), w.besides(all)
		var keys []Identity
		for i, tr := range all {
			results[i] = tr.run(t.Context(), w)
			if tr.action != actionTakeDone && tr.action != actionTakeOpen { // another log's, which no handler meets
				got := tr.run(t.Context(), in)
				for _, one := range []error{nil, ErrLost, ErrExists, ErrStale, ErrTransition} {
					assert.That(t, errors.Is(got, one) == errors.Is(results[i], one), "%s: %v in memory, %v in the database", tr.name,
						got, results[i])
				}
				keys = append(keys, tr.key)
			}
		}
		w.sameRows(in, keys)
		return results
	})
	for _, arrow := range transitions {
		assert.That(t, moved[fmt.Sprint(arrow.Action, arrow.From)] != 0, "no trial made the transition %s from %v",
			arrow.Action, arrow.From)
	}
	t.Logf("%d trials, arrows taken: %v", len(all), moved)
}

// A call for many comes out for each as a call for it alone would, whoever is lost among them.
func TestManyAtOnceComeOutAsEachAlone(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]bool{"all of them": true, "those alone that nobody has moved": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			for _, a := range []action{actionBlame, actionClaim, actionFail, actionUnclaim, actionCondemn, actionDead,
				actionReopen, actionDiscard} {
				var all []trial
				for _, tr := range trials() {
					if _, err := tr.wants(); tr.action == a && (lost || err == nil) {
						all = append(all, tr)
					}
				}
				moved := w.judge(all, func() []error { return runAll(t.Context(), w, a, all) })
				assert.That(t, len(moved) != 0, "no trial of %s moved a row", a)
			}
		})
	}
}

// claim is the one that the caller shows.
func (tr trial) claim() Claim {
	return Claim{Identity: tr.key, Attempts: tr.shown.Attempts, Replays: tr.shown.Replays, Owner: tr.shown.Owner}
}

// cause is why it failed, unlike that of any other.
func (tr trial) cause() string { return `it's \ broken ü: ` + tr.name }

// runAll tries all of one action in one call.
func runAll(ctx context.Context, w *world, a action, all []trial) (errs []error) {
	switch a {
	case actionBlame:
		_, errs = w.log.BlameAll(ctx, ofAll(all, func(tr trial, row Row, e Entry) Blamed {
			return Blamed{From: row, Entry: e, Cause: tr.cause()}
		}), "new token")
	case actionClaim:
		_, errs = w.log.ClaimAll(ctx, ofAll(all, func(tr trial, row Row, e Entry) Claiming {
			if row.Status == Failed { // it knows its message
				return Claiming{From: row}
			}
			return Claiming{row, &e}
		}), "new owner")
	case actionFail:
		_, errs = w.log.FailAll(ctx, ofAll(all, func(tr trial, _ Row, _ Entry) Failure {
			return Failure{Claim: tr.claim(), Cause: tr.cause()}
		}))
	case actionUnclaim:
		errs = w.log.UnclaimAll(ctx, ofAll(all, func(tr trial, _ Row, _ Entry) Claim { return tr.claim() }))
	case actionCondemn:
		_, errs = w.log.CondemnAll(ctx, ofAll(all, func(tr trial, row Row, e Entry) Condemnation {
			return Condemnation{row, e, "permanent", tr.cause(), "new token"}
		}))
	case actionDead:
		errs = w.log.DeadRows(ctx, ofAll(all, func(tr trial, row Row, e Entry) Death {
			return Death{row, e, "permanent", tr.cause()}
		}))
	case actionDiscard:
		errs = w.log.DiscardAll(ctx, ofAll(all, func(_ trial, row Row, e Entry) Discarding {
			return Discarding{row, e, "me", "why"}
		}))
	case actionReopen:
		_, errs = w.log.ReopenAll(ctx, ofAll(all, func(tr trial, row Row, e Entry) Reopening {
			return Reopening{row, e, ReplayNote{By: "me", Token: "new token", Discarded: tr.asked}}
		}))
	}
	return errs
}

// ofAll makes an argument of each trial, its row as it is shown, and its message.
func ofAll[T any](all []trial, one func(trial, Row, Entry) T) (args []T) {
	for _, tr := range all {
		e := entryOf(tr.key)
		row := Row{Identity: tr.key, Version: tr.shown, BodyHash: e.BodyHash[:]}
		if tr.own {
			row = tr.claim().Row()
		}
		args = append(args, one(tr, row, e))
	}
	return args
}

// judge makes the rows of trials, lets them happen, and holds against each what must come of it. It counts the arrows
// that were taken.
func (w *world) judge(all []trial, happen func() []error) (moved map[string]int) {
	t := w.t
	t.Helper()
	keys := mapped(all, func(tr trial) Identity { return tr.key })
	var rows []Row
	for _, tr := range all {
		if tr.real.Status != Absent {
			rows = append(rows, Row{Identity: tr.key, Version: tr.real, Body: []byte("body"), Age: tr.age})
		}
	}
	w.put(rows...)
	before := w.lookUp(keys...)
	moved = map[string]int{}
	results := happen()
	after, told := w.lookUp(keys...), map[Identity][]Event{}
	for _, e := range require.Get(w.log.EventFeed(t.Context(), 0, 1_000_000))(t) {
		told[e.Identity] = append(told[e.Identity], e)
	}
	for i, tr := range all {
		want, wantErr := tr.wants()
		if err := results[i]; !errors.Is(err, wantErr) || wantErr == nil && err != nil {
			t.Errorf("%s: %v, want %v", tr.name, err, wantErr)
			continue
		}
		assert.Is(t, after[tr.key].Version, want, "%s: row", tr.name)
		if want == tr.real {
			ignore := cmpopts.IgnoreFields(Row{}, "Age", "Wait")
			diff := cmp.Diff(before[tr.key], after[tr.key], ignore, cmpopts.IgnoreUnexported(Row{}))
			assert.That(t, diff == "", "%s: refused, and yet:\n%s", tr.name, diff)
			assert.Is(t, len(told[tr.key]), 0, "%s: refused, and yet events", tr.name)
			continue
		}
		moved[fmt.Sprint(tr.action, tr.shown.Status)]++
		if tr.action == actionInsert || tr.action == actionSuccess || tr.real.Status == Absent &&
			(tr.action == actionTakeDone || tr.action == actionClaim) { // the row tells
			assert.Is(t, len(told[tr.key]), 0, "%s: events", tr.name)
			continue
		}
		events := told[tr.key]
		assert.That(t, len(events) == 1 && events[0].From == tr.real.Status && events[0].To == want.Status &&
			events[0].Attempt == want.Attempts && events[0].Replays == want.Replays && events[0].Owner == tr.after().Owner,
			"%s: events %+v, want one of %v to %+v", tr.name, events, tr.real.Status, want)
		for _, said := range []string{after[tr.key].Remark, events[0].Error} {
			assert.That(t, !strings.HasPrefix(said, "it's") || said == tr.cause(), "%s: another's cause: %s", tr.name, said)
		}
	}
	return moved
}

func (w *world) lookUp(keys ...Identity) map[Identity]Row {
	w.t.Helper()
	return require.Get(w.log.LookUp(w.t.Context(), keys))(w.t)
}

// String lists the guards in words, in the order of their constants.
func (g guard) String() string {
	var words []string
	for i, word := range []string{"own claim", "lease expired", "due", "attempts left", "no attempt left", "asked for",
		"untouched since"} {
		if g&(1<<i) != 0 {
			words = append(words, word)
		}
	}
	return strings.Join(words, ", ")
}

// diagram is the table of transitions as a Mermaid state diagram. ARCHITECTURE.md quotes it, a test compares.
func diagram() string {
	var b strings.Builder
	b.WriteString("stateDiagram-v2\n")
	for _, s := range Statuses() {
		fmt.Fprintf(&b, "    state \"%d %v\" as %v\n", s, s, s)
	}
	for _, t := range transitions {
		from := t.From.String()
		if t.From == Absent {
			from = "[*]"
		}
		fmt.Fprintf(&b, "    %s --> %v: %s", from, t.To, t.Action)
		if t.Guard != 0 {
			fmt.Fprintf(&b, " [%v]", t.Guard)
		}
		if t.Note != "" {
			b.WriteString(" / " + t.Note)
		}
		b.WriteString("\n")
	}
	return b.String()
}
