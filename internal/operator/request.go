package operator

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
)

// Filter chooses dead letters. All conditions must hold; a zero one always does. The names of its JSON form are stable.
type Filter struct {
	// All must be set to choose without any other condition.
	All  bool     `json:"all,omitempty"`
	Keys []string `json:"keys,omitempty"` // one of them, at most deadletter.MaxSetKeys
	Tag  string   `json:"tag,omitempty"`
	// Order chooses the letters of an order; the keys are looked up when it is asked for.
	Order   string         `json:"order,omitempty"`
	Reasons []dedup.Reason `json:"reasons,omitempty"` // one of them
	// Since and Until bound when the letter died: at or after, and before.
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`
	// Error is a text that the last error holds; Fingerprint is that of the last error, see deadletter.Fingerprint.
	Error       string `json:"error,omitempty"`
	Fingerprint string `json:"fingerprint,omitempty"`
	// Body is a text that the body holds, SKU a sku_id that it names.
	Body string `json:"body,omitempty"`
	SKU  int64  `json:"sku,omitempty"`
}

// letters is the filter as package deadletter knows it, but for the order.
func (f Filter) letters() deadletter.Filter {
	return deadletter.Filter{
		All: f.All, Keys: f.Keys, Tag: f.Tag, Reasons: f.Reasons, Since: f.Since, Until: f.Until, Error: f.Error,
		Fingerprint: f.Fingerprint, Body: f.Body, SKU: f.SKU,
	}
}

// Words are the filter as the commands write it: of an order its number, in place of the keys that it stands for.
func (f Filter) Words() string {
	l := f.letters()
	if l.Order = f.Order; f.Order != "" {
		l.Keys = nil
	}
	return l.String()
}

// FilterOf is the filter of package deadletter's, but for its limit.
func FilterOf(f deadletter.Filter) Filter {
	return Filter{
		All: f.All, Keys: f.Keys, Tag: f.Tag, Reasons: f.Reasons, Since: f.Since, Until: f.Until, Error: f.Error,
		Fingerprint: f.Fingerprint, Body: f.Body, Order: f.Order, SKU: f.SKU,
	}
}

func (f Filter) check() error {
	narrow := len(f.Keys) > 0 || f.Tag != "" || f.Order != "" || len(f.Reasons) > 0 || !f.Since.IsZero() ||
		!f.Until.IsZero() || f.Error != "" || f.Fingerprint != "" || f.Body != "" || f.SKU != 0
	switch {
	case !f.All && !narrow:
		return fmt.Errorf("%w: %w", ErrRequest, deadletter.ErrNoFilter)
	case f.All && narrow:
		return fmt.Errorf("%w: all letters, and a condition, contradict each other", ErrRequest)
	case len(f.Keys) > deadletter.MaxSetKeys:
		return fmt.Errorf("%w: %d keys, at most %d", ErrRequest, len(f.Keys), deadletter.MaxSetKeys)
	case f.SKU < 0:
		return fmt.Errorf("%w: a sku_id of %d", ErrRequest, f.SKU)
	case slices.Contains(f.Keys, ""):
		return fmt.Errorf("%w: a key is empty", ErrRequest)
	}
	return nil
}

// resolve looks up what an order stands for. The order stays in the filter, for whoever reads what was asked for.
func (d *Operator) resolve(ctx context.Context, f Filter) (Filter, error) {
	if f.Order == "" {
		return f, nil
	}
	if d.o.Order == nil {
		return f, fmt.Errorf("%w: orders are not known to this handler; choose by key", ErrRequest)
	}
	var err error
	if f.Keys, err = d.o.Order(ctx, f.Order, f.Keys); err != nil {
		return f, fmt.Errorf("look up order %q: %w", f.Order, err)
	}
	switch {
	case len(f.Keys) == 0:
		return f, fmt.Errorf("%w: no message is known of order %q", ErrRequest, f.Order)
	case len(f.Keys) > deadletter.MaxSetKeys:
		return f, fmt.Errorf("%w: order %q has over %d messages", ErrRequest, f.Order, deadletter.MaxSetKeys)
	}
	return f, nil
}

// Request is what is asked of a run over dead letters. The names of its JSON form are stable.
type Request struct {
	// ID is of the act, if it was given out before; see [Once]. "": a new one.
	ID     string `json:"-"`
	Kind   Kind   `json:"kind"` // KindReplay or KindDiscard
	Filter Filter `json:"filter"`
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

func (r *Request) check() error {
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
	case !(r.Rate >= 0) || math.IsInf(r.Rate, 0):
		return fmt.Errorf("%w: a rate of %v letters per second", ErrRequest, r.Rate)
	case r.Window < 1 || r.Window > deadletter.MaxWindow:
		return fmt.Errorf("%w: a window of %d letters, want 1 to %d", ErrRequest, r.Window, deadletter.MaxWindow)
	case r.MaxFailures < 0:
		return fmt.Errorf("%w: at most %d failures", ErrRequest, r.MaxFailures)
	}
	return r.Filter.check()
}

// guard names the set: runs over the same letters exclude each other, whatever they do and at what pace, and whichever
// preview they were frozen by.
func (d *Operator) guard(r Request) ([]byte, error) {
	f := r.Filter
	f.Keys = slices.Compact(slices.Sorted(slices.Values(f.Keys)))
	f.Reasons = slices.Compact(slices.Sorted(slices.Values(f.Reasons)))
	text, err := json.Marshal([]any{d.o.Group, d.o.Queue, f})
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	return sum[:], nil
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
