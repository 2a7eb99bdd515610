package view

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/screen"
	"github.com/rollbackd/rollbackd/outbox"
)

// OutboxRow is a message of the outbox with its body.
type OutboxRow struct {
	outbox.Row

	Headers string `json:"headers,omitempty"` // as they were written, which may be no JSON
	Body    string `json:"body,omitempty"`    // as it was, when it is UTF-8
	Raw     string `json:"body_hex,omitempty"`
}

// OutboxOf are rows as they are shown; never nil.
func OutboxOf(rows []outbox.Row) []OutboxRow {
	all := []OutboxRow{}
	for _, r := range rows {
		one := OutboxRow{Row: r, Headers: string(r.Headers)}
		if utf8.Valid(r.Body) {
			one.Body = string(r.Body)
		} else {
			one.Raw = hex.EncodeToString(r.Body)
		}
		all = append(all, one)
	}
	return all
}

// Facts are what is known of it, line by line; texts that are empty are there too.
func (r OutboxRow) Facts() []operator.Fact {
	at := screen.Date
	to := func(name *string) string {
		if name == nil {
			return "that of the relay"
		}
		return fmt.Sprintf("%q", *name)
	}
	owner := "surely not"
	if r.Owner != "" {
		owner = "perhaps, under claim " + r.Owner
	}
	return []operator.Fact{
		{Name: "key", Text: r.Key}, {Name: "state", Text: string(r.State)}, {Name: "put", Text: at(r.PutAt)},
		{Name: "due", Text: at(r.DueAt)}, {Name: "next looked at", Text: at(r.NextAt)}, {Name: "sent", Text: owner},
		{Name: "not taken", Text: strings.TrimSuffix(fmt.Sprintf("%d times, since %s", r.Tries, at(r.FailedAt)), ", since ")},
		{Name: "parked", Text: at(r.ParkedAt)}, {Name: "reason", Text: r.Reason},
		{Name: "exchange", Text: to(r.Exchange)}, {Name: "routing key", Text: to(r.RoutingKey)},
		{Name: "content type", Text: r.ContentType}, {Name: "headers", Text: r.Headers}, {Name: "body", Text: r.Body},
		{Name: "body in hex", Text: r.Raw},
	}
}

// absentFor is for how long it is believed that there is no outbox.
const absentFor = time.Minute

// Outbox is how the outbox stands, as last looked at; nil where there is none.
func (v *View) Outbox() Aged[*outbox.Survey] {
	known := v.outbox.get(absentFor)
	if known.Value != nil || known.At.IsZero() {
		known = v.outbox.get(deadKeep)
	}
	return known
}

func (v *View) lookAtOutbox(ctx context.Context, _ func(*outbox.Survey)) (*outbox.Survey, error) {
	s, err := v.o.Desk.Outbox().Survey(ctx)
	if errors.Is(err, outbox.ErrNoTable) {
		return nil, nil
	}
	return &s, err
}

// OutboxRows is a page of messages of the outbox without their bodies, in the order in which relays look at them. It
// may be shorter than a page although there are more.
func (v *View) OutboxRows(ctx context.Context, f outbox.Filter, after string, limit int) (Page[OutboxRow], error) {
	return search(ctx, pageTime, func(ctx context.Context) (Page[OutboxRow], error) {
		all, next, err := v.o.Desk.Outbox().List(ctx, f, after, limit)
		return Page[OutboxRow]{OutboxOf(all), dedup.Cursor(next)}, err
	})
}

// OutboxMessage is all that the outbox has of the messages with a key, of all tags when tag is "". What of them may not
// be seen is taken out.
func (v *View) OutboxMessage(ctx context.Context, tag, key string) ([]OutboxRow, error) {
	return search(ctx, pageTime, func(ctx context.Context) ([]OutboxRow, error) {
		found, err := v.o.Desk.Outbox().Show(ctx, tag, key)
		all := OutboxOf(found)
		for i := range all {
			v.o.Hide.message(&all[i].Body, &all[i].Raw, &all[i].Headers)
		}
		return all, err
	})
}

// OutboxPreview is what a request would come to, of the first messages.
type OutboxPreview struct {
	Matched int         `json:"matched"`
	Left    int         `json:"left"` // a relay or a transaction has them in hand
	More    bool        `json:"more,omitempty"`
	Items   []OutboxRow `json:"items"`
}

// PreviewOutbox is what a request would come to.
func (v *View) PreviewOutbox(ctx context.Context, r operator.OutboxRequest) (OutboxPreview, error) {
	r.Why = "a preview needs none"
	if err := r.Check(); err != nil {
		return OutboxPreview{}, err
	}
	return search(ctx, ActsTime, func(ctx context.Context) (OutboxPreview, error) {
		c, err := r.Do(ctx, v.o.Desk.Outbox(), true, func(string, int) {})
		return OutboxPreview{c.Changed, c.Left, c.More, OutboxOf(c.Rows)}, err
	})
}

// ChangeOutbox is that.
func (v *View) ChangeOutbox(_ context.Context, r operator.OutboxRequest) (Doing, error) {
	ask := r.Task()
	ask.Alone = "outbox"
	return v.task(ask), r.Check()
}
