package operator

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"unicode/utf8"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/outbox"
)

// EditRequest asks for a dead letter to be sent as another message. The names of its JSON form are stable.
type EditRequest struct {
	Tag string `json:"tag" maxLength:"100"` // of the letter's row, as Key
	Key string `json:"key" maxLength:"255"`
	// Body and Headers are those of the new message; headers are texts, numbers, true and false.
	Body    string         `json:"body"`
	Headers outbox.Headers `json:"headers,omitempty"`
	Why     string         `json:"why,omitempty" maxLength:"1000"`
}

// Edited is what became of it, or would. The names of its JSON form are stable.
type Edited struct {
	MessageName

	Sent MessageName `json:"sent"` // the new message
}

// MessageName is a message's tag and key. The names of its JSON form are stable.
type MessageName struct {
	Tag string `json:"tag"`
	Key string `json:"key"`
}

// String is both.
func (n MessageName) String() string { return "tag " + n.Tag + ", key " + n.Key }

// Editable is a dead letter as it can be edited.
type Editable struct {
	EditRequest

	// Lost are the headers that a message of the outbox cannot have.
	Lost []string
}

// Editable reads a dead letter. deadletter.ErrNoEdit says why it cannot be edited.
func (d *Operator) Editable(ctx context.Context, name MessageName) (Editable, error) {
	_, was, err := d.original(ctx, name)
	return editable(name, was), err
}

func editable(name MessageName, was deadletter.Message) Editable {
	e := Editable{EditRequest: EditRequest{
		Tag: name.Tag, Key: name.Key, Body: string(was.Body), Headers: map[string]any{},
	}}
	for header, v := range was.Headers {
		one := outbox.Message{Tag: "t", Key: "k", Headers: map[string]any{header: v}}
		if one.Validate() != nil {
			e.Lost = append(e.Lost, header)
		} else {
			e.Headers[header] = v
		}
	}
	return e
}

func (d *Operator) original(ctx context.Context, name MessageName) (dedup.Row, deadletter.Message, error) {
	row, was, err := d.o.Letters.Original(ctx, dedup.Identity{Group: d.o.Group, Tag: name.Tag, Key: name.Key})
	if err == nil && !utf8.Valid(was.Body) {
		err = fmt.Errorf("%w: its body is no text: `dlq export` has it", deadletter.ErrNoEdit)
	}
	return row, was, err
}

// edited is the new message, and the row of the letter. Nothing is changed yet.
func (d *Operator) edited(ctx context.Context, r EditRequest) (row dedup.Row, m outbox.Message, err error) {
	refuse := func(format string, args ...any) (dedup.Row, outbox.Message, error) {
		return row, m, fmt.Errorf("%w: %w", deadletter.ErrNoEdit, fmt.Errorf(format, args...))
	}
	name := MessageName{r.Tag, r.Key}
	row, was, err := d.original(ctx, name)
	if err != nil {
		return row, m, err
	}
	now := editable(name, was)
	before, _ := json.Marshal(now.Headers) // which were read from JSON
	after, err := json.Marshal(r.Headers)
	switch {
	case err != nil:
		return refuse("its headers: %w", err)
	case r.Body == now.Body && (len(r.Headers)+len(now.Headers) == 0 || bytes.Equal(before, after)):
		return refuse("nothing of it is changed: replay it")
	}
	m = outbox.Message{
		Tag: was.Tag, Body: []byte(r.Body), Headers: r.Headers, ContentType: was.ContentType,
		Exchange: outbox.DefaultExchange, RoutingKey: d.o.Queue, // no other queue that is bound beside it
	}
	if m.Key, err = d.freeKey(ctx, m.Tag, r.Key); err != nil {
		return row, m, err
	}
	if err := m.Validate(); err != nil {
		return refuse("%w", err)
	}
	sent := deadletter.Message{Identity: dedup.Identity{Group: d.o.Group, Tag: m.Tag, Key: m.Key}, Body: m.Body,
		Headers: m.Headers, ContentType: m.ContentType}
	if id, err := d.o.Letters.AsSent(sent); err != nil || id != sent.Identity {
		return refuse("ROLLBACKD_KEY_FROM takes the key of the new message from elsewhere, so it would be %v and not %v; "+
			"`dlq replay --from` mends a body under the key that it has", id, sent.Identity)
	}
	return row, m, nil
}

// editedKeys bounds how many keys are tried for a new message.
const editedKeys = 100

// freeKey is a key that no message has: it says from which one it comes.
func (d *Operator) freeKey(ctx context.Context, tag, of string) (string, error) {
	for n := 1; n <= editedKeys; n++ {
		key := of + "/edited-" + strconv.Itoa(n)
		k := dedup.Identity{Group: d.o.Group, Tag: tag, Key: key}
		if err := k.Validate(); err != nil {
			return "", fmt.Errorf("%w: a new key, which begins with its key, is none: %w", deadletter.ErrNoEdit, err)
		}
		row, err := d.o.Records.Read(ctx, k)
		if err != nil {
			return "", err
		}
		waits, err := d.Outbox().Show(ctx, tag, key)
		switch {
		case errors.Is(err, outbox.ErrNoTable):
			return "", fmt.Errorf("%w: an edited letter goes through the outbox, and %w. `rollbackd migrate --outbox` makes "+
				"one, and daemons with ROLLBACKD_OUTBOX=on send what is in it", deadletter.ErrNoEdit, err)
		case err != nil:
			return "", err
		case row.Status == dedup.Absent && len(waits) == 0:
			return key, nil
		}
	}
	return "", fmt.Errorf("%w: it was edited %d times", deadletter.ErrNoEdit, editedKeys)
}

// EditPreview is what would be sent, and what the handler of this process would do with it; NoRehearsal is why that is
// not known.
type EditPreview struct {
	Edited

	Rehearsed   *deadletter.Rehearsed
	NoRehearsal string
}

// PreviewEdit says what would be sent, and what it would do. It changes nothing.
func (d *Operator) PreviewEdit(ctx context.Context, r EditRequest) (p EditPreview, err error) {
	row, m, err := d.edited(ctx, r)
	if err != nil {
		return p, err
	}
	p.Edited = Edited{MessageName{r.Tag, r.Key}, MessageName{m.Tag, m.Key}}
	if d.o.Rehearse == nil {
		p.NoRehearsal = "this process has no handler: the page of a daemon that consumes rehearses it"
		return p, nil
	}
	if mayKill(dedup.Reason(row.Reason)) {
		p.NoRehearsal = killed
		return p, nil
	}
	if err = d.rollsBack(ctx); err == nil {
		var did deadletter.Rehearsed
		did, err = d.o.Rehearse(ctx, deadletter.Message{Identity: dedup.Identity{Group: d.o.Group, Tag: m.Tag,
			Key: m.Key}, Body: m.Body, Headers: m.Headers, MessageID: m.Key, ContentType: m.ContentType})
		p.Rehearsed = &did
	}
	if errors.Is(err, deadletter.ErrNoRehearsal) {
		p.Rehearsed, p.NoRehearsal, err = nil, err.Error(), nil
	}
	return p, err
}

// Edit ends a dead letter and puts the edited message, which has a key of its own, into the outbox, in one transaction:
// so never do both run. Its act is written there too. The same id again is the same act.
func (d *Operator) Edit(ctx context.Context, who Actor, id string, r EditRequest) (Act, error) {
	if id != "" {
		if a, err := d.Act(ctx, id); !errors.Is(err, ErrNoAct) {
			return a, err
		}
	}
	row, m, err := d.edited(ctx, r)
	if err != nil {
		return Act{}, err
	}
	did := Edited{MessageName{r.Tag, r.Key}, MessageName{m.Tag, m.Key}}
	n, err := newDraft(who, TaskRequest{ID: id, Kind: KindEdit, Why: r.Why, Detail: did})
	if err != nil {
		return Act{}, err
	}
	n.work = workSweep // its letter lies in the queue yet
	err = mysqldb.InTx(ctx, d.db, func(tx *sql.Tx) error {
		err := d.insert(ctx, tx, n)
		if err == nil {
			err = d.o.Records.DiscardIn(ctx, tx, dedup.Discarding{
				From: row, Entry: dedup.Entry{Identity: row.Identity}, By: n.story(), Why: deadletter.SentAnew(m.Tag, m.Key),
			})
		}
		if err == nil {
			err = outbox.Put(ctx, tx, m)
		}
		return err
	})
	switch {
	case errors.Is(err, errActExists):
		return d.Act(ctx, n.ID)
	case errors.Is(err, dedup.ErrLost), errors.Is(err, dedup.ErrStale), errors.Is(err, outbox.ErrConflict):
		return Act{}, fmt.Errorf("%w: %v: somebody else has replayed, ended or edited it just now: %w", deadletter.ErrNoEdit,
			row.Identity, err)
	case err != nil:
		return Act{}, fmt.Errorf("edit %v: %w", row.Identity, err)
	}
	d.waken()
	return d.Act(ctx, n.ID)
}

// sentAs is the message that was sent in a row's place.
func sentAs(row dedup.Row) *MessageName {
	if tag, key, ok := deadletter.WasSentAnew(row); ok {
		return &MessageName{tag, key}
	}
	return nil
}

var editedKey = regexp.MustCompile(`^((?s).+)/edited-[0-9]+$`)

// linkEdits says of each message as what it was sent anew, and of which one it is the edited form.
func (o Lookup) linkEdits(ctx context.Context, t *Told) error {
	for i := range t.Messages {
		m := &t.Messages[i]
		m.SentAs = sentAs(m.Row)
		of := editedKey.FindStringSubmatch(m.Row.Key)
		if of == nil {
			continue
		}
		rows, _, err := o.Records.List(ctx, dedup.Filter{
			Group: o.Group, Keys: []string{of[1]}, Statuses: []dedup.Status{dedup.Discarded}, Limit: dedup.MaxListed,
		})
		if err != nil {
			return err
		}
		for _, row := range rows {
			if as := sentAs(row); as != nil && as.Key == m.Row.Key && as.Tag == m.Row.Tag {
				m.EditedFrom = &MessageName{row.Tag, row.Key}
			}
		}
	}
	return nil
}
