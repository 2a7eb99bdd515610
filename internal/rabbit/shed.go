package rabbit

import (
	"encoding/binary"
	"maps"
	"sync"
)

const (
	frameOfMethod = 1
	frameOfBody   = 3
	frameEnd      = 0xCE

	classBasic    = 60
	methodDeliver = 60
)

// shedder drops the bytes of deliveries for which there is no room, as they come: the client gets them with an empty
// body and without properties, and the ledger of their subscription knows which they are.
type shedder struct {
	mu      sync.Mutex
	ledgers map[string]*ledger // by consumer tag; guarded by mu

	coming []coming // by channel; only the walker touches it
}

// coming is what a channel is about to deliver.
type coming struct {
	ledger *ledger // nil: nothing that anybody waits for
	tag    uint64
	header bool  // its content header came
	drop   int64 // bytes of its body that are still to be dropped
}

// watch knows and, with a budget, weighs what comes for a consumer, from its first delivery on. It reports false when
// another subscription of the connection has that tag.
func (w *walker) watch(consumerTag string, l *ledger) bool {
	w.shed.mu.Lock()
	defer w.shed.mu.Unlock()
	if w.shed.ledgers == nil {
		w.shed.ledgers = map[string]*ledger{}
	}
	if of := w.shed.ledgers[consumerTag]; of != nil && of != l {
		return false
	}
	for old, of := range w.shed.ledgers {
		if of == l { // its former consumer is through
			delete(w.shed.ledgers, old)
		}
	}
	w.shed.ledgers[consumerTag] = l
	return true
}

// forget ends watch for the consumers of a subscription.
func (w *walker) forget(l *ledger) {
	w.shed.mu.Lock()
	defer w.shed.mu.Unlock()
	maps.DeleteFunc(w.shed.ledgers, func(_ string, of *ledger) bool { return of == l })
}

// delivers notes the delivery that a method frame announces for a channel.
func (s *shedder) delivers(channel int, payload []byte) {
	for len(s.coming) <= channel {
		s.coming = append(s.coming, coming{})
	}
	s.coming[channel] = coming{}
	if len(payload) < 5 || binary.BigEndian.Uint16(payload) != classBasic ||
		binary.BigEndian.Uint16(payload[2:]) != methodDeliver {
		return
	}
	name := payload[5:]
	if len(name) < int(payload[4])+8 {
		return
	}
	s.mu.Lock()
	l := s.ledgers[string(name[:payload[4]])]
	s.mu.Unlock()
	s.coming[channel] = coming{ledger: l, tag: binary.BigEndian.Uint64(name[payload[4]:])}
	if l != nil {
		l.announced.Store(s.coming[channel].tag) // tags of a channel grow
	}
}

// weighs asks the ledger whether there is room for the delivery whose content header, of size bytes, begins so. If not,
// it returns the header to be handed on instead.
func (s *shedder) weighs(channel int, head []byte, size int64) (instead []byte) {
	if channel >= len(s.coming) || s.coming[channel].ledger == nil || s.coming[channel].header {
		return nil
	}
	c := &s.coming[channel]
	c.header = true
	if c.ledger.budget == nil {
		return nil
	}
	body := binary.BigEndian.Uint64(head[frameHeadBytes+4:])
	if c.ledger.admit(c.tag, weigh(int64(min(body, 1<<40)), headerWeight(head, size))) {
		return nil
	}
	c.ledger, c.drop = nil, int64(min(body, 1<<62))
	instead = append(instead, head[:frameHeadBytes+headerFixedBytes]...)
	binary.BigEndian.PutUint32(instead[3:], headerFixedBytes)
	clear(instead[frameHeadBytes+2:]) // weight, body size, flags
	return append(instead, frameEnd)
}

// drops reports whether a body frame belongs to a delivery for which there was no room.
func (s *shedder) drops(channel int, size int64) bool {
	if channel >= len(s.coming) || s.coming[channel].drop <= 0 {
		return false
	}
	s.coming[channel].drop -= size
	return true
}

// keep notes headers of the message whose content header goes by: the client gets them from take.
func (s *shedder) keep(channel int, aside Table) {
	if channel < len(s.coming) && s.coming[channel].ledger != nil {
		s.coming[channel].ledger.keep(s.coming[channel].tag, aside)
	}
}
