package chaos

import (
	"cmp"
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// kind is a kind of fault: a row of the table.
type kind struct {
	name string
	unit string // of what it hits
	in   string // the phase that has it; empty: that of one node, and others as they say
	on   string // its targets

	least, most, short int // seconds that it lasts, and in a round, 0: least

	patience int // seconds to wait for a hit beyond that, 0: 30

	cost  int  // daemons whose lanes it may cost the attempt they had claimed
	alone bool // it must cost nothing: beside another fault nobody could tell whose cost it was

	beside   bool // it goes on beside a database cluster too: COMMITs become unknown, and daemons end, amid a failover
	work     bool // it leaves work for people
	noPeople bool // what people do would spoil it

	begin act
	end   act   // nil: begin has ended it
	hit   meter // nil: begin counts
}

// act is a part of a fault.
type act = func(*strike)

// meter says how much a fault has hit so far. It is asked once before the fault begins, when nothing it says counts.
type meter = func(*strike) int

// strike is a fault that happens.
type strike struct {
	*world
	planned

	began, since time.Time // the state; and the fault, of those that others get over
	hits, before int       // what is counted
	base         int       // of what is counted since the beginning
	at           int       // which node it befalls
	node         *stack.Server
	target       string
	slot         *slot // which daemon
	process      *program.Process
	undo         func()
	keys         []any // of the messages that it has published
}

// strikeOne lets a fault happen while it has its targets for itself: nobody starts a server that another keeps down.
// That it could not be done or not be undone ends the run.
func (w *world) strikeOne(p planned) {
	if w.pass(p.gap) != nil {
		return // the run is cut short; whoever cut it says so
	}
	s := &strike{world: w, planned: p, slot: w.fleet.slots[p.variant%daemons]}
	targets := strings.Fields(p.on)
	if p.alone {
		targets = everything
	}
	s.target = targets[0]
	for i, target := range targets {
		if target == relay {
			s.slot = w.fleet.relays[p.variant%relays]
		}
		if target == relay || target == daemon {
			targets[i] = s.slot.name
		}
	}
	for _, target := range slices.Sorted(slices.Values(targets)) { // in one order, or two hands wait for each other
		w.targets[target].Lock()
		defer w.targets[target].Unlock()
	}
	w.begun.Add(1)
	began := time.Now()
	happen := s.happen
	if p.alone {
		happen = s.costNothing
	}
	err := must.Catch(happen)
	w.ended.Add(1)
	must.OK(err, p.name)
	w.count(p.name, s.hits, nil)
	w.say("%-26s %5.1fs, hit %d %s", p.name, time.Since(began).Seconds(), s.hits, p.unit)
}

// happen begins a fault, lets it last until its time is over and it has hit something, or is hopeless, and ends it.
func (s *strike) happen() {
	s.charged.Add(int64(s.cost))
	hit, patience := s.hit, seconds(cmp.Or(s.patience, 30))
	if hit == nil {
		hit, patience = func(*strike) int { return 0 }, 0
	}
	hit(s)
	err := must.Catch(func() {
		s.begin(s)
		s.began = time.Now()
		s.until(s.lasts+patience, func() bool { // whoever asks next sees the end of the run
			s.hits = max(s.hits, hit(s))
			return s.hits > 0 && time.Since(s.began) >= s.lasts
		})
	})
	if s.end != nil {
		err = errors.Join(err, must.Catch(func() { s.end(s) }))
	}
	must.OK(err)
}

// cost is what a fault that is nobody's fault must not raise.
type cost struct {
	attempts int // of applied messages, beyond the first of each
	stale    int // letters beyond one for each dead message
	unsure   int // letters that RabbitMQ may have without a confirm: each is published again, and one of two is stale
}

// costNothing lets a fault happen while all is well otherwise, waits until all is well again, and looks what it has
// cost.
func (s *strike) costNothing() {
	s.recover("before " + s.name)
	before := s.look(10, math.MinInt)
	s.happen()
	if s.ctx.Err() != nil {
		return
	}
	s.recover("after " + s.name)
	after := s.look(100, before.stale)
	if n := after.attempts - before.attempts; n > 0 {
		s.violation("%s cost %d attempts of messages with which nothing is wrong", s.name, n)
	}
	n, unsure := after.stale-before.stale, max(0, after.unsure-before.unsure)
	if n > unsure && !s.o.Phase.people {
		s.violation("%s left %d letters more than dead messages, %d were not confirmed", s.name, n, unsure)
	}
}

// recover waits until the daemons consume and no message with which nothing is wrong has an open row, which an earlier
// fault may have left, with the attempt that it cost.
func (w *world) recover(when string) {
	w.calm()
	w.should(when, func() {
		w.wait(90*time.Second, "not all is well", func() error {
			return w.nothing(openRows+" AND msg_key LIKE 'rollback-%'", "messages with which nothing is wrong have open rows")
		})
	})
}

// look looks for stale letters until there are no more than enough of them, or it has looked so often.
func (w *world) look(looks, enough int) cost {
	c := cost{
		attempts: w.number(`SELECT COALESCE(SUM(consumer_times - 1), 0) FROM consumer_log
			WHERE consumer_status = 1 AND consumer_times > 1`),
		unsure: w.fleet.published("letter", "unknown"), stale: math.MaxInt,
	}
	for ; looks > 0 && c.stale > enough; looks-- {
		c.stale = min(c.stale, w.staleLetters())
		_ = w.pass(100 * time.Millisecond)
	}
	return c
}

// staleLetters are at least as many as there are, and more while letters are made: one is confirmed a moment before its
// row says dead, and others die between the two readings. So rows are read first, and the least of some looks counts. A
// message that dies between the readings in the other order would make it one too few, and that one be charged later to
// a fault that cost nothing.
func (w *world) staleLetters() int {
	dead := w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 3")
	letters := must.Get(w.depth(rabbit.DeadQueue(queue)))
	if letters < dead {
		return math.MaxInt // RabbitMQ says 0 of a queue that does not answer it soon, or somebody reads in it
	}
	return letters - dead
}

// strike works the plan off until time is over, then tries what has missed so far again, alone, up to four times.
func (w *world) strike() {
	end, side := time.Now().Add(w.o.Duration), hands
	if w.o.Soak != "" {
		side = 1
	}
	var next atomic.Int64
	var over atomic.Bool
	must.Side(side, func(int) {
		defer over.Store(true) // the plan is at its end, or the run
		for w.ctx.Err() == nil && !over.Load() && (w.o.Round || time.Now().Before(end)) {
			at := int(next.Add(1)) - 1
			if at >= len(w.plan) {
				return
			}
			w.strikeOne(w.plan[at])
			w.soak.look()
		}
	})
	for range 4 {
		for _, p := range w.missed() {
			w.calm()
			w.strikeOne(p)
		}
	}
	must.OK(context.Cause(w.ctx))
}

// calm waits until the daemons consume and the broker can be asked what they hold: after a leader was frozen, channels
// of RabbitMQ answer nobody for up to half a minute.
func (w *world) calm() {
	w.until(time.Minute, func() bool {
		_, err := w.erlang(unackedNow)
		return err == nil && must.Catch(w.fleet.consuming) == nil
	})
}

// missed are the first entries of the kinds that were struck and have hit nothing.
func (w *world) missed() (again []planned) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.tallies {
		if t.times > 0 && t.hit == 0 && !t.job {
			at := slices.IndexFunc(w.plan, func(p planned) bool { return p.name == t.name })
			again = append(again, w.plan[at])
		}
	}
	return again
}

// Phase is a part of a run, with servers of its own.
type Phase struct {
	Name  string
	Share int // of the time: most kinds of faults are those of one node

	nodes   int      // of RabbitMQ
	cluster *cluster // of databases; nil: one server
	people  bool     // who work on letters and rows beside the load and the faults: see jobs
	stream  uint64   // of chance
	has     func(k kind, round bool) bool
}

// Phases are those there are. That of several nodes of RabbitMQ is about RabbitMQ and the daemons: what MySQL and Redis
// do to them does not depend on the number of its nodes. Its round leaves out what the round of a single node has, and
// so does the round with people but for some kinds that leave work for them; likewise that of a database cluster.
func Phases() []Phase {
	nodes3 := func(k kind) bool {
		return k.in == "3" || k.in == "" && !strings.HasPrefix(k.on, mysqld) && k.on != redisd
	}
	all := []Phase{
		{Name: "1", Share: 2, nodes: 1, stream: 1, has: func(k kind, _ bool) bool { return k.in == "" || k.in == "1" }},
		{Name: "3", Share: 1, nodes: 3, stream: 3, has: func(k kind, round bool) bool {
			return k.in == "3" || !round && nodes3(k)
		}},
		{Name: "people", Share: 1, nodes: 1, stream: 101, people: true, has: func(k kind, round bool) bool {
			return k.work || !round && (k.in == "" || k.in == "1") && !k.noPeople
		}},
		{Name: "upkeep", Share: 1, nodes: 3, stream: 303, has: func(k kind, round bool) bool {
			return k.in == "upkeep" || !round && nodes3(k)
		}},
	}
	for i, c := range clusters() {
		all = append(all, Phase{
			Name: c.name, Share: 1, nodes: 1, stream: uint64(201 + 100*i), cluster: c,
			has: func(k kind, round bool) bool { return k.in == c.name || !round && k.beside },
		})
	}
	return all
}

// hands is how many faults may go on at once. Two are enough for a fault to meet another's aftermath.
const hands = 2

// planned is one entry of the schedule.
type planned struct {
	kind
	gap     time.Duration // the pause of the hand before it
	lasts   time.Duration // how long a state holds, of faults that have one
	variant int           // which of several: a daemon, a link, a table
}

// wants says whether a kind of fault belongs to the run.
func (o Options) wants(k kind) bool {
	if len(o.Only) > 0 {
		return slices.Contains(o.Only, k.name)
	}
	return o.Phase.has(k, o.Round)
}

// schedule is the same for the same seed. It deals all kinds of faults in a new order again and again, so that none
// stays away for long; entries whose turn does not come within Duration are not run.
func (o Options) schedule() (plan []planned) {
	rng := rand.New(rand.NewPCG(o.Seed, o.Phase.stream))
	deck := slices.DeleteFunc(kinds(), func(k kind) bool { return !o.wants(k) })
	rounds := 1
	if !o.Round && len(deck) > 0 { // a hand takes over a second for each entry
		rounds += hands * int(o.Duration/time.Second) / len(deck)
	}
	for range rounds {
		rng.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		for _, k := range deck {
			least := seconds(k.least)
			p := planned{
				kind: k, gap: time.Second + upTo(rng, 3*time.Second), lasts: least + upTo(rng, seconds(max(k.least, k.most))-least),
				variant: int(rng.Uint32()),
			}
			if o.Soak != "" {
				p.variant |= 1 // daemon 1 and relay 1: of the others it is watched what grows
			}
			if o.Round {
				p.gap, p.lasts = 500*time.Millisecond, least
				if o.Phase.people {
					p.gap = 4 * time.Second // for their work
				}
				if k.short != 0 {
					p.lasts = seconds(k.short)
				}
			}
			plan = append(plan, p)
		}
	}
	return plan
}

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }

func upTo(rng *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(rng.Int64N(int64(most) + 1)).Round(10 * time.Millisecond)
}
