package pages

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/admin"
	"github.com/rollbackd/rollbackd/internal/operator"
)

// set is what a form acts on, as its preview has frozen it.
type set struct {
	Kind   operator.Kind     `json:"kind"`
	Filter deadletter.Filter `json:"filter"`
	CutOff time.Time         `json:"cut_off"`
	Force  bool              `json:"force,omitempty"`
}

// preview is what an act would come to, and the form that does it.
type preview struct {
	Kind    operator.Kind
	Preview operator.Preview
	Chosen  string // the filter in words
	Force   bool
	Totals  []total
	Further bool // not the first page
	One     bool // the set is one letter
	// SameBody is how many letters of the page would run and, with the body that they have, fail again.
	SameBody int
	Token    string
	Set      string // for the form: JSON in base64, so that no text of strangers stands in it as it is
	// Other is the address of the same set with the other kind, Parked the one with force or without, Next the next page,
	// Whole the one that looks through all letters; nil when all were looked through.
	Other, Parked, Next, Whole url.Values
}

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

// errElsewhere keeps another site from leading somebody to a form with letters of its choice.
var errElsewhere = problem{http.StatusForbidden, "Another site has led here. What acts is opened from these pages: " +
	"go to the dead letters."}

// preview says what would happen to a set of letters. It changes nothing.
func (p *Pages) preview(ctx context.Context, r *http.Request, d *drawn) error {
	if admin.FromElsewhere(r) {
		return errElsewhere
	}
	q := r.URL.Query()
	f, err := chosen(q, time.Now())
	if err != nil {
		return err
	}
	ask := operator.PreviewRequest{
		Kind: operator.Kind(q.Get("act")), Filter: f, Force: q.Get("force") == "1", After: dedup.Cursor(q.Get("after")),
		Whole: inWhole(q),
	}
	if ask.At, err = moment(q.Get("at"), time.Now()); err != nil {
		return err
	}
	v := preview{Kind: ask.Kind, Force: ask.Force, Further: q.Get("after") != ""}
	if v.Preview, err = p.o.View.Preview(ctx, p.o.Desk, ask); err != nil {
		return listError(err)
	}
	v.Totals = totals(v.Kind, v.Preview.Letters)
	v.One = v.Preview.Matched == 1 && !v.Preview.More && !v.Further
	for _, l := range v.Preview.Letters {
		if failsAgain(v.Kind, l) {
			v.SameBody++
		}
	}
	text, err := json.Marshal(set{v.Kind, v.Preview.Filter, v.Preview.At, v.Force})
	if err != nil {
		return fmt.Errorf("write the set into the form: %w", err)
	}
	v.Set, v.Chosen = base64.RawURLEncoding.EncodeToString(text), operator.Words(v.Preview.Filter)
	v.Other = changed(q, "after", "", "force", "", "act", other(v.Kind))
	if v.Kind == operator.KindReplay && (v.Force || v.Preview.Parked > 0) {
		v.Parked = changed(q, "after", "", "force", map[bool]string{false: "1"}[v.Force])
	}
	if v.Preview.Next != "" {
		v.Next = changed(q, "after", string(v.Preview.Next), "at", v.Preview.At.UTC().Format(time.RFC3339Nano))
	}
	if v.Preview.More && v.Preview.Matched < operator.MaxCounted && !ask.Whole {
		v.Whole = changed(q, "after", "", "whole", "1")
	}
	if v.Token, err = p.token(ctx, r, d); err != nil {
		return err
	}
	d.Title, d.Data = "What a "+string(v.Kind)+" would do", v
	return nil
}

// failsAgain reports whether a letter would run, although what is wrong with it stands in its body.
func failsAgain(k operator.Kind, l deadletter.Judged) bool {
	runs := l.Verdict == deadletter.VerdictAct || l.Verdict == deadletter.VerdictFromQueue
	return k == operator.KindReplay && runs && (l.Reason == dedup.ReasonMalformed || l.Reason == dedup.ReasonConflict)
}

// chosen is the filter that an address names. Nothing named is an error, and all letters are named by all=1.
func chosen(q url.Values, now time.Time) (deadletter.Filter, error) {
	a := lettersAsked(q)
	f, err := a.filter(now)
	if err != nil {
		return deadletter.Filter{}, err
	}
	chosen := f
	chosen.Fingerprint, chosen.All = q.Get("fingerprint"), q.Get("all") == "1"
	return chosen, nil
}

func other(k operator.Kind) string {
	if k == operator.KindReplay {
		return string(operator.KindDiscard)
	}
	return string(operator.KindReplay)
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

func actorOf(ctx context.Context) operator.Actor { return operator.Actor{Name: admin.Who(ctx).Name} }

// verdictText says what becomes of a letter.
func verdictText(k operator.Kind, l deadletter.Judged) string {
	if failsAgain(k, l) {
		return "would fail again"
	}
	switch l.Verdict {
	case deadletter.VerdictAct:
		if k == operator.KindDiscard {
			return "ends without an effect"
		}
		return "will run"
	case deadletter.VerdictDone:
		return "already done"
	case deadletter.VerdictDiscarded:
		return "discarded before"
	case deadletter.VerdictInProgress:
		return "in progress"
	case deadletter.VerdictParked:
		return "parked: stays"
	case deadletter.VerdictLater:
		return "died later: stays"
	case deadletter.VerdictFromQueue:
		return "will be looked for in the queue"
	case deadletter.VerdictTooOld:
		return "too old: nothing is known of it"
	}
	return "stays"
}
