package pages

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/screen"
)

type told struct {
	Asked   string // key or order
	Tag     string
	Order   bool
	Whole   bool // everything was looked through
	Told    view.Told
	Letters []deadletter.Shown // of those that are dead
	Columns []string
	Steps   []string
	Text    string         // the same as a command prints
	Acts    []operator.Act // that touched one of them, the latest first
}

// message tells of one message, under its stable address.
func (p *Pages) message(ctx context.Context, r *http.Request, d *drawn) error {
	q := r.URL.Query()
	key, tag := q.Get("key"), q.Get("tag")
	if key == "" {
		return problem{http.StatusBadRequest, "Which message? The address must name a key."}
	}
	t, err := p.o.View.Message(ctx, key, tag, inWhole(q))
	if err != nil {
		return err
	}
	if len(t.Messages) == 0 && !t.More {
		d.Status = http.StatusNotFound
	}
	page := told{Asked: key, Tag: tag, Whole: inWhole(q), Told: t}
	if slices.ContainsFunc(t.Messages, func(m operator.Explanation) bool { return m.Status == "dead" }) {
		if page.Letters, err = p.o.View.Letter(ctx, key, tag); err != nil {
			return err
		}
	}
	return p.tell(r, d, page)
}

// order tells of all messages of an order, under its stable address.
func (p *Pages) order(ctx context.Context, r *http.Request, d *drawn) error {
	sn := strings.TrimSpace(r.URL.Query().Get("sn"))
	switch {
	case sn == "":
		return problem{http.StatusBadRequest, "Which order? The address must name its number as sn."}
	case !p.o.View.KnowsOrders():
		return problem{http.StatusNotFound, "Orders are known to ROLLBACKD_HANDLER=stock only."}
	}
	t, err := p.o.View.Order(ctx, sn, inWhole(r.URL.Query()))
	if err != nil {
		return err
	}
	if len(t.Messages)+len(t.Reserved) == 0 && !t.More {
		d.Status = http.StatusNotFound
	}
	return p.tell(r, d, told{Asked: sn, Order: true, Whole: inWhole(r.URL.Query()), Told: t})
}

func (p *Pages) tell(r *http.Request, d *drawn, page told) error {
	var text bytes.Buffer
	if err := page.Told.Write(&text); err != nil {
		return fmt.Errorf("tell of %q: %w", page.Asked, err)
	}
	var err error
	if page.Acts, err = p.touched(r.Context(), page.Told); err != nil {
		return err
	}
	page.Text, page.Columns, page.Steps = text.String(), operator.ReservedHeader(), operator.StepsHeader()
	what := "Message "
	if page.Order {
		what = "Order "
	}
	d.Title, d.Data = what+screen.Printable(page.Asked), page
	if !page.Whole { // that costs too much to be done again and again
		d.Events = p.liveAt(r)
	}
	return nil
}

// inWhole reports whether the address asks for everything, however long it takes.
func inWhole(q url.Values) bool { return q.Get("whole") == "1" }

// mostTouched bounds the acts that a page names; a message has few.
const mostTouched = 10

// touched are the acts that moved a message, the latest first. Those that are not kept any more are left out.
func (p *Pages) touched(ctx context.Context, t view.Told) (all []operator.Act, err error) {
	ids := map[string]bool{}
	for _, m := range t.Messages {
		for _, step := range m.Story {
			if id := operator.ActIn(step.By); id != "" {
				ids[id] = true
			}
		}
	}
	sorted := slices.Sorted(maps.Keys(ids)) // by time
	for _, id := range slices.Backward(sorted[max(0, len(sorted)-mostTouched):]) {
		a, err := p.o.Desk.Act(ctx, id)
		if errors.Is(err, operator.ErrNoAct) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return all, nil
}

// failure is the group of dead letters that a message belongs to.
func failure(m operator.Explanation) string {
	return view.GroupID(m.Reason, deadletter.Fingerprint(m.Remark))
}

// find leads to the page of a message or an order.
func (p *Pages) find(_ context.Context, _ *http.Request, d *drawn) error {
	d.Title, d.Data = "Message or order", p.o.View.KnowsOrders()
	return nil
}
