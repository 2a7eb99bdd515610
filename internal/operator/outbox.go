package operator

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/wire"
	"github.com/rollbackd/rollbackd/outbox"
)

// OutboxRequest is what is asked of rows of the outbox. The names of its JSON form are stable.
type OutboxRequest struct {
	Kind   Kind          `json:"kind" enum:"outbox_retry,outbox_drop"`
	Filter outbox.Filter `json:"filter"`
	All    bool          `json:"all,omitempty"` // the filter may be empty
	// Force lets a drop take what still waits or is tried again.
	Force bool   `json:"force,omitempty"`
	Why   string `json:"why,omitempty" maxLength:"1000"` // required to drop
}

// String is what was chosen, as the commands write it.
func (r OutboxRequest) String() string {
	text, f := "", r.Filter
	add := func(name, value string) {
		if value != "" {
			text += " --" + name + " " + value
		}
	}
	add("state", string(f.State))
	add("tag", f.Tag)
	for _, key := range f.Keys {
		add("key", key)
	}
	for i, at := range []time.Time{f.Since, f.Until} {
		if !at.IsZero() {
			add([]string{"since", "until"}[i], at.UTC().Format(time.RFC3339Nano))
		}
	}
	if r.All {
		text += " --all"
	}
	if r.Force {
		text += " --force"
	}
	return strings.TrimSpace(text)
}

// Check says what is wrong with it.
func (r OutboxRequest) Check() error {
	f := r.Filter
	narrow := f.State != "" || f.Tag != "" || len(f.Keys) > 0 || !f.Since.IsZero() || !f.Until.IsZero()
	err := f.Check()
	return cmp.Or(refuseIf(r.Kind != KindOutboxRetry && r.Kind != KindOutboxDrop, "%q of the outbox, want %s or %s",
		string(r.Kind), KindOutboxRetry, KindOutboxDrop),
		refuseIf(r.Kind == KindOutboxDrop && strings.TrimSpace(r.Why) == "", "say why these messages may never be sent"),
		refuseIf(!narrow && !r.All, "which messages? All, or a condition"), refuseIf(err != nil, "%w", err))
}

// Task is it as an act, which has the reason.
func (r OutboxRequest) Task() TaskRequest {
	t := TaskRequest{Kind: r.Kind, Why: strings.TrimSpace(r.Why)}
	r.Why = ""
	t.Detail = r
	return t
}

// Do does what is asked for to the rows of an outbox.
func (r OutboxRequest) Do(
	ctx context.Context, rows outbox.Rows, dryRun bool, progress func(string, int),
) (outbox.Changed, error) {
	c := outbox.Change{Force: r.Force, DryRun: dryRun, Progress: func(n int) { progress("rows", n) }}
	if r.Kind == KindOutboxDrop {
		return rows.Drop(ctx, r.Filter, c)
	}
	return rows.Retry(ctx, r.Filter, c)
}

// ResultOf is what it came to, as an act has it: what was dropped stays known by its first names.
func (r OutboxRequest) ResultOf(c outbox.Changed) Result {
	text, _ := json.Marshal(c) // which has a JSON form
	result := Result{LeftCount: c.Left, Report: text}
	if r.Kind == KindOutboxDrop {
		result.Deleted = c.Changed
	} else {
		result.Retried = c.Changed
	}
	return result
}

// Outbox is that of the schema of the log.
func (d *Operator) Outbox() outbox.Rows { return outbox.Rows{DB: d.db} }

// changeOutbox is the task of KindOutboxRetry and KindOutboxDrop. Whoever begins it again goes on.
func (d *Operator) changeOutbox(ctx context.Context, t Task, r OutboxRequest) (any, error) {
	c, err := r.Do(ctx, d.Outbox(), false, t.Progress)
	return r.ResultOf(c), err
}

// pruneOutbox deletes what is parked for longer than the retention. No message goes in silence: an act names the first
// of them, and the log counts them.
func (m *Maintenance) pruneOutbox(ctx context.Context) error {
	now, err := m.d.o.Records.Clocks(ctx)
	if err != nil {
		return err
	}
	r := OutboxRequest{Kind: KindOutboxDrop, Why: "parked for longer than ROLLBACKD_LOG_RETENTION",
		Filter: outbox.Filter{State: outbox.Parked, Until: now.Add(-m.d.o.Retention)}}
	some, _, err := m.d.Outbox().List(ctx, r.Filter, "", 1)
	if errors.Is(err, outbox.ErrNoTable) || err == nil && len(some) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	var gone outbox.Changed
	err = m.d.Do(ctx, Actor{Name: "retention"}, r.Task(), func(ctx context.Context, t Task) (Result, error) {
		var err error
		gone, err = r.Do(ctx, m.d.Outbox(), false, t.Progress)
		return r.ResultOf(gone), err
	})
	if gone.Changed > 0 {
		m.Logger.WarnContext(ctx, "deleted messages of the outbox that were parked for longer than "+
			"ROLLBACKD_LOG_RETENTION: they were not sent, unless a try before that was", "messages", gone.Changed,
			"tag", gone.Rows[0].Tag, "key", gone.Rows[0].Key, "reason", gone.Rows[0].Reason)
	}
	return err
}

// outboxOf adds what the outbox has of the messages with a key, of which the log may know nothing yet.
func (o Lookup) outboxOf(ctx context.Context, t *Told, tag, key string) error {
	rows, err := outbox.Rows{DB: o.Records.Pool()}.Show(ctx, tag, key)
	if err != nil && !errors.Is(err, outbox.ErrNoTable) {
		return err
	}
	for i := range rows {
		k := dedup.Identity{Group: o.Group, Tag: rows[i].Tag, Key: rows[i].Key}
		if !t.has(k) {
			t.Messages = append(t.Messages, Message{Row: dedup.Row{
				Identity: k, Version: dedup.Version{Status: dedup.Absent}, Body: rows[i].Body,
			}})
		}
		for j := range t.Messages {
			if t.Messages[j].Row.Identity == k {
				t.Messages[j].Outbox = &rows[i]
			}
		}
	}
	return nil
}

// waiting says what it means that a message is in the outbox, and what to do about it.
func waiting(r *outbox.Row, names Names) (means, next string) {
	act := fmt.Sprintf("`%s outbox retry %s`, or `%[1]s outbox drop --why … %[2]s`", names.Program,
		ChosenBy(dedup.Identity{Tag: r.Tag, Key: r.Key}))
	switch r.State {
	case outbox.Waiting:
		return "It waits in the outbox for its time. No consumer has seen it.", "Nothing."
	case outbox.Due:
		return "It is to be sent from the outbox, or was and is not confirmed yet.", "Does a relay run?"
	case outbox.Refused:
		return "RabbitMQ does not take it, see the story. It is tried again.", "Mend the cause; it is sent by itself then."
	}
	return "It is parked in the outbox, see the story: nobody sends it.", "Mend the cause, then " + act + "."
}

// sending is the story of a message before its first delivery: by its row in the outbox, or, once that is gone, by what
// the relay has told of it.
func sending(m Message) (all []Step) {
	step := func(at time.Time, what, note string) {
		if !at.IsZero() {
			all = append(all, Step{At: at, What: what, Error: note})
		}
	}
	if r := m.Outbox; r != nil {
		step(r.PutAt, "put into the outbox", "")
		if r.DueAt.After(r.PutAt) {
			step(r.DueAt, "due to be sent", "")
		}
		step(r.FailedAt, "not taken by RabbitMQ", r.Reason)
		step(r.ParkedAt, "parked in the outbox", r.Reason)
		return all
	}
	s, ok := wire.SendingOf(m.Row.Remark)
	if !ok {
		d, err := wire.UnmarshalProperties(m.Row.Properties)
		if err != nil {
			return nil
		}
		s = wire.ReadSending(d.Headers)
	}
	step(s.Put, "put into the outbox", "")
	if s.Due.After(s.Put) {
		step(s.Due, "due to be sent", "")
	}
	step(s.Sent, "sent by a relay", "confirmed since then: its row has left the outbox")
	if ok {
		step(m.Row.CreatedAt, "delivered", "")
	}
	return all
}
