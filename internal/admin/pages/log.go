package pages

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
)

// logged lists rows of the consumer log.
func (p *Pages) logged(ctx context.Context, r *http.Request, d *drawn) error {
	q := r.URL.Query()
	asked, statuses := searchOf(q, "key", "tag", "status", "since", "until"), dedup.Statuses()
	f := dedup.Filter{Keys: asked.keys(), Tag: asked.Get("tag"), Limit: onePage, After: dedup.Cursor(q.Get("after"))}
	if status := asked.Get("status"); status != "" {
		i := slices.IndexFunc(statuses, func(s dedup.Status) bool { return s.String() == status })
		if i < 0 {
			return refuse(http.StatusBadRequest, "%q is no status.", status)
		}
		f.Statuses = statuses[i : i+1]
	}
	var err error
	if f.Since, f.Until, err = asked.span(time.Now()); err != nil {
		return err
	}
	page, err := p.view.Rows(ctx, f)
	if err != nil {
		return err
	}
	d.Title, d.Data = "Consumer log", shown{"Asked": asked, "Statuses": statuses, "Page": page}
	return nil
}
