package pages

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/outbox"
)

// outboxPlace is in the navigation where there is an outbox.
var outboxPlace = place{"/outbox", "Outbox"}

func outboxAsked(q url.Values) (asked search, f outbox.Filter, err error) {
	asked = searchOf(q, "key", "tag", "state", "since", "until")
	f = outbox.Filter{Keys: asked.keys(), Tag: asked.Get("tag"), State: outbox.State(asked.Get("state"))}
	if err = f.Check(); err != nil {
		return asked, f, refuse(http.StatusBadRequest, "%v", err)
	}
	f.Since, f.Until, err = asked.span(time.Now())
	return asked, f, err
}

// outbox lists messages that are to be sent.
func (p *Pages) outbox(ctx context.Context, r *http.Request, d *drawn) error {
	q := r.URL.Query()
	asked, f, err := outboxAsked(q)
	if err != nil {
		return err
	}
	page, err := p.view.OutboxRows(ctx, f, q.Get("after"), onePage)
	d.Title, d.Data = "Outbox", shown{
		"Asked": asked, "States": outbox.States(), "Page": page, "Survey": p.view.Outbox(), "Most": outbox.MostCounted,
	}
	return err
}

// outboxMessage shows all that the outbox has of a key.
func (p *Pages) outboxMessage(ctx context.Context, r *http.Request, d *drawn) error {
	q := r.URL.Query()
	all, err := p.view.OutboxMessage(ctx, q.Get("tag"), q.Get("key"))
	if len(all) == 0 {
		d.Status = http.StatusNotFound
	}
	d.Title, d.Data = "Message of the outbox", shown{"Key": q.Get("key"), "Tag": q.Get("tag"), "All": all}
	return err
}

// outboxAct says what would become of messages, and has the form that does it.
func (p *Pages) outboxAct(ctx context.Context, r *http.Request, d *drawn) error {
	q := r.URL.Query()
	_, f, err := outboxAsked(q)
	if err != nil {
		return err
	}
	if f.Until.IsZero() { // what is parked later is not of the set
		if f.Until, err = p.desk.Now(ctx); err != nil {
			return err
		}
	}
	ask := operator.OutboxRequest{Kind: operator.Kind(q.Get("act")), Filter: f, Force: q.Get("force") == "1"}
	found, err := p.view.PreviewOutbox(ctx, ask)
	if err != nil {
		return err
	}
	token, err := p.token(ctx, r, d)
	drop := ask.Kind == operator.KindOutboxDrop
	d.Title = "What would become of messages of the outbox"
	d.Data = shown{
		"Drop": drop, "Force": ask.Force, "Found": found, "Chosen": ask.String(), "Token": token,
		"Set":    setOf(ask),
		"Other":  changed(q, "force", "", "act", other[ask.Kind]),
		"Forced": changed(q, "force", map[bool]string{false: "1"}[ask.Force]),
	}
	return err
}

// outboxActAsked reads the form of outboxAct.
func outboxActAsked(r *http.Request) (asked operator.OutboxRequest, err error) {
	if err := readSet(r, &asked); err != nil {
		return asked, refuse(http.StatusBadRequest, "The form does not say which messages: open it from their page.")
	}
	asked.Why = strings.TrimSpace(r.PostForm.Get("why"))
	return asked, nil
}

// outboxNeeds says what of the outbox a person should look at.
func outboxNeeds(s *outbox.Survey) (all []need) {
	if s == nil {
		return nil
	}
	if s.Parked > 0 {
		all = append(all, need{
			Level: "warn", What: fmt.Sprintf("%s%s parked in the outbox", count(s.Parked),
				plural(s.Parked, " message is", " messages are")),
			Why:  "Nobody sends them: the oldest for " + ago(time.Since(s.OldestParked)) + ".",
			Path: "/outbox?state=parked", Go: "Look at them",
		})
	}
	if s.Lag > outboxLate {
		all = append(all, need{
			Level: "warn", What: "The outbox is late",
			Why:  "The oldest message that is due is so for " + ago(s.Lag) + ": does a relay run, does RabbitMQ take it?",
			Path: "/outbox", Go: "Look at it",
		})
	}
	return all
}

// outboxLate is how long a message may be due before that is told.
const outboxLate = time.Minute
