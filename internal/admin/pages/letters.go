package pages

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/admin"
	"github.com/rollbackd/rollbackd/internal/admin/view"
)

// onePage is how many rows a page of a list has.
const onePage = 50

// asked is a search for letters, as it stands in the form and in the address.
type asked struct {
	Key, Tag, Reason, Error, Since, Until string
	Order, SKU, Body                      string
}

func askedOf(q url.Values) asked {
	return asked{
		Key: strings.TrimSpace(q.Get("key")), Tag: strings.TrimSpace(q.Get("tag")), Reason: q.Get("reason"),
		Error: q.Get("error"), Since: q.Get("since"), Until: q.Get("until"),
		Order: strings.TrimSpace(q.Get("sn")), SKU: strings.TrimSpace(q.Get("sku")), Body: q.Get("body"),
	}
}

// Any reports whether the search chooses at all.
func (a asked) Any() bool { return a != asked{} }

// inBodies reports whether it looks into bodies, which is too much work to be done every two seconds.
func (a asked) inBodies() bool { return a.Order+a.SKU+a.Body != "" }

// Link is the address of the search with these pairs more.
func (a asked) Link(pairs ...string) url.Values {
	return changed(url.Values{}, append([]string{
		"key", a.Key, "tag", a.Tag, "reason", a.Reason, "error", a.Error, "since", a.Since, "until", a.Until, "sn", a.Order,
		"sku", a.SKU, "body", a.Body,
	}, pairs...)...)
}

func (a asked) filter(now time.Time) (f deadletter.Filter, err error) {
	f = deadletter.Filter{All: true, Tag: a.Tag, Error: a.Error, Order: a.Order, Body: a.Body}
	if a.SKU != "" {
		if f.SKU, err = strconv.ParseInt(a.SKU, 10, 64); err != nil || f.SKU < 1 {
			return f, problem{http.StatusBadRequest, fmt.Sprintf("%q is no sku_id, which is a number.", a.SKU)}
		}
	}
	if a.Key != "" {
		f.Keys = []string{a.Key}
	}
	if a.Reason != "" {
		if !slices.Contains(dedup.Reasons(), dedup.Reason(a.Reason)) {
			return f, problem{http.StatusBadRequest, fmt.Sprintf("%q is no reason for which a message is dead.", a.Reason)}
		}
		f.Reasons = []dedup.Reason{dedup.Reason(a.Reason)}
	}
	if f.Since, err = moment(a.Since, now); err != nil {
		return f, err
	}
	f.Until, err = moment(a.Until, now)
	return f, err
}

type letters struct {
	Asked   asked
	Reasons []dedup.Reason
	Groups  view.Aged[view.Groups]
	Page    view.Page[deadletter.Letter]
	Further bool // not the first page
	Whole   bool // all letters were looked through
	Partly  bool // the page ends where it stopped looking
	Hidden  bool
}

func (p *Pages) letters(ctx context.Context, r *http.Request, d *drawn) error {
	q := r.URL.Query()
	l := letters{
		Asked: askedOf(q), Reasons: dedup.Reasons(), Further: q.Get("after") != "", Hidden: p.o.View.Options().Hide.Any(),
	}
	f, err := l.Asked.filter(time.Now())
	if err != nil {
		return err
	}
	f.Limit = onePage
	l.Whole = inWhole(q)
	if l.Page, err = p.o.View.Letters(ctx, f, dedup.Cursor(q.Get("after")), l.Whole); err != nil {
		return listError(err)
	}
	l.Partly = l.Page.Next != "" && len(l.Page.Items) < onePage
	l.Groups = p.o.View.Groups()
	d.Title, d.Data = "Dead letters", l
	if !l.Further && !l.Asked.inBodies() {
		d.Events = p.liveAt(r)
	}
	return nil
}

// listError makes a person's mistake out of a cursor that is none.
func listError(err error) error {
	if errors.Is(err, dedup.ErrCursor) {
		return problem{http.StatusBadRequest, "This address does not say where the next page begins: begin at the first one."}
	}
	return err
}

type group struct {
	ID     string
	Known  bool
	Group  view.Group
	Groups view.Aged[view.Groups]
}

func (p *Pages) group(_ context.Context, r *http.Request, d *drawn) error {
	g := group{ID: r.PathValue("id"), Groups: p.o.View.Groups()}
	g.Group, g.Known = g.Groups.Value.Group(g.ID)
	d.Title, d.Events, d.Data = "Group of dead letters", p.liveAt(r), g
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
	f, err := askedOf(r.URL.Query()).filter(time.Now())
	if err == nil && p.o.View.Options().Hide.Any() {
		err = problem{http.StatusForbidden, "A download holds whole messages, and ROLLBACKD_UI_HIDE_BODIES or " +
			"ROLLBACKD_UI_REDACT hides parts of them: use dlq export on a machine that may."}
	}
	f.Fingerprint = r.URL.Query().Get("fingerprint")
	if err != nil {
		text, status := p.trouble(w, r, p.newDrawn(r), err)
		w.WriteHeader(status)
		_, _ = w.Write(text)
		return
	}
	leave, ok := p.downloads.enter(admin.Who(r.Context()).Name)
	if !ok {
		admin.Crowded(w, "downloads go on")
		return
	}
	defer leave()
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Content-Disposition", `attachment; filename="dead-letters-`+
		time.Now().UTC().Format("20060102T150405Z")+`.ndjson"`)
	out := bufio.NewWriterSize(deadlined{w, http.NewResponseController(w)}, 64<<10)
	n, err := p.o.View.Export(r.Context(), f, out)
	err = errors.Join(err, out.Flush())
	if err != nil {
		p.o.Logger.WarnContext(r.Context(), "a download ended early", "letters", strconv.Itoa(n), "err", err)
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
