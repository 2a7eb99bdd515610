package dedup

import (
	"errors"

	"github.com/rollbackd/rollbackd/internal/test/require"
)

// person takes letters from the dead-letter queue, one at a time, and replays or discards each: reopen, publish, then
// ack; or mark the row discarded, then ack.
type person struct {
	who     string
	at      stage
	id      *identity
	held    bool // the letter is unacked here; false also when the session was lost
	letter  int
	discard bool
	asked   bool // for discarded ones too
	row     Row
	token   string
}

const (
	atDiscard stage = "discard"
	atPublish stage = "publish the replay"
	atPutBack stage = "leave the letter"
)

func (p *person) name() string { return p.who }

func (p *person) idle() bool { return p.at == atIdle }

func (p *person) worksOn(id *identity) bool { return p.id == id }

func (p *person) enabled(m *model) bool {
	if p.at == atIdle {
		for _, id := range m.ids {
			if len(id.letters) > 0 && (!m.heal || m.resends > 0) { // healing, resends counts the letters of a round
				return true
			}
		}
		return false
	}
	return p.at != atReopen && p.at != atDiscard || !p.id.locked
}

func (p *person) act(m *model) {
	m.trace = append(m.trace, string(p.at))
	switch p.at {
	case atIdle:
		p.take(m)
	case atLook:
		p.look(m)
	case atReopen:
		p.reopen(m)
	case atDiscard:
		p.end(m)
	case atPublish:
		published := m.confirmed(func() { p.id.main = append(p.id.main, message{letter: -1}) })
		p.at = atPutBack
		if published {
			m.count("replay")
			p.at = atAck
		}
	case atAck:
		p.held = false
		*p = person{who: p.who, at: atIdle}
	case atPutBack:
		p.crash(m)
	}
}

func (p *person) take(m *model) {
	for _, id := range m.ids {
		if len(id.letters) > 0 {
			p.id = id
			break
		}
	}
	p.letter, p.id.letters = p.id.letters[0], p.id.letters[1:]
	p.held, p.at = true, atLook
	if m.heal {
		m.resends--
		return
	}
	how := m.choose("wants to", "replay", "replay discarded ones too", "discard", "discard")
	p.discard, p.asked = how == "discard", how == "replay discarded ones too"
}

func (p *person) look(m *model) {
	row := require.Get(m.log.Read(m.t.Context(), p.id.Identity))(m.rt)
	p.row, p.token = row, m.token(p.who)
	switch {
	case row.Status == Processing && row.LeaseLive && !m.maybe("live lease not heeded", 4):
		p.at = atPutBack
	case p.discard:
		p.at = atDiscard
	default:
		p.at = atReopen
	}
}

// reopen does not touch a discarded row once the letter may be in other hands: whoever holds it then drops it as stale,
// which no version shows, and a crash before the publish would leave a reopened row without a copy.
func (p *person) reopen(m *model) {
	if p.row.Status == Discarded && !p.held {
		m.count("discarded left, session lost")
		p.at = atPutBack
		return
	}
	err := m.transition(p.id, func() error {
		_, err := m.log.Reopen(m.t.Context(), p.row, p.id.entry, ReplayNote{By: p.who, Token: p.token, Discarded: p.asked})
		return err
	})
	switch {
	case err == nil:
		m.count("reopen from " + p.row.Status.String())
		p.at = atPublish
	case errors.Is(err, ErrUnknown): // with the same note; or the letter stays and is reported
		if !m.heal && m.choose("reopen unknown", "again", "leave") == "leave" {
			p.at = atPutBack
		}
	case errors.Is(err, ErrStale):
		m.count("stale letter")
		p.at = atAck
	case errors.Is(err, ErrLost):
		m.count("lost: reopen")
		p.at = atPutBack
	default:
		m.rt.Fatal(err)
	}
}

func (p *person) end(m *model) {
	err := m.transition(p.id, func() error { return m.log.Discard(m.t.Context(), p.row, p.id.entry, p.who, "not needed") })
	switch {
	case err == nil:
		m.count("discard from " + p.row.Status.String())
		p.at = atAck
	case errors.Is(err, ErrUnknown):
		p.at = atLook
	case errors.Is(err, ErrStale):
		p.at = atAck
	case errors.Is(err, ErrLost):
		m.count("lost: discard")
		p.at = atPutBack
	default:
		m.rt.Fatal(err)
	}
}

func (p *person) crash(m *model) {
	p.disconnect(m)
	*p = person{who: p.who, at: atIdle}
}

func (p *person) disconnect(*model) {
	if p.held {
		p.id.letters = append(p.id.letters, p.letter)
		p.held = false
	}
}

func (p *person) holds(*identity) *message { return nil }

func (p *person) holdsLetter(id *identity) bool { return p.held && p.id == id }
