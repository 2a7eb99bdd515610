package operator

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/screen"
)

// Start writes a run down. The daemon whose desk this is takes it up at once, if it has a hand free, else any daemon of
// the fleet within a second or two. A SameSetError names the run of the same letters that goes on. The same ID again is
// the same run, whatever became of it.
func (d *Operator) Start(ctx context.Context, who Actor, r Request) (Act, error) {
	r.Why = Plain(r.Why)
	n, err := newActOf(who, r.ID, r.Kind, r.Why, nil)
	if err == nil {
		err = r.Check()
	}
	if err != nil {
		return Act{}, err
	}
	now, err := d.o.Records.Now(ctx)
	if err != nil {
		return Act{}, err
	}
	if r.CutOff.After(now) {
		return Act{}, fmt.Errorf("%w: the preview's time is to come", ErrRequest)
	}
	if r.Filter, err = d.resolve(ctx, r.Filter); err != nil {
		return Act{}, err
	}
	n.detail, n.cutOff, n.progress = r, r.CutOff, &Progress{Phase: "waiting"}
	if n.firstEvent, err = d.o.Records.LastEvent(ctx); err != nil {
		return Act{}, err
	}
	n.progress.Matched, _, n.progress.More, err = d.o.Letters.CountSet(ctx, r.set(n.id), MaxCounted,
		lookThrough(r.Filter))
	if err != nil {
		return Act{}, err
	}
	return d.begin(ctx, n, sorted(r.Filter))
}

// begin writes an act down that somebody has to work on, and wakes whoever does here, unless it was written down
// before. What goes on with the same alone is a SameSetError.
func (d *Operator) begin(ctx context.Context, n *newAct, alone ...any) (a Act, err error) {
	n.state = Running
	if len(alone) > 0 {
		if n.guard, err = d.guard(alone...); err != nil {
			return a, err
		}
	}
	for {
		err := d.insert(ctx, d.db, n)
		switch {
		case err == nil:
			d.waken()
			a, err := d.Act(ctx, n.id)
			d.log.InfoContext(ctx, "an act begins that a daemon works on", "kind", n.kind, "by", n.actor, "on",
				screen.Shorten(a.Subject(), 200), "letters", n.progress.Matched, "act", n.id)
			return a, err
		case errors.Is(err, errActExists):
			return d.Act(ctx, n.id)
		case !errors.Is(err, errGuarded):
			return a, err
		}
		found, err := d.list(ctx, "guard = ?", n.guard)
		switch {
		case err != nil:
			return a, fmt.Errorf("look who does the same: %w", err)
		case len(found) > 0 && found[0].ID == n.id:
			return found[0], nil
		case len(found) > 0: // else it has ended meanwhile
			return found[0], &SameSetError{found[0]}
		}
	}
}

// set is the set of a request under the id of its act.
func (r Request) set(id string) deadletter.Set {
	return deadletter.Set{Filter: resolved(r.Filter), CutOff: r.CutOff, Name: id}
}

// Stop asks a run to stop: whoever works on it sees that within a second or two, finishes the letters in hand, and ends
// it. One that nobody has taken up begins with no letter. ErrEnded with the act when it has ended.
func (d *Operator) Stop(ctx context.Context, who Actor, id string) (Act, error) {
	actor, err := who.name()
	if err != nil {
		return Act{}, err
	}
	a, err := d.Act(ctx, id)
	if err != nil {
		return a, err
	}
	asked, err := d.exec(ctx, "UPDATE "+d.acts+" SET stop_by = COALESCE(stop_by, ?) WHERE id = ? AND "+
		standing+" = 'running'", actor, []byte(a.ID))
	if err != nil {
		return a, fmt.Errorf("stop act %s: %w", id, err)
	}
	if a, err = d.Act(ctx, id); err != nil {
		return a, err
	}
	if asked == 0 && a.StopBy == "" {
		return a, ErrEnded
	}
	return a, nil
}

// story is how the events of an act name it, so that they can be counted, and found from a letter; [ActIn] reads it.
func (a Act) story() string { return a.Actor + ", run " + a.ID }

var inStory = regexp.MustCompile(`, run ([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})$`)

// ActIn is the id of the act that a step of a message's story names by who made it; "" when it names none.
func ActIn(by string) string {
	if found := inStory.FindStringSubmatch(by); found != nil {
		return found[1]
	}
	return ""
}

// reached is the status into which a run brings its letters.
func (k Kind) reached() dedup.Status {
	if k == KindDiscard {
		return dedup.Discarded
	}
	return dedup.Failed
}
