package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/admin/view"
)

func (a *API) messages() {
	look(a, route{
		id: "list-log", path: "/log", tag: "Messages", summary: "Rows of the consumer log",
		details: "By status in the order processing, success, failed, dead, discarded; within a status the latest " +
			"transition first. A row that moves while somebody pages may be seen twice or not at all.",
	}, a.listLog)
	look(a, route{
		id: "get-message", path: "/message", tag: "Messages", summary: "One message",
		details: "All that is known of it, with its story, what its state means and what to do, as `log explain KEY` " +
			"prints; of a key that is known under several tags, all. 404: nothing is known of the key.",
		errors: []int{http.StatusNotFound},
	}, a.getMessage)
	look(a, route{
		id: "get-order", path: "/order", tag: "Messages", summary: "One order",
		details: "What it has or had reserved, and all that is known of its messages, as `log explain --order` prints: why " +
			"its stock did not come back. Known to ROLLBACKD_HANDLER=stock only.",
		errors: []int{http.StatusNotFound},
	}, a.getOrder)
}

func (a *API) listLog(ctx context.Context, in *struct {
	Key    []string  `query:"key,explode" maxItems:"100" doc:"One of these keys; may be repeated."`
	Tag    string    `query:"tag" maxLength:"100" doc:"The kind of message."`
	Status []string  `query:"status,explode" maxItems:"20" doc:"In one of these; may be repeated."`
	Since  time.Time `query:"since" doc:"Whose last transition came then or later."`
	Until  time.Time `query:"until" doc:"Whose last transition came before then."`
	Paging
}) (Page[view.Row], error) {
	f := dedup.Filter{
		Keys: in.Key, Tag: in.Tag, Since: in.Since, Until: in.Until, After: dedup.Cursor(in.After), Limit: in.Limit,
	}
	for _, s := range dedup.Statuses() {
		if slices.Contains(in.Status, s.String()) {
			f.Statuses = append(f.Statuses, s)
		}
	}
	page, err := a.o.View.Rows(ctx, f)
	return pageOf(view.RowsOf(page.Items), string(page.Next)), err
}

func (a *API) getMessage(ctx context.Context, in *struct {
	Key string `query:"key" required:"true" maxLength:"255" doc:"Of the message."`
	Tag string `query:"tag" maxLength:"100" doc:"The kind of message; missing: all that have the key."`
	Whole
}) (view.Told, error) {
	t, err := a.o.View.Message(ctx, in.Key, in.Tag, in.Whole.Whole)
	if err == nil && len(t.Messages) == 0 {
		err = fmt.Errorf("%w: no message has the key %q%s", errNothing, in.Key, furtherWords(t))
	}
	return t, err
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
	SN string `query:"sn" required:"true" maxLength:"255" doc:"The order's number."`
	Whole
}) (view.Told, error) {
	if !a.o.View.KnowsOrders() {
		return view.Told{}, fmt.Errorf("%w: %w", errNothing, view.ErrNoOrders)
	}
	t, err := a.o.View.Order(ctx, in.SN, in.Whole.Whole)
	if err == nil && len(t.Messages)+len(t.Reserved) == 0 {
		err = fmt.Errorf("%w: no message and no reservation is of the order %q%s", errNothing, in.SN,
			furtherWords(t))
	}
	return t, err
}
