package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// hands is how many faults may go on at once. Two are enough for a fault to meet another's aftermath.
const hands = 2

// planned is one entry of the schedule.
type planned struct {
	fault   fault
	gap     time.Duration // the pause of the hand before it
	lasts   time.Duration // how long a state holds, of faults that have one
	variant uint          // which of several: a daemon, a link, a table
}

// schedule is the same for the same seed. It deals all kinds of faults in a new order again and again, so that none
// stays away for long; entries whose turn does not come within Duration are not run.
func (o Options) schedule() []planned {
	stream := uint64(o.Nodes)
	if o.People {
		stream += 100 // of its own
	}
	if o.Databases > 1 {
		stream += clusterOf(o.Replication).stream
	}
	if o.Upkeep {
		stream += 300
	}
	rng := rand.New(rand.NewPCG(o.Seed, stream))
	var deck []fault
	for _, f := range faults() {
		if o.wants(f) {
			deck = append(deck, f)
		}
	}
	rounds := 1
	if !o.Round && len(deck) > 0 { // a hand takes over a second for each entry
		rounds += hands * int(o.Duration/time.Second) / len(deck)
	}
	var plan []planned
	for range rounds {
		rng.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		for _, f := range deck {
			p := planned{
				fault: f, gap: time.Second + upTo(rng, 3*time.Second), lasts: f.least + upTo(rng, f.most-f.least),
				variant: uint(rng.Uint32()),
			}
			if o.Round {
				p.gap, p.lasts = 500*time.Millisecond, f.least
				if o.People {
					p.gap = 4 * time.Second // for their work
				}
				if f.short != 0 {
					p.lasts = f.short
				}
			}
			plan = append(plan, p)
		}
	}
	return plan
}

// wants says whether a kind of fault belongs to the run. That of a cluster is about RabbitMQ and the daemons: what
// MySQL and Redis do to them does not depend on the number of its nodes. Its round leaves out what the round of a
// single node has, and so does the round with people but for some that leave work for them. Likewise that of a database
// cluster, and that of upkeep; without a round, upkeep meets all the faults of a cluster.
func (o Options) wants(f fault) bool {
	switch {
	case len(o.Only) > 0:
		return slices.Contains(o.Only, f.name)
	case f.databases != 0:
		return f.databases == o.Databases && f.replication == o.Replication
	case o.Databases > 1:
		return !o.Round && slices.Contains(besideDatabases, f.name)
	case o.People && f.name == unreadableHeaders:
		return false // a letter of theirs that is purged can never be sent again: its headers are nowhere
	case o.People && f.name == retryDeleted:
		return false // somebody replays what fails, so the queue is never known to be empty
	case o.People && o.Round:
		return slices.Contains(leaveWork, f.name)
	case f.upkeep || o.Upkeep && o.Round:
		return f.upkeep && o.Upkeep
	case f.nodes != 0:
		return f.nodes == o.Nodes
	case o.Nodes > 1:
		at := f.targets(planned{})[0]
		return at != onMySQL && at != onRedis && !o.Round
	}
	return true
}

// leaveWork are kinds of faults after which there is something for people to do.
var leaveWork = []string{
	"daemon kill -9", "mysql KILL", "mysql lost COMMIT reply", "rabbitmq disconnects", "rabbitmq lost confirm",
	"redis FLUSHALL",
}

// phase names the run.
func (o Options) phase() string {
	switch {
	case o.People:
		return "people"
	case o.Databases > 1:
		return fmt.Sprintf("%s-%d", clusterOf(o.Replication).phase, o.Databases)
	case o.Upkeep:
		return "upkeep"
	}
	return fmt.Sprintf("nodes-%d", o.Nodes)
}

func upTo(rng *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(rng.Int64N(int64(most) + 1)).Round(10 * time.Millisecond)
}
