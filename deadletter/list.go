package deadletter

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"time"
	"unicode/utf8"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// Letter is a dead letter as the consumer log knows it. The names of its JSON form are stable.
type Letter struct {
	Group    string       `json:"group"`
	Tag      string       `json:"tag"`
	Key      string       `json:"key"`
	Reason   dedup.Reason `json:"reason"`
	Attempts int          `json:"attempts"` // since the row was made or reopened
	Replays  int          `json:"replays"`
	DeadAt   time.Time    `json:"dead_at"`    // by the database's clock
	Created  time.Time    `json:"created_at"` // of the row
	Remark   string       `json:"remark"`     // the last error
	BodyHash string       `json:"body_sha256,omitempty"`
	Parked   bool         `json:"parked"` // replayed as often as Options.MaxReplays allows: only force replays it
}

// List reads a page of dead letters from the consumer log, the latest first. It never touches the queue. After is where
// the last page ended, "" for the first; the cursor returned is "" after the last page.
func (l *Letters) List(ctx context.Context, f Filter, after dedup.Cursor) ([]Letter, dedup.Cursor, error) {
	return l.Look(ctx, f, after, 0)
}

// Look is List for somebody who waits: no index leads to reasons and errors, and so it goes through so many letters at
// most, may find less than a page, or nothing, and all the same a cursor from where to look further; 0: through all.
func (l *Letters) Look(ctx context.Context, f Filter, after dedup.Cursor, through int) ([]Letter, dedup.Cursor, error) {
	q := f.query(l.o.Group)
	q.After = after
	rows, next, err := l.o.Records.Look(ctx, q, through, f.printed())
	if err != nil {
		return nil, "", fmt.Errorf("list dead letters: %w", err)
	}
	return mapped(rows, l.letterOf), next, nil
}

// printed chooses by fingerprint; nil when it need not.
func (f Filter) printed() func(dedup.Row) bool {
	if f.Fingerprint == "" {
		return nil
	}
	return func(row dedup.Row) bool { return Fingerprint(row.Remark) == f.Fingerprint }
}

// letterOf is a dead row as a letter, which may be parked.
func (l *Letters) letterOf(r dedup.Row) Letter {
	return Letter{
		Group: r.Group, Tag: r.Tag, Key: r.Key, Reason: r.Reason, Attempts: r.Attempts, Replays: r.Replays,
		DeadAt: r.DeadAt, Created: r.CreatedAt, Remark: r.Remark, BodyHash: hex.EncodeToString(r.BodyHash),
		Parked: isSpent(r, l.o.MaxReplays),
	}
}

// Reasons counts the dead letters that f chooses by their reasons, the most frequent first. It reads the consumer log
// only.
func (l *Letters) Reasons(ctx context.Context, f Filter) ([]dedup.ReasonCount, error) {
	counts, err := l.o.Records.CountReasons(ctx, f.query(l.o.Group))
	if err != nil {
		return nil, fmt.Errorf("count dead letters: %w", err)
	}
	return counts, nil
}

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
		Letter: l.letterOf(row), MessageID: row.MessageID, Properties: ln.Properties, Headers: ln.Headers,
		HeadersCut: ln.HeadersCut, BodyCut: ln.BodyCut, Events: mapped(events, shownEvent),
	}
	if utf8.Valid(row.Body) {
		s.Body = string(row.Body)
	} else {
		s.BodyBytes = row.Body
	}
	return s, nil
}

func shownEvent(e dedup.Event) ShownEvent {
	return ShownEvent{e.At, e.From.String(), e.To.String(), e.Attempt, e.Replays, cmp.Or(e.By, e.Owner), e.Error}
}

// exportPage is how many letters are looked up at a time, without their bodies.
const exportPage = 100

// Export writes the letters that f chooses to w, the latest first, as lines of NDJSON, and says how many. It reads the
// consumer log letter by letter, so that no more than one is in memory and a slow w holds no connection, and never
// touches the queue. A letter that dies or ends meanwhile may be missing.
func (l *Letters) Export(ctx context.Context, f Filter, w io.Writer) (n int, err error) {
	q := f.query(l.o.Group)
	for {
		q.Limit = exportPage
		if f.Limit > 0 {
			q.Limit = min(q.Limit, f.Limit-n)
		}
		rows, next, err := l.o.Records.Look(ctx, q, 0, f.printed())
		if err != nil {
			return n, fmt.Errorf("export dead letters: %w", err)
		}
		for _, row := range rows {
			wrote, err := l.export(ctx, row, w)
			if err != nil {
				return n, fmt.Errorf("export dead letters: %w", err)
			}
			if wrote {
				n++
			}
		}
		if next == "" || f.Limit > 0 && n >= f.Limit {
			return n, nil
		}
		q.After = next
	}
}

// export writes the letter of a row that was listed, if it is that yet.
func (l *Letters) export(ctx context.Context, listed dedup.Row, w io.Writer) (wrote bool, err error) {
	row, err := l.o.Records.Read(ctx, listed.Identity)
	if err != nil || row.Version != listed.Version {
		return false, err
	}
	ln, err := l.line(row)
	if err != nil {
		return false, err
	}
	if err := json.NewEncoder(w).Encode(ln); err != nil {
		return false, fmt.Errorf("write %v: %w", row.Identity, err)
	}
	return true, nil
}

// Line is a dead letter in an export, one JSON object a line. Its properties and headers are those that the letter has
// in the dead-letter queue, in the form of the column properties. The names are stable.
type Line struct {
	Group      string          `json:"group"`
	Tag        string          `json:"tag"`
	Key        string          `json:"key"`
	Reason     dedup.Reason    `json:"reason"`
	Remark     string          `json:"remark"`
	Replays    int             `json:"replays"`
	DeadAt     time.Time       `json:"dead_at"`
	BodyHash   string          `json:"body_sha256,omitempty"` // of the message, whatever became of body
	BodyCut    bool            `json:"body_cut,omitempty"`    // the log keeps the beginning of the body only
	HeadersCut bool            `json:"headers_cut,omitempty"` // the log keeps not all properties and headers
	Properties json.RawMessage `json:"properties"`
	Headers    json.RawMessage `json:"headers"`
	Body       []byte          `json:"body"` // base64
}

// maxLine is the longest line that is read: body and properties of the largest letter, with room for spaces.
const maxLine = 2 << 20

// ParseLine reads one line of an export. Its errors say what is wrong with it.
func ParseLine(text []byte) (Line, error) { return parseLine(text, false) }

// parseLine reads a line, or only what it is named.
func parseLine(text []byte, nameOnly bool) (Line, error) {
	var ln Line
	if err := json.Unmarshal(text, &ln); err != nil {
		return ln, fmt.Errorf("is no line of an export: %w", err)
	}
	switch {
	case ln.Tag == "" || ln.Key == "":
		return ln, errors.New("is no line of an export: it has no tag or no key")
	case nameOnly:
	case ln.Body == nil:
		return ln, errors.New("has no body")
	case len(ln.Body) > dedup.MaxBody:
		return ln, fmt.Errorf("has a body of %d bytes, at most %d", len(ln.Body), dedup.MaxBody)
	}
	return ln, nil
}

// line is a row as an export writes it.
func (l *Letters) line(row dedup.Row) (Line, error) {
	ln := Line{
		Group: row.Group, Tag: row.Tag, Key: row.Key, Reason: row.Reason, Remark: row.Remark, Replays: row.Replays,
		DeadAt: row.DeadAt, BodyHash: hex.EncodeToString(row.BodyHash), Body: row.Body,
	}
	sum := sha256.Sum256(row.Body)
	ln.BodyCut = len(row.BodyHash) > 0 && !bytes.Equal(row.BodyHash, sum[:])
	kept, err := wire.UnmarshalProperties(row.Properties)
	if err != nil { // none are kept, or a person has changed them: the rest is still worth having
		kept = rabbit.Delivery{Message: rabbit.Message{Type: row.Tag, MessageID: row.MessageID}}
	}
	ln.HeadersCut = err != nil || isCut(row.Properties)
	kept.Body = row.Body
	id, _ := l.identify(kept) // for the header that a copy must keep
	letter := rabbit.Delivery{Exchange: kept.Exchange, RoutingKey: kept.RoutingKey, Message: wire.Copy(kept, l.o.Queue,
		wire.CopyOptions{
			Identity: id, Attempt: row.Attempts, Replays: row.Replays, Error: row.Remark, Reason: dedup.Reason(row.Reason),
			DeadAt: row.DeadAt, FirstFailedAt: row.CreatedAt,
		})}
	fields := map[string]json.RawMessage{}
	text := wire.MarshalProperties(letter)
	if err := json.Unmarshal(text, &fields); err != nil {
		return ln, fmt.Errorf("write the properties of %v: %w", row.Identity, err)
	}
	ln.HeadersCut = ln.HeadersCut || isCut(text)
	ln.Headers = fields["headers"]
	maps.DeleteFunc(fields, func(name string, _ json.RawMessage) bool { return name == "headers" || name == "cut" })
	ln.Properties, err = json.Marshal(fields)
	return ln, err
}

func isCut(properties []byte) bool {
	var mark struct {
		Cut bool `json:"cut"`
	}
	return json.Unmarshal(properties, &mark) == nil && mark.Cut
}
