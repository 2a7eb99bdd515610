package deadletter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// ErrNoEdit says why a message cannot be edited.
var ErrNoEdit = errors.New("it cannot be edited")

// Original is the message of a dead row with the headers of its producer, for whoever edits it: under its own tag and
// key, also when it is filed as conflict. ErrNoEdit: the row is not dead, or keeps too little.
func (l *Letters) Original(ctx context.Context, k dedup.Identity) (dedup.Row, Message, error) {
	row, err := l.o.Records.Read(ctx, k)
	if err != nil {
		return row, Message{}, err
	}
	if row.Status != dedup.Dead {
		return row, Message{}, fmt.Errorf("%w: %v is %v, and not dead", ErrNoEdit, k, row.Status)
	}
	d, id, err := l.kept(row)
	if err != nil {
		return row, Message{}, fmt.Errorf("%w: %v: %w", ErrNoEdit, k, err)
	}
	own, _ := l.identify(d)
	copied := wire.Copy(d, l.o.Queue, wire.CopyOptions{Identity: id})
	m := messageOf(dedup.Identity{Group: l.o.Group, Tag: copied.Type, Key: own.Identity.Key},
		rabbit.Delivery{Message: copied}, row.Replays)
	maps.DeleteFunc(m.Headers, func(name string, _ any) bool { return name == headerKey || !wire.ByProducer(name) })
	return row, *m, nil
}

const anew = "edited, sent anew as "

// SentAnew is said of a letter in whose place an edited message was sent.
func SentAnew(tag, key string) string { return fmt.Sprintf(anew+"%q %q", tag, key) }

var sentAnew = regexp.MustCompile(anew + `("(?:[^"\\]|\\.)*") ("(?:[^"\\]|\\.)*")$`)

// wasEdited reports whether another message was sent in a letter's place. Such a letter is never replayed: both would
// run. It is true also where the row's remark has no room for the names of the other.
func wasEdited(row dedup.Row) bool {
	return row.Status == dedup.Discarded && strings.Contains(row.Remark, ": "+anew)
}

// WasSentAnew reads SentAnew in the row of a letter, if there is room for all of it.
func WasSentAnew(row dedup.Row) (tag, key string, ok bool) {
	m := sentAnew.FindStringSubmatch(row.Remark)
	if m == nil || row.Status != dedup.Discarded {
		return "", "", false
	}
	tag, err := strconv.Unquote(m[1])
	key, err2 := strconv.Unquote(m[2])
	return tag, key, err == nil && err2 == nil
}

// headerKey is in what a relay sends.
const headerKey = "x-message-key"

// AsSent is who a message is for the daemon when a relay has sent it under its tag and key.
func (l *Letters) AsSent(m Message) (dedup.Identity, error) {
	headers := rabbit.Table{headerKey: m.Key}
	maps.Copy(headers, m.Headers)
	id, err := l.identify(rabbit.Delivery{RoutingKey: l.o.Queue, Message: rabbit.Message{
		Type: m.Tag, MessageID: m.Key, Headers: headers, ContentType: m.ContentType, Body: m.Body,
	}})
	return id.Identity, err
}

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
