package deadletter

import (
	"errors"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// Message is what a handler would get when a letter is replayed.
type Message struct {
	dedup.Identity
	Body                   []byte
	Headers                map[string]any
	MessageID, ContentType string
	Replays                int
	PublishedAt            time.Time // zero when the producer said nothing of it
}

// ErrNoRehearsal says that nothing, or nothing more, can be rehearsed with a handler.
var ErrNoRehearsal = errors.New("it cannot be rehearsed")

// Prospect is what would become of a message.
type Prospect string

// The prospects.
const (
	WouldFail    Prospect = "blamed"  // an attempt would have failed, or it would be dead at once
	NotRehearsed Prospect = "refused" // the handler was not called, or what it asked for was not sent
	WouldWait    Prospect = "excused" // a server or a lock was in the way, or it is too early: no attempt
	WouldApply   Prospect = "applied"
)

// Prospects are all of them, in the order in which a person reads them.
func Prospects() []Prospect { return []Prospect{WouldFail, NotRehearsed, WouldWait, WouldApply} }

// Words say it to a person.
func (p Prospect) Words() string {
	return map[Prospect]string{
		WouldFail: "would fail", NotRehearsed: "not rehearsed", WouldWait: "would come later", WouldApply: "would be applied",
	}[p]
}

// Rehearsed is what a handler made of a message in a transaction that was rolled back.
type Rehearsed struct {
	Prospect Prospect
	Err      error // why it would not be applied
	// Changed are the rows that its statements changed, by table, as MySQL counts them; 0: rows that MySQL returned in
	// place of a number.
	Changed map[string]int64
}

// replayed is what a replay of a row that keeps its message has delivered.
func (l *Letters) replayed(row dedup.Row) *Message {
	d, id, _ := l.kept(row) // which it was judged by
	return messageOf(id.Identity, rabbit.Delivery{Message: wire.Copy(d, l.o.Queue, wire.CopyOptions{
		Identity: id, Replays: row.Replays + 1,
	})}, row.Replays+1)
}

func messageOf(k dedup.Identity, d rabbit.Delivery, replays int) *Message {
	m := &Message{Identity: k, Body: d.Body, Headers: d.Headers, MessageID: d.MessageID, ContentType: d.ContentType,
		Replays: replays}
	if at, ok := wire.PublishedAt(d.Message); ok {
		m.PublishedAt = at
	}
	return m
}
