package pages

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/admin/view"
)

type logged struct {
	Asked    search
	Statuses []dedup.Status
	Page     view.Page[dedup.Row]
}

// log lists rows of the consumer log.
func (p *Pages) log(ctx context.Context, r *http.Request, d *drawn) error {
	q := r.URL.Query()
	l := logged{Asked: searchOf(q, "key", "tag", "status", "since", "until"), Statuses: dedup.Statuses()}
	f := dedup.Filter{
		Keys: l.Asked.keys(), Tag: l.Asked.Get("tag"), Limit: onePage, After: dedup.Cursor(q.Get("after")),
	}
	if status := l.Asked.Get("status"); status != "" {
		i := slices.IndexFunc(l.Statuses, func(s dedup.Status) bool { return s.String() == status })
		if i < 0 {
			return problem{http.StatusBadRequest, fmt.Sprintf("%q is no status.", status)}
		}
		f.Statuses = []dedup.Status{l.Statuses[i]}
	}
	var err error
	if f.Since, f.Until, err = l.Asked.span(time.Now()); err != nil {
		return err
	}
	if l.Page, err = p.o.View.Rows(ctx, f); err != nil {
		return listError(err)
	}
	d.Title, d.Data = "Consumer log", l
	return nil
}
