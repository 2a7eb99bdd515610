package pages

import (
	"bufio"
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/admin/server"
)

// onePage is how many rows a page of a list has.
const onePage = 50

// search is what somebody looks for, as it stands in a form and in the address; empty values are left out.
type search struct{ url.Values }

// searchOf keeps these values of an address. Those that are names have no blanks around them.
func searchOf(q url.Values, names ...string) search {
	s := search{url.Values{}}
	for _, name := range names {
		v := q.Get(name)
		if name != "error" && name != "body" {
			v = strings.TrimSpace(v)
		}
		if v != "" {
			s.Set(name, v)
		}
	}
	return s
}

func lettersAsked(q url.Values) search {
	return searchOf(q, "key", "tag", "reason", "error", "since", "until", "sn", "sku", "body")
}

// Any reports whether the search chooses at all.
func (s search) Any() bool { return len(s.Values) > 0 }

// Link is the address of the search with these pairs more.
func (s search) Link(pairs ...string) url.Values { return changed(s.Values, pairs...) }

// span reads since and until.
func (s search) span(now time.Time) (since, until time.Time, err error) {
	if since, err = moment(s.Get("since"), now); err == nil {
		until, err = moment(s.Get("until"), now)
	}
	return since, until, err
}

// keys are the key, if one is named.
func (s search) keys() []string { return s.Values["key"] }

// inBodies reports whether it looks into bodies, which is too much work to be done every two seconds.
func (s search) inBodies() bool { return s.Get("sn")+s.Get("sku")+s.Get("body") != "" }

func (s search) filter(now time.Time) (f deadletter.Filter, err error) {
	f = deadletter.Filter{
		All: true, Keys: s.keys(), Tag: s.Get("tag"), Error: s.Get("error"), Order: s.Get("sn"), Body: s.Get("body"),
	}
	if sku := s.Get("sku"); sku != "" {
		if f.SKU, err = strconv.ParseInt(sku, 10, 64); err != nil || f.SKU < 1 {
			return f, refuse(http.StatusBadRequest, "%q is no sku_id, which is a number.", sku)
		}
	}
	if reason := s.Get("reason"); reason != "" {
		if !slices.Contains(dedup.Reasons(), dedup.Reason(reason)) {
			return f, refuse(http.StatusBadRequest, "%q is no reason for which a message is dead.", reason)
		}
		f.Reasons = []dedup.Reason{dedup.Reason(reason)}
	}
	f.Since, f.Until, err = s.span(now)
	return f, err
}

func (p *Pages) letters(ctx context.Context, r *http.Request, d *drawn) error {
	q := r.URL.Query()
	asked, whole, further := lettersAsked(q), inWhole(q), q.Get("after") != ""
	f, err := asked.filter(time.Now())
	if err != nil {
		return err
	}
	f.Limit = onePage
	page, err := p.view.Letters(ctx, f, dedup.Cursor(q.Get("after")), whole)
	if err != nil {
		return err
	}
	d.Title, d.Data = "Dead letters", shown{
		"Asked": asked, "Reasons": dedup.Reasons(), "Groups": p.view.Groups(), "Page": page, "Whole": whole,
		"Partly":  page.Next != "" && len(page.Items) < onePage, // it stopped looking
		"Further": further, "Hidden": p.view.Options().Hide.Any(),
	}
	if !further && !asked.inBodies() {
		d.Events = p.liveAt(r)
	}
	return nil
}

func (p *Pages) group(_ context.Context, r *http.Request, d *drawn) error {
	groups := p.view.Groups()
	group, known := groups.Value.Group(r.PathValue("id"))
	d.Title, d.Events = "Group of dead letters", p.liveAt(r)
	d.Data = shown{"Group": group, "Known": known, "Groups": groups}
	return nil
}

const (
	// mostDownloads bounds the downloads of a process, downloadsOfOne those of a person. Each has one letter in memory.
	mostDownloads, downloadsOfOne = 8, 4
	// downloadPiece is how much a reader has liveWrite for.
	downloadPiece = 32 << 10
)

// download writes what `dlq export` writes.
func (p *Pages) download(w http.ResponseWriter, r *http.Request) {
	f, err := lettersAsked(r.URL.Query()).filter(time.Now())
	if err == nil && p.view.Options().Hide.Any() {
		err = refuse(http.StatusForbidden, "A download holds whole messages, and ROLLBACKD_UI_HIDE_BODIES or "+
			"ROLLBACKD_UI_REDACT hides parts of them: use dlq export on a machine that may.")
	}
	f.Fingerprint = r.URL.Query().Get("fingerprint")
	if err != nil {
		p.fail(w, r, err)
		return
	}
	leave, ok := p.downloads.Enter(server.Who(r.Context()).Name)
	if !ok {
		server.Crowded(w, "downloads go on")
		return
	}
	defer leave()
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Content-Disposition", `attachment; filename="dead-letters-`+
		time.Now().UTC().Format("20060102T150405Z")+`.ndjson"`)
	out := bufio.NewWriterSize(deadlined{w, http.NewResponseController(w)}, 64<<10)
	n, err := p.view.Export(r.Context(), f, out)
	err = errors.Join(err, out.Flush())
	if err != nil {
		p.log.WarnContext(r.Context(), "a download ended early", "letters", strconv.Itoa(n), "err", err)
		panic(http.ErrAbortHandler) // so that the reader sees that it is not whole
	}
}

// deadlined gives each piece of a long answer its own time.
type deadlined struct {
	http.ResponseWriter
	out *http.ResponseController
}

// Write writes piece by piece.
func (w deadlined) Write(b []byte) (written int, err error) {
	for piece := range slices.Chunk(b, downloadPiece) {
		if err := w.out.SetWriteDeadline(time.Now().Add(liveWrite)); err != nil {
			return written, err
		}
		n, err := w.ResponseWriter.Write(piece)
		if written += n; err != nil {
			return written, err
		}
	}
	return written, nil
}

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
