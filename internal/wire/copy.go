package wire

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

const (
	// maxHeaderBytes bounds the headers of a copy. RabbitMQ's frame_max is 131,072 bytes, which must also hold the
	// properties (at most 2.3 KB) and the x-death that the broker adds on every way through a retry queue.
	maxHeaderBytes = 120 << 10
	// maxHeaders bounds their number: the client library gives up a connection on which a table of more than 8,192 entries
	// arrives.
	maxHeaders = 8000
)

// CopyOptions is what a copy says besides what the message says.
type CopyOptions struct {
	Identity Identified // as Identify (or Conflict) returned it
	Attempt  int        // attempts made so far
	Replays  int        // the row's
	Error    string     // the last error; cut to MaxErrorBytes
	// Deliveries is how often the message came back unsettled so far. The broker counts that for each copy anew, so
	// without it a message that kills every process, and waits in between for the dead process's lock, would look new
	// for ever.
	Deliveries int

	// Reason makes the copy a dead letter.
	Reason dedup.Reason
	// DeadAt is when; zero with a Reason means now. Without a Reason it says that the copy still is the letter of its row,
	// moved by hand and not taken up yet; zero then means that it is none.
	DeadAt time.Time
	// FirstFailedAt is when the message first failed. Zero takes it over from an earlier copy, else means now if there is
	// an Error.
	FirstFailedAt time.Time
}

// Copy makes the message that carries d on: to a retry queue, the dead-letter queue, or back to the main queue named
// queue. It is persistent, keeps body, message_id, correlation_id, reply_to, app_id, content type and encoding,
// timestamp, priority and the producer's headers, and carries the tag as its type. Left out is what would close the
// publishing channel, send further copies or let the copy vanish: user_id, expiration, CC, BCC, and what the broker
// noted about the delivery.
//
// Headers that are too large for one AMQP frame together with ours are replaced by their digest, the largest first;
// beyond that the ones that name no key are dropped and counted in x-rollbackd-dropped-headers. Of headers that the
// client library did not read the mark stays. The identity stays in each case.
func Copy(d rabbit.Delivery, queue string, o CopyOptions) rabbit.Message {
	m := onItsWay(d, queue, isForeign)
	if mark, ok := rabbit.ReadUnreadable(d.Headers); ok {
		m.Headers[HeaderUnreadable] = mark.String()
	}
	earlier := ReadCopy(d.Headers)
	dropped, _ := rabbit.Int(d.Headers[HeaderDropped])
	o.write(m.Headers, earlier)
	if dropped = max(dropped, 0) + int64(fit(m.Headers, o.Identity.header)); dropped > 0 {
		m.Headers[HeaderDropped] = dropped
	}
	return m
}

// Carry makes the message that stands in the main queue for d, which waits in another queue, named from. It is what
// [Copy] makes, but says nothing of its own: no attempt was made, and what a copy or a letter of ours says of itself
// stays with it. It has the identity that d has when d is read as a message of from; whatever broker or shop did with d
// there, a retry through a dead-letter exchange for example, does not give it another one.
//
// A message whose headers nobody can read has no such stand-in: the error says why.
func Carry(d rabbit.Delivery, from string) (rabbit.Message, error) {
	if mark, ok := rabbit.ReadUnreadable(d.Headers); ok {
		return rabbit.Message{}, fmt.Errorf("its headers cannot be read: %s (%d bytes)", mark.Why, mark.Bytes)
	}
	return onItsWay(d, from, func(string) bool { return true }), nil
}

// onItsWay is the message that d, which came from queue, is on its way to another queue: persistent, without what would
// close the publishing channel, send further copies or let it vanish, and with what its identity is made of. Of the
// other headers it has those that keep chooses.
func onItsWay(d rabbit.Delivery, queue string, keep func(header string) bool) rabbit.Message {
	exchange, key := firstRoute(&d, queue)
	m := d.Message
	m.UserID, m.Expiration, m.DeliveryMode = "", "", rabbit.Persistent
	if m.Type == "" {
		m.Type = key // unusable or not: what the tag is made of stays the same
	}
	if strings.HasPrefix(m.ReplyTo, "amq.rabbitmq.reply-to") {
		m.ReplyTo = "" // direct reply-to: refused by the broker on a channel that does not wait for the answer
	}
	m.Headers = make(rabbit.Table, len(d.Headers)+8)
	for name, v := range d.Headers {
		if !rabbit.BrokerWrites(name) && keep(name) {
			m.Headers[name] = v
		}
	}
	m.Headers[HeaderExchange], m.Headers[HeaderRoutingKey] = exchange, key
	if at, ok := PublishedAt(d.Message); ok {
		m.Headers[HeaderPublishedAt] = at.UnixMilli()
	}
	return m
}

func (o *CopyOptions) write(h rabbit.Table, earlier CopyInfo) {
	for name, n := range map[string]int{
		HeaderAttempt: o.Attempt, HeaderReplays: o.Replays, HeaderDeliveries: min(o.Deliveries, math.MaxInt32),
	} {
		if n > 0 {
			h[name] = int64(n)
		}
	}
	first, dead := cmp.Or(o.FirstFailedAt, earlier.FirstFailedAt), o.DeadAt
	if o.Error != "" {
		h[HeaderError] = cutText(o.Error, MaxErrorBytes)
		first = cmp.Or(first, time.Now())
	}
	if o.Reason != "" {
		h[HeaderReason] = string(o.Reason)
		dead = cmp.Or(dead, time.Now())
	}
	for name, at := range map[string]time.Time{HeaderFirstFailedAt: first, HeaderDeadAt: dead} {
		if !at.IsZero() {
			h[name] = writeTime(at)
		}
	}
}

// fit makes the headers small enough, sparing ours and keep, and counts what it dropped.
func fit(h rabbit.Table, keep string) (dropped int) {
	size := tableBytes(h)
	if size <= maxHeaderBytes && len(h) <= maxHeaders {
		return 0
	}
	foreign := foreignBySize(h)
	for _, name := range foreign {
		if size <= maxHeaderBytes {
			break
		}
		if n := valueBytes(h[name]); n > maxKeptValue+5 {
			h[name] = standIn(h[name])
			size += valueBytes(h[name]) - n
		}
	}
	for _, name := range foreign {
		if size <= maxHeaderBytes && len(h) <= maxHeaders {
			break
		}
		if name != keep && name != HeaderPublishedAt {
			size -= 1 + len(name) + valueBytes(h[name])
			delete(h, name)
			dropped++
		}
	}
	return dropped
}

// foreignBySize lists the producer's headers, the largest first.
func foreignBySize(h rabbit.Table) []string {
	names := slices.DeleteFunc(slices.Collect(maps.Keys(h)), func(name string) bool { return !isForeign(name) })
	sizes := make(map[string]int, len(names))
	for _, name := range names {
		sizes[name] = valueBytes(h[name])
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(sizes[b]-sizes[a], strings.Compare(a, b)) })
	return names
}

// ByProducer reports whether a header is neither a daemon's nor of when a relay or a producer sent the message.
func ByProducer(name string) bool {
	return isForeign(name) && name != HeaderPublishedAt && name != rabbit.HeaderPutAt && name != rabbit.HeaderSentAt
}

func isForeign(name string) bool { return !strings.HasPrefix(name, ownPrefix) }

// tableBytes is at least the size of a table on the wire.
func tableBytes(t rabbit.Table) int {
	size := 4
	for name, v := range t {
		size += 1 + len(name) + valueBytes(v)
	}
	return size
}

func valueBytes(v any) int {
	if text, ok := textOf(v); ok {
		return 5 + len(text)
	}
	switch v := v.(type) {
	case rabbit.Table:
		return 1 + tableBytes(v)
	case []any:
		size := 5
		for _, e := range v {
			size += valueBytes(e)
		}
		return size
	}
	return 9
}
