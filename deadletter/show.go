package deadletter

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/rollbackd/rollbackd/dedup"
)

// Shown is all that the consumer log knows of one dead letter. The names of its JSON form are stable.
type Shown struct {
	Letter
	MessageID  string          `json:"message_id,omitempty"`
	Properties json.RawMessage `json:"properties"`
	Headers    json.RawMessage `json:"headers"`
	HeadersCut bool            `json:"headers_cut,omitempty"` // the log keeps not all of them
	Body       string          `json:"body"`                  // when it is UTF-8
	BodyBytes  []byte          `json:"body_base64,omitempty"` // when it is not
	BodyCut    bool            `json:"body_cut,omitempty"`    // the log keeps its beginning only
	Events     []ShownEvent    `json:"events"`                // oldest first
}

// ShownEvent is a step of a letter's story.
type ShownEvent struct {
	At      time.Time `json:"at"`
	From    string    `json:"from"`
	To      string    `json:"to"`
	Attempt int       `json:"attempt"`
	Replays int       `json:"replays"`
	By      string    `json:"by,omitempty"` // a person, or the worker
	Error   string    `json:"error,omitempty"`
}

// Show reads the dead letters with a key from the consumer log, one for each tag; tag "" is any. It never touches the
// queue. None: no dead row has the key.
func (l *Letters) Show(ctx context.Context, key, tag string) ([]Shown, error) {
	q := Filter{Keys: []string{key}, Tag: tag}.query(l.o.Group)
	q.Bodies = true
	rows, _, err := l.o.Records.List(ctx, q)
	if err != nil {
		return nil, fmt.Errorf("show dead letter %q: %w", key, err)
	}
	shown := make([]Shown, len(rows))
	for i, row := range rows {
		events, err := l.o.Records.Events(ctx, row.Identity)
		if err == nil {
			shown[i], err = l.shown(row, events)
		}
		if err != nil {
			return nil, fmt.Errorf("show dead letter %q: %w", key, err)
		}
	}
	return shown, nil
}

func (l *Letters) shown(row dedup.Row, events []dedup.Event) (Shown, error) {
	ln, err := l.line(row)
	if err != nil {
		return Shown{}, err
	}
	s := Shown{
		Letter: letterOf(row, l.o.MaxReplays), MessageID: row.MessageID, Properties: ln.Properties, Headers: ln.Headers,
		HeadersCut: ln.HeadersCut, BodyCut: ln.BodyCut, Events: make([]ShownEvent, len(events)),
	}
	if utf8.Valid(row.Body) {
		s.Body = string(row.Body)
	} else {
		s.BodyBytes = row.Body
	}
	for i, e := range events {
		s.Events[i] = ShownEvent{
			At: e.At, From: e.From.String(), To: e.To.String(), Attempt: e.Attempt, Replays: e.Replays,
			By: cmp.Or(e.By, e.Owner), Error: e.Error,
		}
	}
	return s, nil
}
