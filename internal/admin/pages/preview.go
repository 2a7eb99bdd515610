package pages

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/admin/server"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/operator"
)

// total is how many letters of the page have a verdict, in words.
type total struct {
	Verdict string
	Count   int
}

// totals count the letters of a page by verdict, in the order of the verdicts. Those that would run and fail again are
// not among those that will run.
func totals(k operator.Kind, letters []deadletter.Judged) (all []total) {
	for _, verdict := range deadletter.Verdicts() {
		for _, again := range []bool{false, true} {
			t := total{}
			for _, l := range letters {
				if l.Verdict == verdict && failsAgain(k, l) == again {
					t.Verdict = verdictText(k, l)
					t.Count++
				}
			}
			if t.Count > 0 {
				all = append(all, t)
			}
		}
	}
	return all
}

// ours keeps another site from leading somebody to a form with letters of its choice.
func ours(make maker) maker {
	return func(ctx context.Context, r *http.Request, d *drawn) error {
		if server.FromElsewhere(r) {
			return refuse(http.StatusForbidden, "Another site has led here. What acts is opened from these pages: go to the "+
				"dead letters.")
		}
		return make(ctx, r, d)
	}
}

// preview says what would happen to a set of letters. It changes nothing.
func (p *Pages) preview(ctx context.Context, r *http.Request, d *drawn) error {
	q, now := r.URL.Query(), time.Now()
	f, err := lettersAsked(q).filter(now)
	at, err2 := moment(q.Get("at"), now)
	if err = cmp.Or(err, err2); err != nil {
		return err
	}
	f.Fingerprint, f.All = q.Get("fingerprint"), q.Get("all") == "1" // nothing named is an error
	kind, force, whole, after := operator.Kind(q.Get("act")), q.Get("force") == "1", inWhole(q), q.Get("after")
	found, err := p.view.Preview(ctx, operator.PreviewRequest{
		Kind: kind, Filter: f, Force: force, After: dedup.Cursor(after), Whole: whole, At: at,
	})
	if err != nil {
		return err
	}
	token, err := p.token(ctx, r, d)
	trial, err2 := p.token(ctx, r, d) // of the second form
	if err = cmp.Or(err, err2); err != nil {
		return err
	}
	same := 0
	for _, l := range found.Letters {
		if failsAgain(kind, l) {
			same++
		}
	}
	// Other addresses of the same set: nil where there is nothing to go to.
	var parked, next, all url.Values
	if kind == operator.KindReplay && (force || found.Parked > 0) {
		parked = changed(q, "after", "", "force", map[bool]string{false: "1"}[force])
	}
	if found.Next != "" {
		next = changed(q, "after", string(found.Next), "at", found.At.UTC().Format(time.RFC3339Nano))
	}
	if found.More && found.Matched < operator.MaxCounted && !whole {
		all = changed(q, "after", "", "whole", "1")
	}
	d.Title = "What a " + string(kind) + " would do"
	d.Data = shown{
		"Kind": kind, "Preview": found, "Chosen": operator.Words(found.Filter), "Force": force, "Further": after != "",
		"Totals": totals(kind, found.Letters), "One": found.Matched == 1 && !found.More && after == "",
		"SameBody": same, "Token": token,
		"Trial": trial, "TrialSet": setOf(operator.RehearsalRequest{Filter: found.Filter, CutOff: found.At, Force: force}),
		"Set":   setOf(view.RunRequest{Kind: kind, Filter: found.Filter, CutOff: found.At, Force: force}),
		"Other": changed(q, "after", "", "force", "", "act", other[kind]), "Parked": parked, "Next": next, "Whole": all,
	}
	return nil
}

// failsAgain reports whether a letter would run, although what is wrong with it stands in its body.
func failsAgain(k operator.Kind, l deadletter.Judged) bool {
	runs := l.Verdict == deadletter.VerdictAct || l.Verdict == deadletter.VerdictFromQueue
	return k == operator.KindReplay && runs && (l.Reason == dedup.ReasonMalformed || l.Reason == dedup.ReasonConflict)
}

// other is what can be done instead of an act of a kind.
var other = map[operator.Kind]string{
	operator.KindReplay: string(operator.KindDiscard), operator.KindDiscard: string(operator.KindReplay),
	operator.KindOutboxRetry: string(operator.KindOutboxDrop), operator.KindOutboxDrop: string(operator.KindOutboxRetry),
}

// previewOf is the address of the preview of what was rehearsed; nil where no address has room for it.
func previewOf(r operator.RehearsalRequest) url.Values {
	f := r.Filter
	if f.Order != "" {
		f.Keys = nil // they are the order's
	}
	if len(f.Keys) > 1 || len(f.Reasons) > 1 {
		return nil
	}
	iso := func(at time.Time) string {
		if at.IsZero() {
			return ""
		}
		return at.UTC().Format(time.RFC3339Nano)
	}
	number := func(n int64) string { return strings.TrimPrefix(strconv.FormatInt(n, 10), "0") }
	yes := map[bool]string{true: "1"}
	reason := ""
	if len(f.Reasons) > 0 {
		reason = string(f.Reasons[0])
	}
	return changed(nil, "act", string(operator.KindReplay), "key", strings.Join(f.Keys, ""), "tag", f.Tag,
		"reason", reason, "error", f.Error, "fingerprint", f.Fingerprint, "body", f.Body, "sn", f.Order, "sku", number(f.SKU),
		"since", iso(f.Since), "until", iso(f.Until), "at", iso(r.CutOff), "all", yes[f.All], "force", yes[r.Force])
}

// changed are the values of an address with some of them replaced; an empty one is taken out.
func changed(q url.Values, pairs ...string) url.Values {
	to := url.Values{}
	for name, values := range q {
		if name != "live" {
			to[name] = values
		}
	}
	for i := 0; i < len(pairs); i += 2 {
		to.Del(pairs[i])
		if pairs[i+1] != "" {
			to.Set(pairs[i], pairs[i+1])
		}
	}
	return to
}

// verdictWords say what becomes of a letter; all others stay.
var verdictWords = map[deadletter.Verdict]string{
	deadletter.VerdictAct: "will run", deadletter.VerdictDone: "already done",
	deadletter.VerdictDiscarded: "discarded before", deadletter.VerdictInProgress: "in progress",
	deadletter.VerdictParked: "parked: stays", deadletter.VerdictLater: "died later: stays",
	deadletter.VerdictFromQueue: "will be looked for in the queue",
	deadletter.VerdictTooOld:    "too old: nothing is known of it",
}

func verdictText(k operator.Kind, l deadletter.Judged) string {
	switch {
	case failsAgain(k, l):
		return "would fail again"
	case l.Verdict == deadletter.VerdictAct && k == operator.KindDiscard:
		return "ends without an effect"
	}
	return cmp.Or(verdictWords[l.Verdict], "stays")
}
