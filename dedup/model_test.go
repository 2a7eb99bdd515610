package dedup

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// TestModel holds the log to the protocol of docs/model on a real server: random interleavings of two workers and two
// people over a few copies of one or two messages, with crashes, lost answers, transactions decided later, lost
// sessions, leases that run out, letters replayed, discarded and moved by hand. After every step it checks the
// invariants; at the end of every sequence the faults stop and everything must come to its end.
//
// The broker here is the model's: queues of identical copies, as in rollbackd.pml. It stands for no test of RabbitMQ.
func TestModel(t *testing.T) {
	t.Parallel()
	labs := make([]*lab, len(worlds))
	t.Run("", func(t *testing.T) { // each setting has a log of its own, so they run side by side
		for i, w := range worlds {
			labs[i] = newLab(t)
			t.Run(w.name, func(t *testing.T) {
				t.Parallel()
				rapid.Check(t, func(rt *rapid.T) { labs[i].sequence(rt, w) })
			})
		}
	})
	l := newLab(t)
	t.Cleanup(func() { l.report(t) })
	for _, other := range labs {
		l.add(other)
	}
	// What is rare may need more sequences; what never happens in twice as many fails.
	for i := 0; i < len(worlds) && len(l.missing()) > 0; i++ {
		rapid.Check(t, func(rt *rapid.T) { l.sequence(rt, worlds[2]) })
	}
	l.wantAll(t)
}

func newLab(t *testing.T) *lab {
	t.Helper()
	w := newWorldOn(t, stack.MySQL(t))
	w.exec("CREATE TABLE model_effect (id BIGINT AUTO_INCREMENT PRIMARY KEY, name VARBINARY(255) NOT NULL, KEY (name)) " +
		"ENGINE=InnoDB")
	l := &lab{t: t, logs: map[int]*Log{}, happened: map[string]int{}}
	wire, pool, db := openLossy(t, w.dsn)
	l.wire, l.pool = wire, pool
	for limit := 1; limit <= 3; limit++ {
		log := require.Get(NewLog(db, LogOptions{
			Table: "consumer_log", Lease: modelLease, Delays: []time.Duration{modelDelay, 2 * modelDelay}, MaxAttempts: limit,
		}))(t)
		l.logs[limit] = log
	}
	return l
}

// setting is what a sequence begins with.
type setting struct {
	name       string
	identities int // at a time: one that is over makes room for the next
	copies     int // at most
	letters    int // at most, made by the broker
}

var worlds = []setting{
	{"one message", 1, 1, 0},
	{"one message and its copies", 1, 3, 0},
	{"one message, its copies and letters", 1, 2, 2},
	{"two messages", 2, 2, 0},
}

// minSteps is how many random steps a sequence has at least; most have more.
const minSteps = 40

// sequence is one random walk and its healing.
func (l *lab) sequence(rt *rapid.T, w setting) {
	l.sequences++
	m := &model{lab: l, rt: rt, max: rapid.IntRange(1, 3).Draw(rt, "max attempts"), resends: 2, stalled: map[string]bool{}}
	m.log = l.logs[m.max]
	m.rough = rapid.Bool().Draw(rt, "rough")
	for range w.identities {
		m.ids = append(m.ids, m.publish(w))
	}
	m.actors = []actor{
		&worker{who: "worker 1", at: atIdle}, &worker{who: "worker 2", at: atIdle},
		&person{who: "person 1", at: atIdle}, &person{who: "person 2", at: atIdle},
	}
	defer m.close()
	steps := rapid.IntRange(minSteps, 2*minSteps).Draw(rt, "steps")
	last := ""
	for m.step = 1; m.step <= steps; m.step++ {
		l.steps++
		last = m.random(last)
		for i, id := range m.ids {
			if m.over(id) {
				m.ids[i] = m.publish(w)
			}
		}
	}
	if l.shortest == 0 || steps < l.shortest {
		l.shortest = steps
	}
	m.recover()
}

// publish makes a new message in a few copies, of which the broker has dead-lettered some.
func (m *model) publish(w setting) *identity {
	m.messages++
	m.sent++
	k := key(fmt.Sprintf("%d %c", m.sequences, 'a'+m.sent-1))
	id := &identity{
		Identity: k, entry: entryOf(k), row: Version{Status: Absent}, ran: map[int]map[string]bool{},
		ending: map[string]bool{},
	}
	for range rapid.IntRange(1, w.copies).Draw(m.rt, "copies") {
		id.main = append(id.main, message{letter: -1})
	}
	for range rapid.IntRange(0, w.letters).Draw(m.rt, "letters") {
		id.letters = append(id.letters, -1)
	}
	return id
}

// over reports whether nothing can happen to a message any more. The sequence then goes on with a new one.
func (m *model) over(id *identity) bool {
	if id.row.Status != Success && id.row.Status != Discarded || id.locked || len(id.main)+len(id.retry)+
		len(id.letters) > 0 {
		return false
	}
	return !slices.ContainsFunc(m.actors, func(a actor) bool { return a.worksOn(id) })
}

// random does one step of whoever is drawn; who did the last one is likely to go on, so that others stall.
func (m *model) random(last string) string {
	moves := map[string]func(){}
	var names []string
	offer := func(weight int, name string, move func()) {
		moves[name] = move
		for range weight {
			names = append(names, name)
		}
	}
	for _, a := range m.actors {
		if m.stalled[a.name()] {
			offer(1, "end of stall: "+a.name(), func() { delete(m.stalled, a.name()) })
			continue
		}
		if !a.enabled(m) {
			continue
		}
		weight := 3
		if a.name() == last {
			weight = 20
		}
		offer(weight, a.name(), func() { a.act(m) })
	}
	m.offerFaults(offer)
	offer(1, "nothing", func() {})
	name := rapid.SampledFrom(names).Draw(m.rt, "step")
	moves[name]()
	m.logStep(name)
	m.sync()
	return name
}

// offerFaults offers what the environment may do.
func (m *model) offerFaults(offer func(weight int, name string, move func())) {
	if busy := slices.DeleteFunc(slices.Clone(m.actors), actor.idle); len(busy) > 0 {
		one := func() actor { return rapid.SampledFrom(busy).Draw(m.rt, "of") }
		offer(1, "crash", func() { m.count("crash"); one().crash(m) })
		offer(2, "stall", func() { m.count("stall"); m.stalled[one().name()] = true })
		offer(1, "session lost", func() { m.count("session lost"); one().disconnect(m) })
	}
	for i, z := range m.zombies {
		decide := func(commit bool) func() {
			return func() { m.count(fmt.Sprintf("decided later, committed %v", commit)); m.decide(i, commit) }
		}
		offer(2, "late COMMIT of "+z.id.Key, decide(true))
		offer(2, "late ROLLBACK of "+z.id.Key, decide(false))
	}
	for _, id := range m.ids {
		if !id.locked && (id.row.Status == Processing || id.row.Status == Failed) {
			offer(1, "30 minutes for "+id.Key, func() { m.pass(id, 30*time.Minute) })
			offer(3, "4 hours for "+id.Key, func() { m.pass(id, 4*time.Hour) })
		}
		if len(id.retry) > 0 {
			offer(3, "retry of "+id.Key, func() { m.back(id) })
		}
		if len(id.letters) > 0 {
			offer(1, "letter of "+id.Key+" moved by hand", func() {
				m.count("letter moved by hand")
				id.main = append(id.main, message{letter: id.letters[0]})
				id.letters = id.letters[1:]
			})
		}
		if m.resends > 0 {
			offer(1, "another copy of "+id.Key, func() {
				m.count("sent again")
				m.resends--
				id.main = append(id.main, message{letter: -1})
			})
		}
	}
}

// pass makes time pass for one row, by the database's clock.
func (m *model) pass(id *identity, d time.Duration) {
	m.count("time passes")
	require.Get(m.pool.ExecContext(m.t.Context(), "UPDATE consumer_log SET consumer_timestamp = consumer_timestamp - "+
		"INTERVAL ? MICROSECOND"+keyIs,
		append([]any{d.Microseconds()}, keyArgs(id.Identity)...)...))(m.rt)
	before := id.age
	id.age += d
	if id.row.Status == Processing && before < modelLease && id.age >= modelLease {
		m.count("lease expired")
	}
}

// back lets a copy leave its retry queue, early or late.
func (m *model) back(id *identity) {
	id.main = append(id.main, id.retry[0])
	id.retry = id.retry[1:]
}

func (m *model) decide(i int, commit bool) {
	z := m.zombies[i]
	m.zombies = slices.Delete(m.zombies, i, i+1)
	z.id.locked = false
	z.id.revived = z.id.revived || commit && z.id.row.Status == Discarded
	require.OK(m.rt, z.decide(commit))
}

// recover is what must hold in the end: without faults everything comes to rest, and at most two replays of the whole
// dead-letter queue end every message.
func (m *model) recover() {
	m.heal = true
	for len(m.zombies) > 0 {
		m.decide(0, m.step%2 == 0)
		m.sync()
	}
	for round := 0; ; round++ {
		m.resends = 0
		for _, id := range m.ids {
			if round > 0 {
				m.resends += len(id.letters)
			}
		}
		for _, id := range m.ids {
			if !id.locked { // a lease that lives keeps a letter where it is
				m.pass(id, 4*time.Hour)
			}
		}
		m.rest()
		over := true
		for _, id := range m.ids {
			if id.row.Status != Success && id.row.Status != Discarded || len(id.letters) > 0 {
				over = false
			}
		}
		if over {
			return
		}
		if round == 2 {
			m.violated("H", "after two clean replays of all letters: %s", m.describe())
		}
	}
}

// rest lets everybody work until nobody can.
func (m *model) rest() {
	const enough = 400
	for range enough {
		m.healing++
		m.step++
		i := slices.IndexFunc(m.actors, func(a actor) bool { return a.enabled(m) })
		if i >= 0 {
			m.actors[i].act(m)
			m.logStep(m.actors[i].name())
			m.sync()
			continue
		}
		j := slices.IndexFunc(m.ids, func(id *identity) bool { return len(id.retry) > 0 })
		if j < 0 {
			return
		}
		if id := m.ids[j]; id.row.Status == Processing || id.row.Status == Failed {
			m.pass(id, 4*time.Hour)
		}
		m.back(m.ids[j])
	}
	m.violated("H", "no rest within %d steps: %s", enough, m.describe())
}

func (m *model) describe() string {
	var all []string
	for _, id := range m.ids {
		all = append(all, fmt.Sprintf("%s is %v, main %d, retry %d, letters %d", id.Key, id.row, len(id.main), len(id.retry),
			len(id.letters)))
	}
	return strings.Join(all, "; ")
}

// close ends what a failed sequence left open.
func (m *model) close() {
	m.wire.next, m.wire.left = answered, nil
	for _, z := range m.zombies {
		assert.OK(m.t, z.decide(false))
	}
	for _, a := range m.actors {
		if w, ok := a.(*worker); ok && w.tx != nil {
			_ = w.tx.Rollback() // over already when the step that failed ended it
		}
	}
}

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

// report prints what happened how often.
func (l *lab) report(t *testing.T) {
	t.Logf("sequences %d, messages %d, random steps %d (shortest sequence %d), healing steps %d", l.sequences, l.messages,
		l.steps, l.shortest, l.healing)
	for _, what := range slices.Sorted(maps.Keys(l.happened)) {
		t.Logf("%7d %s", l.happened[what], what)
	}
	if l.violation != "" {
		t.Logf("first violation: %s", l.violation)
	}
}

// add counts what happened in another lab.
func (l *lab) add(other *lab) {
	l.sequences, l.messages, l.steps = l.sequences+other.sequences, l.messages+other.messages, l.steps+other.steps
	l.healing, l.violation = l.healing+other.healing, cmp.Or(l.violation, other.violation)
	if l.shortest == 0 || other.shortest > 0 && other.shortest < l.shortest {
		l.shortest = other.shortest
	}
	for what, n := range other.happened {
		l.happened[what] += n
	}
}

// wanted is what a run must have met at least once: a fault that never happened has tested nothing.
var wanted = []string{
	"crash", "stall", "session lost", "redelivery", "took a redelivery", "delivery limit", "sent again",
	"time passes", "lease expired", "live lease not heeded", "delay not heeded", "maximum not heeded",
	string(lostAfter), string(lostBefore), string(undecided), "decided later, committed true",
	"decided later, committed false",
	"answer forgotten", "confirm lost",
	"letter refused", "held too long", "letter tried again", "ended while held", "reason not heeded",
	"applied", "duplicate", "duplicate of dead", "fast path met a row", "fast path of a row", "takeover",
	"attempt fails", "attempt permanent", "attempt dependency away",
	"unknown COMMIT was done", "unknown COMMIT is repeated", "unknown COMMIT given up",
	string(atClaim), string(atFail), string(atUnclaim), string(atExhaust), string(atDead), string(atCondemn),
	string(atBlame),
	string(atBlame) + " in company", string(atClaim) + " in company", string(atCommit) + " in company",
	string(atFail) + " in company", string(atUnclaim) + " in company",
	"lost: " + string(atClaim), "lost: " + string(atCommit), "lost: " + string(atFail), "lost: " + string(atUnclaim),
	"lost: " + string(atFast),
	"lost: " + string(atExhaust), "lost: " + string(atCondemn), "lost: " + string(atDead), "lost: reopen", "lost: discard",
	"replay", "stale letter", "letter moved by hand", "letter moved by hand is reopened",
	"reopen from absent", "reopen from processing", "reopen from failed", "reopen from dead", "reopen from discarded",
	"discard from absent", "discard from processing", "discard from failed", "discard from dead",
}

// missing lists what has not happened yet in a full run; a short one owes nothing.
func (l *lab) missing() []string {
	const full = 200
	if l.t.Failed() || l.sequences < full {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(wanted), func(what string) bool { return l.happened[what] > 0 })
}

// wantAll fails a full run that missed a fault.
func (l *lab) wantAll(t *testing.T) {
	for _, what := range l.missing() {
		t.Errorf("%q never happened in %d sequences", what, l.sequences)
	}
	assert.That(t, l.shortest >= minSteps || t.Failed(), "a sequence had only %d steps", l.shortest)
}
