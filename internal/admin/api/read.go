package api

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/admin/server"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/outbox"
)

// Overview is how it stands.
type Overview struct {
	Health   server.Readiness `json:"health"`
	Stuck    string           `json:"stuck,omitempty"`
	Now      *view.Sample     `json:"now,omitempty"`
	Troubles []view.Trouble   `json:"troubles"`
	Unmoved  Unmoved          `json:"unmoved"`
	Letters  DeadLetters      `json:"dead_letters"`
	Outbox   *outbox.Survey   `json:"outbox,omitempty"` // where there is one
}

// DeadLetters says how many there are.
type DeadLetters struct {
	Seen   int       `json:"seen"`
	More   bool      `json:"more"`
	Groups int       `json:"groups"`
	Parked int       `json:"parked"`
	AsOf   time.Time `json:"as_of,omitzero"`
}

// Unmoved are messages that do not move.
type Unmoved struct {
	Items []view.Stuck `json:"items"`
	AsOf  time.Time    `json:"as_of,omitzero"`
	Error string       `json:"error,omitempty"`
}

func (a *API) getOverview(context.Context, *struct{}) (Overview, error) {
	v := a.view
	health, hour, stuck, groups := v.Options().Health(), v.Hour(), v.Stuck(), v.Groups()
	o := Overview{
		Health: health.Said(), Stuck: health.Stuck, Troubles: hour.Troubles,
		Unmoved: Unmoved{Items: []view.Stuck{}, AsOf: stuck.At.UTC()},
		Letters: DeadLetters{
			Seen: groups.Value.Seen, More: groups.Value.More, Groups: len(groups.Value.All), Parked: groups.Value.Parked,
			AsOf: groups.At.UTC(),
		},
		Outbox: v.Outbox().Value,
	}
	if n := hour.Now(); !n.At.IsZero() {
		o.Now = &n
	}
	if stuck.Value != nil {
		o.Unmoved.Items = stuck.Value
	}
	if stuck.Err != nil {
		o.Unmoved.Error = stuck.Err.Error()
	}
	return o, nil
}

func (a *API) getHour(context.Context, *struct{}) (view.Hour, error) { return a.view.Hour(), nil }

func (a *API) getCharts(ctx context.Context, in *struct {
	Span string `query:"span" enum:"hour,day,week" default:"hour"`
}) (view.Charts, error) {
	return a.view.Charts(ctx, in.Span)
}

// LetterFilter chooses dead letters. All that is named must hold.
type LetterFilter struct {
	Key         []string       `query:"key,explode" maxItems:"100"`
	Tag         string         `query:"tag" maxLength:"100"`
	Order       string         `query:"order" maxLength:"255"`
	Reason      []dedup.Reason `query:"reason,explode" maxItems:"20"`
	Since       time.Time      `query:"since"`
	Until       time.Time      `query:"until"`
	Error       string         `query:"error" maxLength:"1000"`
	Fingerprint string         `query:"fingerprint" maxLength:"1000"`
	InBody      string         `query:"body" maxLength:"1000"`
	SKU         int64          `query:"sku" minimum:"1"`
}

// letters is the filter as package deadletter knows it.
func (f LetterFilter) letters() deadletter.Filter {
	return deadletter.Filter{
		Keys: f.Key, Tag: f.Tag, Order: f.Order, Reasons: f.Reason, Since: f.Since, Until: f.Until, Error: f.Error,
		Fingerprint: f.Fingerprint, Body: f.InBody, SKU: f.SKU,
	}
}

// Paging says which page of a list.
type Paging struct {
	After dedup.Cursor `query:"after" maxLength:"2000"`
	Limit int          `query:"limit" minimum:"1" maximum:"1000" default:"100"`
}

func (a *API) listGroups(ctx context.Context, _ *struct{}) (view.Groups, error) {
	known, err := a.view.GroupsNow(ctx)
	g := known.Value
	g.All = slices.Clone(g.All)
	for i := range g.All {
		g.All[i].Letters = nil // which one that is asked for has
	}
	return g, err
}

func (a *API) getGroup(ctx context.Context, in *struct {
	ID string `path:"id" maxLength:"100"`
}) (view.Group, error) {
	known, err := a.view.GroupsNow(ctx)
	if err != nil {
		return view.Group{}, err
	}
	g, ok := known.Value.Group(in.ID)
	return g, nothingIf(nil, !ok, "no dead letter that was looked at is of the group %q", in.ID)
}

// nothingIf is err, or that nothing is known when something is so.
func nothingIf(err error, is bool, format string, args ...any) error {
	if err != nil || !is {
		return err
	}
	return fmt.Errorf("%w: %w", view.ErrNothing, fmt.Errorf(format, args...))
}

func (a *API) listLetters(ctx context.Context, in *struct {
	LetterFilter
	Paging
}) (view.Page[deadletter.Letter], error) {
	f := in.letters()
	f.All, f.Limit = true, in.Limit
	return a.view.Letters(ctx, f, in.After, false)
}

// Letters are all dead letters with a key.
type Letters struct {
	Letters []deadletter.Shown `json:"letters"`
}

func (a *API) getLetter(ctx context.Context, in *struct {
	Key string `query:"key" required:"true" maxLength:"255"`
	Tag string `query:"tag" maxLength:"100"`
}) (Letters, error) {
	all, err := a.view.Letter(ctx, in.Key, in.Tag)
	return Letters{all}, nothingIf(err, len(all) == 0, "no dead letter has the key %q; /message tells of a message that "+
		"is not dead", in.Key)
}

func (a *API) preview(ctx context.Context, in *struct {
	Kind  operator.Kind `query:"kind" required:"true" enum:"replay,discard"`
	All   bool          `query:"all"`
	Force bool          `query:"force"`
	LetterFilter
	At    time.Time    `query:"at"`
	After dedup.Cursor `query:"after" maxLength:"2000"`
	Limit int          `query:"limit" minimum:"1" maximum:"200" default:"50"`
	Whole bool         `query:"whole"`
}) (operator.Preview, error) {
	f := in.letters()
	f.All = in.All
	return a.view.Preview(ctx, operator.PreviewRequest{
		Kind: in.Kind, Filter: f, Force: in.Force, At: in.At, After: in.After, Limit: in.Limit, Whole: in.Whole,
	})
}

func (a *API) listLog(ctx context.Context, in *struct {
	Key    []string  `query:"key,explode" maxItems:"100"`
	Tag    string    `query:"tag" maxLength:"100"`
	Status []string  `query:"status,explode" maxItems:"20"`
	Since  time.Time `query:"since"`
	Until  time.Time `query:"until"`
	Paging
}) (view.Page[operator.Row], error) {
	f := dedup.Filter{
		Keys: in.Key, Tag: in.Tag, Since: in.Since, Until: in.Until, After: in.After, Limit: in.Limit,
	}
	for _, s := range dedup.Statuses() {
		if slices.Contains(in.Status, s.String()) {
			f.Statuses = append(f.Statuses, s)
		}
	}
	return a.view.Rows(ctx, f)
}

func (a *API) getMessage(ctx context.Context, in *struct {
	Key string `query:"key" required:"true" maxLength:"255"`
	Tag string `query:"tag" maxLength:"100"`
	Whole
}) (view.Told, error) {
	t, err := a.view.Message(ctx, in.Key, in.Tag, in.Whole.Whole)
	return t, nothingIf(err, len(t.Messages) == 0, "no message has the key %q%s", in.Key, furtherWords(t))
}

// Whole says how far to look.
type Whole struct {
	Whole bool `query:"whole"`
}

// furtherWords say that something may be found all the same.
func furtherWords(t view.Told) string {
	if t.More {
		return "; not all rows were looked through: ask with whole=true"
	}
	return ""
}

func (a *API) getOrder(ctx context.Context, in *struct {
	SN string `query:"sn" required:"true" maxLength:"255"`
	Whole
}) (view.Told, error) {
	t, err := a.view.Order(ctx, in.SN, in.Whole.Whole)
	return t, nothingIf(err, len(t.Messages)+len(t.Reserved) == 0, "no message and no reservation is of the order %q%s",
		in.SN, furtherWords(t))
}

func (a *API) listActs(ctx context.Context, in *struct {
	Kind   operator.Kind  `query:"kind" maxLength:"32"`
	State  operator.State `query:"state" enum:"running,done,stopped,failed"`
	Actor  string         `query:"actor" maxLength:"200"`
	Since  time.Time      `query:"since"`
	Until  time.Time      `query:"until"`
	Before string         `query:"after" maxLength:"100"`
	Limit  int            `query:"limit" minimum:"1" maximum:"200" default:"50"`
}) (view.Page[operator.Act], error) {
	if in.Before != "" && uuid.Validate(in.Before) != nil {
		return view.Page[operator.Act]{}, wrong("query.after", "it is not what the page before said as next")
	}
	return a.view.Acts(ctx, operator.ActFilter(*in))
}

func (a *API) getAct(ctx context.Context, in *struct {
	ID string `path:"id" maxLength:"100"`
}) (operator.Act, error) {
	return a.desk.Act(ctx, in.ID)
}

func (a *API) getPause(ctx context.Context, _ *struct{}) (view.Pause, error) {
	p, err := a.desk.Paused(ctx)
	return view.PauseOf(p), err
}

// Comparison is a comparison of log, dead letters and stock.
type Comparison struct {
	Act      operator.Act                 `json:"act"`
	Findings []Finding                    `json:"findings"`
	More     map[operator.FindingKind]int `json:"more"`
	Unclear  []string                     `json:"unclear"`
}

// Finding is one disagreement.
type Finding struct {
	operator.Advice

	Number int                  `json:"number"`
	Kind   operator.FindingKind `json:"kind"`
	Tag    string               `json:"tag,omitempty"`
	Key    string               `json:"key,omitempty"`
	Status string               `json:"status,omitempty"`
	Since  *time.Time           `json:"since,omitempty"`
	Order  string               `json:"order_sn,omitempty"`
	SKU    int64                `json:"sku_id,omitempty"`
}

func (a *API) getComparison(ctx context.Context, in *struct {
	Of string `query:"of" maxLength:"100"`
}) (Comparison, error) {
	of, w, err := a.view.Compared(ctx, in.Of)
	c := Comparison{Act: of, Findings: []Finding{}, More: map[operator.FindingKind]int{}, Unclear: []string{}}
	if err != nil || w == nil {
		return c, err
	}
	without := *of.Result
	without.Report = nil // it is said below, in whole words
	c.Act.Result = &without
	for n := range w.Findings {
		f := &w.Findings[n]
		c.Findings = append(c.Findings, Finding{
			f.Advice(a.view.Options().Names.Program, time.Now()), n, f.Kind, f.Tag, f.Key, f.Status, f.Since, f.Order, f.SKU,
		})
	}
	maps.Copy(c.More, w.More)
	c.Unclear = append(c.Unclear, w.Unclear...)
	return c, nil
}

// OutboxChoice chooses messages of the outbox. All that is named must hold.
type OutboxChoice struct {
	Key   []string     `query:"key,explode" maxItems:"100"`
	Tag   string       `query:"tag" maxLength:"600"`
	State outbox.State `query:"state"`
	Since time.Time    `query:"since"`
	Until time.Time    `query:"until"`
}

func (c OutboxChoice) filter() outbox.Filter {
	return outbox.Filter{Keys: c.Key, Tag: c.Tag, State: c.State, Since: c.Since, Until: c.Until}
}

func (a *API) listOutbox(ctx context.Context, in *struct {
	OutboxChoice
	Paging
}) (view.Page[view.OutboxRow], error) {
	return a.view.OutboxRows(ctx, in.filter(), string(in.After), in.Limit)
}

// OutboxMessages are all messages of the outbox with a key.
type OutboxMessages struct {
	Messages []view.OutboxRow `json:"messages"`
}

func (a *API) getOutboxMessage(ctx context.Context, in *struct {
	Key string `query:"key" required:"true" maxLength:"2000"`
	Tag string `query:"tag" maxLength:"600"`
}) (OutboxMessages, error) {
	all, err := a.view.OutboxMessage(ctx, in.Tag, in.Key)
	return OutboxMessages{all}, nothingIf(err, len(all) == 0, "the outbox has no message with the key %q", in.Key)
}

func (a *API) previewOutbox(ctx context.Context, in *struct {
	Kind operator.Kind `query:"kind" required:"true" enum:"outbox_retry,outbox_drop"`
	OutboxChoice
	All   bool `query:"all"`
	Force bool `query:"force"`
}) (view.OutboxPreview, error) {
	return a.view.PreviewOutbox(ctx, operator.OutboxRequest{
		Kind: in.Kind, Filter: in.filter(), All: in.All, Force: in.Force,
	})
}
