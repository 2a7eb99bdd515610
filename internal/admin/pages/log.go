package pages

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/admin/view"
)

type logged struct {
	Key, Tag, Status, Since, Until string
	Statuses                       []dedup.Status
	Page                           view.Page[dedup.Row]
}

// log lists rows of the consumer log.
func (p *Pages) log(ctx context.Context, r *http.Request, d *drawn) error {
	q := r.URL.Query()
	l := logged{
		Key: strings.TrimSpace(q.Get("key")), Tag: strings.TrimSpace(q.Get("tag")), Status: q.Get("status"),
		Since: q.Get("since"), Until: q.Get("until"), Statuses: dedup.Statuses(),
	}
	f := dedup.Filter{Tag: l.Tag, Limit: onePage, After: dedup.Cursor(q.Get("after"))}
	if l.Key != "" {
		f.Keys = []string{l.Key}
	}
	if l.Status != "" {
		i := slices.IndexFunc(l.Statuses, func(s dedup.Status) bool { return s.String() == l.Status })
		if i < 0 {
			return problem{http.StatusBadRequest, fmt.Sprintf("%q is no status.", l.Status)}
		}
		f.Statuses = []dedup.Status{l.Statuses[i]}
	}
	var err error
	if f.Since, err = moment(l.Since, time.Now()); err != nil {
		return err
	}
	if f.Until, err = moment(l.Until, time.Now()); err != nil {
		return err
	}
	if l.Page, err = p.o.View.Rows(ctx, f); err != nil {
		return listError(err)
	}
	d.Title, d.Data = "Consumer log", l
	return nil
}
