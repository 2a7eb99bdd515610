package deadletter

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wire"
)

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
