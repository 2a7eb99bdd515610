package view

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/admin/server"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/outbox"
)

// Options are where to look.
type Options struct {
	// Lookup and Letters are on a pool of the view's own, of [Connections], so that no page takes one from the engine.
	operator.Lookup

	Letters *deadletter.Letters
	// Desk is where what is asked for is done, and what was done is known.
	Desk *operator.Operator
	// Lock says in words who holds the lock of an identity, [operator.NoLock] when there is none; so does nil.
	Lock  func(context.Context, dedup.Identity) string
	Names operator.Names
	// Elects: the daemons of the group elect one that keeps house.
	Elects bool
	// Metrics are the engine's, Health what it says of itself.
	Metrics prometheus.Gatherer
	Health  func() server.Readiness
	Hide    Hide
	Logger  *slog.Logger
}

const (
	// Connections is how many the pool of a view should have: one for people, one for what is found out meanwhile.
	Connections = 2
	// StatementTime bounds every statement, on the server too. It is longer than ActsTime, which says so in our words.
	StatementTime = 6 * time.Second
	// pageTime bounds what a page asks while somebody waits.
	pageTime = 2 * time.Second
	// ActsTime bounds what is asked about acts.
	ActsTime = 5 * time.Second
)

// View is safe for many goroutines.
type View struct {
	o      Options
	ring   *ring
	survey background[Groups]
	dead   background[int]
	stuck  background[[]Stuck]
	leader background[string]
	names  background[[]string]
	outbox background[*outbox.Survey]
	charts []background[Charts] // of each of [Spans]
}

// New makes a view. It asks nobody yet.
func New(o Options) *View {
	if o.Lock == nil {
		o.Lock = func(context.Context, dedup.Identity) string { return operator.NoLock }
	}
	v := &View{o: o, ring: &ring{}, charts: make([]background[Charts], len(Spans()))}
	for i, s := range Spans() {
		v.charts[i].look = func(ctx context.Context, _ func(Charts)) (Charts, error) { return v.lookAtMinutes(ctx, s) }
	}
	v.survey.look, v.survey.paced = v.lookAtDead, true
	v.stuck.look = func(ctx context.Context, _ func([]Stuck)) ([]Stuck, error) { return v.lookAtStuck(ctx) }
	v.dead.look = func(ctx context.Context, _ func(int)) (int, error) {
		n, _, err := o.Records.Count(ctx, dedup.Filter{Group: o.Group, Statuses: []dedup.Status{dedup.Dead}}, 0,
			dedup.MaxCounted)
		return n, err
	}
	v.outbox.look = v.lookAtOutbox
	v.names.look = func(ctx context.Context, _ func([]string)) ([]string, error) { return v.lookForNames(ctx) }
	v.leader.look = func(ctx context.Context, _ func(string)) (string, error) {
		return o.Records.LeaderAddress(ctx, o.Group)
	}
	return v
}

// Options are what the view was made with.
func (v *View) Options() Options { return v.o }

// Run samples figures until ctx ends, and ends what is found out in the background.
func (v *View) Run(ctx context.Context) {
	looks := []interface {
		begin(context.Context)
		end()
	}{&v.survey, &v.dead, &v.stuck, &v.leader, &v.outbox, &v.names}
	for i := range v.charts {
		looks = append(looks, &v.charts[i])
	}
	for _, look := range looks {
		look.begin(ctx)
		defer look.end()
	}
	v.sample(ctx)
}

// deadKeep is how long a count of the dead letters is kept, while that takes no time worth mentioning.
const deadKeep = 5 * time.Second

// Dead is how many dead letters there are, dedup.MaxCounted at most, as last counted.
func (v *View) Dead() Aged[int] { return v.dead.get(deadKeep) }

// leaderKeep is how long it is believed who is elected.
const leaderKeep = 5 * time.Second

// Leader is from where the elected process is connected to MySQL, as last looked at; "" when nobody is elected.
func (v *View) Leader() Aged[string] { return v.leader.get(leaderKeep) }

// namesKeep is how long what was found of names is good, and namesTime how long RabbitMQ may take to say it.
const namesKeep, namesTime = 15 * time.Second, 10 * time.Second

// Unknown are the names of the settings that nothing has, group or queue, each with what is known of those that are
// there. Its Err is MySQL's: a broker that cannot be asked says nothing of names.
func (v *View) Unknown() Aged[[]string] { return v.names.get(namesKeep) }

// lookForNames looks for the group in the log, and for the queue where nothing is consumed: an engine has made its own.
func (v *View) lookForNames(ctx context.Context) (unknown []string, err error) {
	group, err := v.o.UnknownGroup(ctx)
	if err != nil {
		return nil, err
	}
	if group != "" {
		unknown = append(unknown, "group: "+group)
	}
	if !v.o.Health().PagesOnly {
		return unknown, nil
	}
	ctx, cancel := context.WithTimeout(ctx, namesTime)
	defer cancel()
	queue, err := v.o.Letters.UnknownQueue(ctx)
	if queue != "" {
		unknown = append(unknown, "queue: "+queue)
	}
	if err != nil {
		v.o.Logger.DebugContext(ctx, "look for the queue", "err", err)
	}
	if !slices.Equal(unknown, v.Unknown().Value) {
		v.o.Logger.WarnContext(ctx, "names that nothing has", "names", unknown)
	}
	return unknown, nil
}

// Within runs a question for whose answer somebody waits, and gives it up after a while with ErrTooLong.
func Within[T any](ctx context.Context, most time.Duration, ask func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, most, ErrTooLong)
	defer cancel()
	answer, err := ask(ctx)
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, ErrTooLong) {
		err = cause
	}
	return answer, err
}

// search is Within for a question that whoever asks can narrow.
func search[T any](ctx context.Context, most time.Duration, ask func(context.Context) (T, error)) (T, error) {
	answer, err := Within(ctx, most, ask)
	if errors.Is(err, ErrTooLong) {
		err = errTooWide
	}
	return answer, err
}

// Preview is what an act would come to, found at once or, looking through all letters, within seconds.
func (v *View) Preview(ctx context.Context, r operator.PreviewRequest) (operator.Preview, error) {
	if err := v.shows(r.Filter.Body); err != nil {
		return operator.Preview{}, err
	}
	most := ActsTime
	if r.Whole {
		most = WholeTime
	}
	return search(ctx, most, func(ctx context.Context) (p operator.Preview, err error) {
		p, err = v.o.Desk.Preview(ctx, r)
		p.Letters = append([]deadletter.Judged{}, p.Letters...) // never null
		return p, err
	})
}

// shows is nil, or ErrHidden when letters are chosen by a text of the body and bodies are hidden.
func (v *View) shows(body string) error {
	if body != "" && v.o.Hide.Any() {
		return ErrHidden
	}
	return nil
}

// KnowsOrders reports whether messages can be found by their order.
func (v *View) KnowsOrders() bool { return v.o.Lookup.OrderOf != nil }

// GroupsNow are the groups as last looked at. Where nobody has looked yet, it waits for the first look, for as long as
// a page may wait.
func (v *View) GroupsNow(ctx context.Context) (Aged[Groups], error) {
	return Within(ctx, pageTime, func(ctx context.Context) (Aged[Groups], error) {
		return v.survey.await(ctx, surveyKeep)
	})
}

// Page is one page of a list, and where the next one begins.
type Page[T any] struct {
	Items []T          `json:"items"`          // never null
	Next  dedup.Cursor `json:"next,omitempty"` // "" after the last
}

// Letters is a page of dead letters, the latest first: what is found at once, which may be less than a page although
// there are more, or in whole, which may take seconds.
func (v *View) Letters(
	ctx context.Context, f deadletter.Filter, after dedup.Cursor, whole bool,
) (Page[deadletter.Letter], error) {
	if err := v.shows(f.Body); err != nil {
		return Page[deadletter.Letter]{}, err
	}
	through := operator.LookThrough
	if f.Body != "" || f.Order != "" || f.SKU != 0 {
		through = operator.LookThroughBodies
	}
	most := pageTime
	if whole {
		most = WholeTime
	}
	return search(ctx, most, func(ctx context.Context) (p Page[deadletter.Letter], err error) {
		if whole {
			p.Items, p.Next, err = v.o.Letters.List(ctx, f, after)
		} else {
			p.Items, p.Next, err = v.o.Letters.Look(ctx, f, after, through)
		}
		p.Items = append([]deadletter.Letter{}, p.Items...)
		return p, err
	})
}

// Rows is a page of the log: by status, the latest first.
func (v *View) Rows(ctx context.Context, f dedup.Filter) (Page[operator.Row], error) {
	f.Group = v.o.Group
	return search(ctx, pageTime, func(ctx context.Context) (Page[operator.Row], error) {
		rows, next, err := v.o.Records.List(ctx, f)
		return Page[operator.Row]{operator.RowsOf(rows), next}, err
	})
}

// Acts is a page of who did what, the latest first.
func (v *View) Acts(ctx context.Context, f operator.ActFilter) (Page[operator.Act], error) {
	all, next, err := v.o.Desk.Acts(ctx, f)
	return Page[operator.Act]{append([]operator.Act{}, all...), dedup.Cursor(next)}, err
}

// Letter is all that the log knows of the dead letters with a key, of all tags when tag is "". What of them may not be
// seen is taken out.
func (v *View) Letter(ctx context.Context, key, tag string) ([]deadletter.Shown, error) {
	return search(ctx, pageTime, func(ctx context.Context) ([]deadletter.Shown, error) {
		all, err := v.o.Letters.Show(ctx, key, tag)
		for i := range all {
			v.o.Hide.letter(&all[i])
		}
		return all, err
	})
}

// Export writes the letters that f chooses as `dlq export` does. It takes as long as the reader.
func (v *View) Export(ctx context.Context, f deadletter.Filter, w io.Writer) (int, error) {
	return v.o.Letters.Export(ctx, f, w)
}

// Told is what is known of a message or an order, in words.
type Told struct {
	Order    string                 `json:"order_sn,omitempty"`
	Reserved []operator.Reserved    `json:"reservations"`
	Messages []operator.Explanation `json:"messages"`
	Unseen   []string               `json:"unseen"` // what the answer may lack
	More     bool                   `json:"more"`   // asked for in whole, the answer may be longer
}

const (
	// mostAtOnce bounds the rows that a page goes through where no index leads to them, so that it answers at once.
	mostAtOnce = 1000
	// WholeTime bounds an answer in whole.
	WholeTime = 20 * time.Second
)

// Message tells of a message, as `log explain KEY` does: what is found at once, or in whole, which may take seconds.
func (v *View) Message(ctx context.Context, key, tag string, whole bool) (Told, error) {
	return v.tell(ctx, "", whole, func(ctx context.Context, o operator.Lookup) (operator.Told, error) {
		return o.OfKey(ctx, key, tag)
	})
}

// Order tells of an order, as `log explain --order` does: what is found at once, or in whole, which may take seconds.
func (v *View) Order(ctx context.Context, sn string, whole bool) (Told, error) {
	if !v.KnowsOrders() {
		return Told{}, fmt.Errorf("%w: %w", ErrNothing, ErrNoOrders)
	}
	return v.tell(ctx, sn, whole, func(ctx context.Context, o operator.Lookup) (operator.Told, error) {
		return o.OfOrder(ctx, sn)
	})
}

func (v *View) tell(
	ctx context.Context, order string, whole bool, ask func(context.Context, operator.Lookup) (operator.Told, error),
) (Told, error) {
	o, most := v.o.Lookup, pageTime
	if o.Most = mostAtOnce; whole {
		o.Most, most = 0, WholeTime
	}
	return Within(ctx, most, func(ctx context.Context) (Told, error) {
		found, err := ask(ctx, o)
		lock := func(id dedup.Identity) string { return v.o.Lock(ctx, id) }
		copies := func(row dedup.Row) string { return operator.CopiesText(row, v.o.Names.Queue) }
		t := Tell(found, order, v.o.Names, lock, copies)
		for i := range t.Messages {
			v.o.Hide.message(&t.Messages[i].Body, &t.Messages[i].Raw, &t.Messages[i].Props)
		}
		return t, err
	})
}

// Tell puts what was found into words; lock says who holds that of an identity, copies what the queue has of it.
func Tell(
	found operator.Told, order string, names operator.Names, lock func(dedup.Identity) string,
	copies func(dedup.Row) string,
) Told {
	t := Told{
		Order: order, Reserved: append([]operator.Reserved{}, found.Reservations...), Messages: []operator.Explanation{},
		Unseen: append([]string{}, found.Unseen...), More: found.More,
	}
	for _, m := range found.Messages {
		e := operator.Explain(m, names)
		e.Copies, e.Lock = copies(m.Row), lock(m.Row.Identity)
		t.Messages = append(t.Messages, e)
	}
	return t
}

// Write writes what `log explain` prints.
func (t Told) Write(w io.Writer) error {
	return operator.Write(w, t.Order, t.Reserved, t.Messages, t.Unseen)
}

// Pause says whether consuming is paused.
type Pause struct {
	Paused bool      `json:"paused"`
	ID     string    `json:"id,omitempty"`
	By     string    `json:"by,omitempty"`
	Why    string    `json:"why,omitempty"`
	Since  time.Time `json:"since,omitzero"`
	Until  time.Time `json:"until,omitzero"`
}

// PauseOf is a pause as it is shown; the zero one when none stands.
func PauseOf(p dedup.Pause) Pause {
	if p.Left == 0 {
		return Pause{}
	}
	return Pause{Paused: true, ID: p.ID, By: p.By, Why: p.Why, Since: p.Since, Until: p.Until}
}

// Hide says what of a message's body, properties and headers nobody may see on a page or through the API.
type Hide struct {
	// Bodies hides all of them.
	Bodies bool
	// Pointers are JSON pointers, as the steps behind each slash: what stands there in a body is replaced. A body that
	// cannot be read as JSON is hidden whole, because nobody knows what stands in it.
	Pointers [][]string
}

// What stands in place of what is hidden.
const (
	hiddenBody = "(hidden by ROLLBACKD_UI_HIDE_BODIES)"
	hiddenPart = "(hidden)"
	unreadable = "(no JSON, hidden because ROLLBACKD_UI_REDACT is set)"
)

// Any reports whether something is hidden. Downloads are then refused: they hold what the queue holds.
func (h Hide) Any() bool { return h.Bodies || len(h.Pointers) > 0 }

func (h Hide) letter(s *deadletter.Shown) {
	if !h.Any() {
		return
	}
	if len(s.BodyBytes) > 0 {
		s.BodyBytes, s.Body = nil, "?"
	}
	s.Body = h.text(s.Body)
	s.Properties, s.Headers = nil, nil
}

// message hides what a message holds: its body, or raw when that is no text, and what stands beside it.
func (h Hide) message(body, raw, beside *string) {
	if !h.Any() {
		return
	}
	if *raw != "" {
		*body, *raw = "?", ""
	}
	*body, *beside = h.text(*body), ""
}

// text is a body as it may be seen.
func (h Hide) text(body string) string {
	switch {
	case body == "" || !h.Any():
		return body
	case h.Bodies:
		return hiddenBody
	}
	decoder := json.NewDecoder(strings.NewReader(body))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil || decoder.More() {
		return unreadable
	}
	for _, steps := range h.Pointers {
		value = redact(value, steps)
	}
	text, err := json.Marshal(value)
	if err != nil {
		return unreadable
	}
	return string(text)
}

// redact replaces what stands at the end of the steps. A step * is every element.
func redact(value any, steps []string) any {
	if len(steps) == 0 {
		return hiddenPart
	}
	switch v := value.(type) {
	case map[string]any:
		for name, inner := range v {
			if name == steps[0] || steps[0] == "*" {
				v[name] = redact(inner, steps[1:])
			}
		}
	case []any:
		n, err := strconv.Atoi(steps[0])
		for i := range v {
			if steps[0] == "*" || err == nil && i == n {
				v[i] = redact(v[i], steps[1:])
			}
		}
	}
	return value
}
