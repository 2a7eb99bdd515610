package operator

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
)

// Words are a filter as the commands write it: of an order its number, in place of the keys that it stands for.
func Words(f deadletter.Filter) string {
	if f.Order != "" {
		f.Keys = nil
	}
	return f.String()
}

func check(f deadletter.Filter) error {
	if err := f.Validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrRequest, err)
	}
	return nil
}

// resolved is a filter whose order was looked up: its keys stand for it.
func resolved(f deadletter.Filter) deadletter.Filter {
	f.Order = ""
	return f
}

// resolve looks up what an order stands for. The order stays in the filter, for whoever reads what was asked for.
func (d *Operator) resolve(ctx context.Context, f deadletter.Filter) (deadletter.Filter, error) {
	if f.Order == "" {
		return f, nil
	}
	if d.o.OrderOf == nil {
		return f, fmt.Errorf("%w: orders are not known to this handler; choose by key", ErrRequest)
	}
	var err error
	if f.Keys, err = d.o.keysOf(ctx, f.Order, f.Keys); err != nil {
		return f, fmt.Errorf("look up order %q: %w", f.Order, err)
	}
	switch {
	case len(f.Keys) == 0:
		return f, fmt.Errorf("%w: no message is known of order %q", ErrRequest, f.Order)
	case len(f.Keys) > dedup.MaxListedKeys:
		return f, fmt.Errorf("%w: order %q has over %d messages", ErrRequest, f.Order, dedup.MaxListedKeys)
	}
	return f, nil
}

// set is the set of a request under the id of its act.
func (r Request) set(id string) deadletter.Set {
	return deadletter.Set{Filter: resolved(r.Filter), CutOff: r.CutOff, Name: id}
}

// reached is the status into which a run brings its letters.
func (k Kind) reached() dedup.Status {
	if k == KindDiscard {
		return dedup.Discarded
	}
	return dedup.Failed
}

// Request is what is asked of a run over dead letters. The names of its JSON form are stable.
type Request struct {
	// ID is of the act, if it was given out before; see [Once]. "": a new one.
	ID     string            `json:"-"`
	Kind   Kind              `json:"kind"` // KindReplay or KindDiscard
	Filter deadletter.Filter `json:"filter"`
	// CutOff freezes the set: the At of the preview that the person saw. What died later is not of it.
	CutOff time.Time `json:"cut_off,omitzero"`
	Why    string    `json:"why,omitempty"` // required to discard
	// Force also takes parked letters. Of a replay, as the next three.
	Force bool `json:"force,omitempty"`
	// Rate is how many letters go per second at most; 0: as many as can be.
	Rate float64 `json:"rate,omitempty"`
	// Window is how many replayed letters may wait for the daemons at a time, 1 to deadletter.MaxWindow; 0: 500.
	Window int `json:"window,omitempty"`
	// MaxFailures ends the run when so many of its letters have failed again; 0: they are only counted.
	MaxFailures int `json:"max_failures,omitempty"`

	// What only a command can ask for, see [Operator.Do]: letters of a file, those that were discarded, some only.
	From      string `json:"from,omitempty"`
	Discarded bool   `json:"discarded,omitempty"`
	Limit     int    `json:"limit,omitempty"`
}

const defaultWindow = 500

// Check says what is wrong with it.
func (r *Request) Check() error {
	if r.Window == 0 {
		r.Window = defaultWindow
	}
	switch {
	case !r.Kind.asked():
		return fmt.Errorf("%w: a run of kind %q, want %s or %s", ErrRequest, string(r.Kind), KindReplay, KindDiscard)
	case r.CutOff.IsZero():
		return fmt.Errorf("%w: the time of the preview is missing, which freezes the set", ErrRequest)
	case r.Kind == KindDiscard && strings.TrimSpace(r.Why) == "":
		return fmt.Errorf("%w: say why these letters may end without an effect", ErrRequest)
	}
	o := deadletter.ReplayOptions{Rate: r.Rate, Window: r.Window, MaxFailures: r.MaxFailures}
	if err := o.Validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrRequest, err)
	}
	return check(r.Filter)
}

// Do does what is asked for to the letters of a selection, in this name.
func (r *Request) Do(
	ctx context.Context, l *deadletter.Letters, of deadletter.Selection, by string, dryRun bool,
	progress func(deadletter.Progress),
) (deadletter.Result, error) {
	if r.Kind == KindDiscard {
		return l.Discard(ctx, of, deadletter.DiscardOptions{By: by, Why: r.Why, DryRun: dryRun, Progress: progress})
	}
	return l.Replay(ctx, of, deadletter.ReplayOptions{
		By: by, DryRun: dryRun, Force: r.Force, Discarded: r.Discarded, Rate: r.Rate, Window: r.Window,
		MaxFailures: r.MaxFailures, Progress: progress,
	})
}

// sorted is a filter in the one form that all have which choose the same.
func sorted(f deadletter.Filter) deadletter.Filter {
	f.Keys = slices.Compact(slices.Sorted(slices.Values(f.Keys)))
	f.Reasons = slices.Compact(slices.Sorted(slices.Values(f.Reasons)))
	return f
}

// guard names a set, or another work: runs over the same letters exclude each other, whatever they do and at what pace,
// and whichever preview they were frozen by.
func (d *Operator) guard(of ...any) ([]byte, error) {
	text, err := json.Marshal(append([]any{d.o.Group, d.o.Queue}, of...))
	sum := sha256.Sum256(text)
	return sum[:], err
}

// SameSetError says that a run of the same letters goes on, or the same [Task].
type SameSetError struct{ Act Act }

func (e *SameSetError) Error() string {
	if !e.Act.Kind.overLetters() {
		return fmt.Sprintf("the same %s by %s goes on since %s, act %s: look at it", e.Act.Kind, e.Act.Actor,
			e.Act.Created.Format(time.RFC3339), e.Act.ID)
	}
	return fmt.Sprintf("%s of the same letters by %s goes on since %s, act %s: look at it, or stop it", e.Act.Kind,
		e.Act.Actor, e.Act.Created.Format(time.RFC3339), e.Act.ID)
}

// ErrSameSet matches every SameSetError.
var ErrSameSet = errors.New("a run of the same letters goes on")

// Is reports that it is ErrSameSet.
func (*SameSetError) Is(target error) bool { return target == ErrSameSet }
