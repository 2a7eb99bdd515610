package pages

import (
	"bytes"
	"context"
	"errors"
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

// message tells of one message, or of all messages of an order, under its stable address.
func (p *Pages) message(ctx context.Context, r *http.Request, d *drawn) error {
	q, order := r.URL.Query(), r.URL.Path == "/order"
	asked, tag, whole, name := q.Get("key"), q.Get("tag"), inWhole(q), "Message "
	if order {
		asked, tag, name = strings.TrimSpace(q.Get("sn")), "", "Order "
	}
	if asked == "" {
		return refuse(http.StatusBadRequest, "Which one? The address must name a message as key, or an order as sn.")
	}
	var t view.Told
	var err error
	if order {
		t, err = p.view.Order(ctx, asked, whole)
	} else {
		t, err = p.view.Message(ctx, asked, tag, whole)
	}
	if err != nil {
		return err
	}
	if len(t.Messages)+len(t.Reserved) == 0 && !t.More {
		d.Status = http.StatusNotFound
	}
	var letters []deadletter.Shown // of a message that is dead
	if !order && slices.ContainsFunc(t.Messages, func(m operator.Explanation) bool { return m.Status == "dead" }) {
		if letters, err = p.view.Letter(ctx, asked, tag); err != nil {
			return err
		}
	}
	edits, err := p.editable(ctx, letters)
	if err != nil {
		return err
	}
	acts, err := p.touched(ctx, t)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	_ = t.Write(&text) // into memory
	d.Title, d.Data = name+screen.Printable(asked), shown{
		"Asked": asked, "Tag": tag, "Order": order, "Whole": whole, "Told": t, "Letters": letters, "Acts": acts,
		"Edits": edits, "Columns": operator.ReservedHeader(), "Steps": operator.StepsHeader(), "Text": text.String(),
	}
	if !whole { // that costs too much to be done again and again
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
		a, err := p.desk.Act(ctx, id)
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
	d.Title, d.Data = "Message or order", p.view.KnowsOrders()
	return nil
}
