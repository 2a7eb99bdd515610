package chaos

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/stack"
)

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
		return k.in == "3" || k.in == "" && k.on[0] != onMySQL && k.on[0] != onRedis
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
	for i, replication := range []stack.Replication{stack.Galera, stack.Group, stack.SemiSync, stack.Async} {
		c := clusters()[replication]
		all = append(all, Phase{
			Name: c.name, Share: 1, nodes: 1, stream: uint64(201 + 100*i), cluster: &c,
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
