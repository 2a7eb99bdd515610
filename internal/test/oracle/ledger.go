package oracle

import (
	"cmp"
	"context"
	"crypto/sha256"
	"slices"
	"sync"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// Fate is what must become of a message. The zero value leaves it open.
type Fate struct {
	applied bool
	reason  dedup.Reason
}

// ToBeApplied says that nothing is wrong with the message: whatever else happens, it is applied.
func ToBeApplied() Fate { return Fate{applied: true} }

// ToDie says that the message must end as a dead letter for this reason.
func ToDie(reason dedup.Reason) Fate { return Fate{reason: reason} }

// Sent is one publish of a message.
type Sent struct {
	rabbit.Publishing
	Fate Fate
	// Order, if not empty, is the order whose reservations the message gives back, all of them.
	Order string
}

// Ledger is what the producer knows: every publish and the broker's answer to it. It is safe for many goroutines.
type Ledger struct {
	group, queue string
	sources      []wire.KeySource

	mu           sync.Mutex
	messages     map[name]*message // guarded by mu
	attempt, ack int               // publishes tried and confirmed; guarded by mu
}

// name is what tells messages apart: the identity that the producer gave it, and the body.
type name struct {
	key  dedup.Identity
	hash [sha256.Size]byte
}

// message is everything known of one message.
type message struct {
	conflict dedup.Identity // its identity when another body has taken its key
	fate     Fate
	order    string
	copies   int // publishes tried
	acked    int // of them confirmed

	nameless bool     // nobody but a daemon can say what it is called: it is known by its body
	rows     []rowKey // of a nameless one: all that have its body, found when it is judged
	own      rowKey   // the row that speaks of it, or that it would get; likewise
}

// NewLedger makes an empty ledger for messages to w.
func (w World) NewLedger() (*Ledger, error) {
	sources, err := wire.ParseKeySources(w.KeyFrom)
	return &Ledger{group: w.Group, queue: w.Queue, sources: sources, messages: map[name]*message{}}, err
}

// Publish publishes through p and writes down every answer; it returns what was not confirmed, and the first refusal.
func (l *Ledger) Publish(ctx context.Context, p *rabbit.Publisher, sent []Sent) (open []Sent, err error) {
	batch := make([]rabbit.Publishing, len(sent))
	for i := range sent {
		batch[i] = sent[i].Publishing
	}
	for i, refused := range p.Publish(ctx, batch) {
		l.Record(sent[i], refused)
		if refused != nil {
			open, err = append(open, sent[i]), cmp.Or(err, refused)
		}
	}
	return open, err
}

// Record writes down one publish; refused is the broker's answer, nil when it confirmed and routed the message.
func (l *Ledger) Record(s Sent, refused error) {
	// an unidentified message has a name too
	id, _ := wire.Identify(l.group, l.sources, l.queue, rabbit.Delivery{
		Message: s.Message, Exchange: s.Exchange, RoutingKey: s.Key,
	})
	conflict, _ := wire.Conflict(id, s.Body)
	l.record(name{id.Identity, id.BodyHash}, message{conflict: conflict.Identity, fate: s.Fate, order: s.Order}, refused)
}

// RecordNameless writes down one publish of a message whose headers this program could not read either. What it is
// called is the daemon's affair, so its body tells it from all others; no other message may have it.
func (l *Ledger) RecordNameless(body []byte, fate Fate, refused error) {
	l.record(name{hash: sha256.Sum256(body)}, message{fate: fate, nameless: true}, refused)
}

func (l *Ledger) record(n name, fresh message, refused error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.messages[n] == nil {
		l.messages[n] = &fresh
	}
	m := l.messages[n]
	m.copies++
	l.attempt++
	if refused == nil {
		m.acked++
		l.ack++
	}
}

// Expect changes the fate of messages that are in the ledger already: the cause of their death was mended.
func (l *Ledger) Expect(fate Fate, keys ...dedup.Identity) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for n, m := range l.messages {
		if slices.Contains(keys, n.key) {
			m.fate = fate
		}
	}
}
