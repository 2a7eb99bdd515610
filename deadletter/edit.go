package deadletter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"

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
