package main

import (
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/story"
	"github.com/rollbackd/rollbackd/stock"
)

// explanation is all that is known of one identity. The names of its JSON form are stable.
type explanation struct {
	Group     string       `json:"group"`
	Tag       string       `json:"tag"`
	Key       string       `json:"key"`
	Status    string       `json:"status"`
	Reason    dedup.Reason `json:"reason,omitempty"` // why it is dead
	Attempts  int          `json:"attempts"`
	Of        int          `json:"max_attempts"`
	Replays   int          `json:"replays"`
	Owner     string       `json:"owner,omitempty"` // of the last claim or replay
	Since     time.Time    `json:"since"`           // the last transition, by the database's clock
	Created   time.Time    `json:"created_at"`
	DeadAt    *time.Time   `json:"dead_at,omitempty"`
	Remark    string       `json:"remark,omitempty"`
	MessageID string       `json:"message_id,omitempty"`
	Hash      string       `json:"body_sha256,omitempty"`
	Body      string       `json:"body,omitempty"`       // as it was, when it is UTF-8
	Raw       string       `json:"body_hex,omitempty"`   // when it is not
	Props     string       `json:"properties,omitempty"` // AMQP properties and headers, as JSON
	// the original key of a conflict or of what could not be identified
	FiledFor string  `json:"filed_for,omitempty"`
	Lock     string  `json:"lock"`             // in words
	Copies   string  `json:"copies,omitempty"` // in the dead-letter queue, in words
	Story    []event `json:"story"`            // oldest first
	Means    string  `json:"means"`            // in words
	Next     string  `json:"next"`             // what to do

	Reservations []reservation `json:"reservations"` // of its order
}

// reservation is what an order has or had reserved.
type reservation struct {
	Order    string    `json:"order_sn"`
	SKU      int64     `json:"sku_id"`
	Quantity int64     `json:"quantity"`
	Status   string    `json:"status"`
	Since    time.Time `json:"since"`
	Tag      string    `json:"rollback_tag,omitempty"` // who released or refused it
	Key      string    `json:"rollback_key,omitempty"`
}

func reservations(rows []stock.Reservation) []reservation {
	all := []reservation{}
	for _, r := range rows {
		all = append(all, reservation{r.OrderSN, r.SKU, r.Quantity, r.Status, r.UpdatedAt, r.Tag, r.Key})
	}
	return all
}

// event is one step of the story.
type event struct {
	At      time.Time `json:"at"`
	What    string    `json:"what"` // in words
	From    string    `json:"from,omitempty"`
	To      string    `json:"to,omitempty"`
	Attempt int       `json:"attempt"`
	Replays int       `json:"replays"`
	Owner   string    `json:"owner,omitempty"`
	By      string    `json:"by,omitempty"`
	Error   string    `json:"error,omitempty"`
}

func explainMessage(cfg config.Config, m story.Message, program string) explanation {
	row, key := m.Row, m.Row.Identity
	e := explanation{
		Group: key.Group, Tag: key.Tag, Key: key.Key, Status: row.Status.String(), Reason: row.Reason, FiledFor: m.FiledFor,
		Attempts: row.Attempts, Of: cfg.MaxAttempts, Replays: row.Replays, Owner: row.Owner,
		Since: row.At, Created: row.CreatedAt, Remark: row.Remark, MessageID: row.MessageID,
		Hash: hex.EncodeToString(row.BodyHash), Props: string(row.Properties), Reservations: reservations(m.Reservations),
	}
	if !row.DeadAt.IsZero() {
		e.DeadAt = &row.DeadAt
	}
	if utf8.Valid(row.Body) {
		e.Body = string(row.Body)
	} else {
		e.Raw = hex.EncodeToString(row.Body)
	}
	e.Story = tell(m)
	e.Means, e.Next = meaning(row, cfg, program)
	return e
}

// firstSuccess says how a row without a story came to be success.
func firstSuccess(row dedup.Row) string {
	if row.TakenOver() {
		return "absent → success, in the log before rollbackd's"
	}
	return "absent → success, in a batch"
}

// tell joins the story of a message with what its order's reservations say, oldest first.
func tell(m story.Message) []event {
	all := []event{}
	applied := false
	for _, s := range m.Events {
		what := s.From.String() + " → " + s.To.String()
		if s.From == s.To {
			what = s.To.String()
		}
		all = append(all, event{s.At, what, s.From.String(), s.To.String(), s.Attempt, s.Replays, s.Owner, s.By, s.Error})
		applied = applied || s.To == dedup.Success
	}
	if m.Row.Status == dedup.Success && !applied { // the fast path writes no events
		all = append(all, event{
			At: m.Row.At, What: firstSuccess(m.Row), From: dedup.Absent.String(), To: dedup.Success.String(),
			Attempt: m.Row.Attempts, Replays: m.Row.Replays,
		})
	}
	for _, r := range m.Reservations {
		by := ""
		if r.Named {
			by = r.Tag + " " + r.Key
		}
		what := fmt.Sprintf("order %s, sku %d: %d %s", r.OrderSN, r.SKU, r.Quantity, r.Status)
		if r.SKU == 0 { // the mark of a message without items
			what = fmt.Sprintf("order %s, whatever it reserves later: %s", r.OrderSN, r.Status)
		}
		all = append(all, event{At: r.UpdatedAt, What: what, By: by})
	}
	slices.SortStableFunc(all, func(a, b event) int { return a.At.Compare(b.At) })
	return all
}

// write tells it to a person.
func (e explanation) write(w io.Writer) error {
	status := e.Status
	if e.Reason != "" && e.DeadAt != nil {
		status += " (" + string(e.Reason) + ")"
	}
	facts := table{header: []string{"identity", fmt.Sprintf("group %s, tag %s, key %s", e.Group, e.Tag, e.Key)}}
	if e.Status == dedup.Absent.String() {
		facts.add("status", status)
	} else {
		facts.add("status", status+" since "+e.Since.Format(time.RFC3339))
		facts.add("attempts", fmt.Sprintf("%d of %d, replays %d", e.Attempts, e.Of, e.Replays))
	}
	add := func(name, value string) {
		if value != "" {
			facts.add(name, value)
		}
	}
	add("filed for", e.FiledFor)
	add("owner", e.Owner)
	if e.Status == dedup.Success.String() && (e.Attempts > 1 || e.Replays > 0) {
		add("before that", e.Remark)
	} else {
		add("remark", e.Remark)
	}
	add("message id", e.MessageID)
	add("body sha256", e.Hash)
	add("body", shorten(e.Body, 400))
	add("body in hex", shorten(e.Raw, 400))
	add("lock", e.Lock)
	add("copies", e.Copies)
	facts.add("this means", e.Means)
	facts.add("what next", e.Next)
	if err := writeTable(w, facts); err != nil || len(e.Story) == 0 {
		return err
	}
	story := table{header: []string{"AT", "WHAT", "ATTEMPT", "REPLAYS", "BY", "NOTE"}}
	for _, s := range e.Story {
		by, attempt, replays := s.By, "", ""
		if by == "" {
			by = s.Owner
		}
		if s.To != "" {
			attempt, replays = fmt.Sprint(s.Attempt), fmt.Sprint(s.Replays)
		}
		story.add(s.At.Format("2006-01-02T15:04:05.000Z"), s.What, attempt, replays, by, shorten(s.Error, 200))
	}
	if _, err := io.WriteString(w, "\n"); err != nil {
		return err
	}
	return writeTable(w, story)
}
