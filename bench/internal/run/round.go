package run

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Contestant is who works off a backlog, and on what.
type Contestant struct {
	Name string
	// Command is what the product runs, if not `run`.
	Command string
	// Rival, if not empty, is one of package rival's, with so many workers; else it is the product.
	Rival   string
	Workers int
	// Daemons is how many processes of the product run side by side; 0 means one.
	Daemons int
	// Quota, if not 0, is how much of a core each of them may take, and ServersQuota all servers together, by the kernel's
	// control groups (version 1).
	Quota, ServersQuota float64
	// Settings are the product's that are not left at their defaults, NAME=value without the prefix.
	Settings []string
	// Sowing is what is special about the round's orders; how many there are is the runner's to say.
	Sowing ground.Sowing
	// FullLog puts the round on the field whose consumer log is full already.
	FullLog bool
	// Extent is how far the round goes.
	Extent Extent
	// MySQLDelay is how much later everything arrives on the way to MySQL, and on the way back.
	MySQLDelay time.Duration
	// Lock is on what the product's lock stands, if not on the Redis that everybody has.
	Lock string
	// Viewed: somebody looks at the daemon's pages meanwhile.
	Viewed bool
	// Guess is how many deliveries a second are expected at first, or offered.
	Guess float64
	// Pages are the names of those that are looked at.
	Pages []string
	// Special, if not nil, measures something else than a round does.
	Special func(*Runner) Sample
}

// Sample is what was measured in one way or another, by name.
type Sample map[string]float64

// Extent is how far a round goes.
type Extent int

const (
	// Timed is for the length of a round.
	Timed Extent = iota
	// ToTheEnd is over so many messages as the runner says: until the last one that can be applied is, or, if none can,
	// until the last one is a dead letter; but no longer than six rounds. In such a round an attempt that failed counts
	// as a delivery that ended, whether or not another follows.
	ToTheEnd
	// Whole is to the end over about as many messages as the guess says of the length, until each of them has ended, the
	// failing ones as dead letters: the same work whoever does it, however fast. It is never cut.
	Whole
	// Replayed is over dead letters: the daemon first files the messages as letters, which is not measured. Then what was
	// wrong is mended, the letters are replayed with the product's command, and the clock runs until all are applied.
	Replayed
	// Evenly is beside an idle daemon to which as many messages come a second as the guess says.
	Evenly
	// Looked is over many looks at pages of a daemon that has nothing else to do; a delivery is a look.
	Looked
)

// Round is one measured round.
type Round struct {
	Contestant string  `json:"contestant"`
	Seconds    float64 `json:"seconds,omitempty"`    // between the two readings
	Deliveries int64   `json:"deliveries,omitempty"` // that ended meanwhile
	Messages   int64   `json:"messages,omitempty"`   // of them the last of their message
	Rate       float64 `json:"per_second,omitempty"` // deliveries by seconds
	Applied    float64 `json:"applied_per_second,omitempty"`
	Failed     float64 `json:"failed_attempts_per_second,omitempty"`
	CPU        Sample  `json:"cpu_us_per_delivery,omitempty"` // by process
	Busy       float64 `json:"cores_busy,omitempty"`          // by all processes of the machine that were watched
	Total      int64   `json:"applied_in_all,omitempty"`      // checked against the stock
	Cut        bool    `json:"cut,omitempty"`                 // a round to the end that took too long
	Pages      Sample  `json:"pages_ms,omitempty"`            // the longest time of each page that was looked at
	Sample     Sample  `json:"sample,omitempty"`              // of one that is special, and what comes evenly cost besides
	// Fixed is what fixed pieces of work took just before and just after, the longer times.
	Fixed Fixed `json:"fixed_ms,omitempty"`
	// NotMeasured, if not empty, says why there is no more than the name.
	NotMeasured string `json:"not_measured,omitempty"`
}

// Working are the processes that a message is put through; the bench itself is none.
var Working = []string{"client", "mysql", "rabbitmq", "redis"}

// Spent is what a message cost each process, in µs of CPU, with all the attempts that it had.
func (r Round) Spent() Sample {
	spent := Sample{}
	for _, process := range Working {
		spent[process] = r.CPU[process] * float64(r.Deliveries) / float64(max(r.Messages, 1))
	}
	return spent
}

// errTooShort says that the backlog ended before the clock.
var errTooShort = errors.New("the backlog was worked off before the clock stopped")

// measure runs one contestant against the backlog that lies there: it starts the processes, lets them warm up, reads
// them at the beginning and at the end of the time, stops them and checks the stock.
func (r *Runner) measure(c Contestant, f *ground.Field) (round Round) {
	c.Settings = slices.Clip(c.Settings)
	if c.MySQLDelay > 0 {
		proxy := must.Get(stack.NewProxy(must.Get(mysql.ParseDSN(f.DSN)).Addr, func(format string, args ...any) {
			fmt.Fprintf(r.Out, "  proxy: "+format+"\n", args...)
		}))
		defer proxy.Close()
		proxy.Delay(c.MySQLDelay)
		c.Settings = append(c.Settings, "MYSQL_DSN="+proxy.Through(f.DSN))
	}
	var from, to reading
	var left, counted int64
	var harvest ground.Harvest
	f.WithLock(c.Lock, func(settings []string) {
		c.Settings = append(c.Settings, settings...)
		harvest = r.beside(f, c, func(p *processes) {
			var pages Sample
			clock := func() { from, to = r.clock(c, f, p) }
			switch {
			case c.Viewed:
				pages = p.viewed(clock)
			case r.Profiles != "":
				p.profiled(f, clock)
			default:
				clock()
			}
			round = c.round(from, to)
			round.Pages = pages
			left, counted = r.Ground.Depth(), p.counted().ended
			if c.Extent == Evenly {
				p.untilApplied(f.Sown().Orders)
			}
		})
	})
	round.Total = harvest.Applied
	switch {
	case c.Extent == Evenly, c.Extent == Looked:
	case c.Extent != Timed:
		round.Cut = !goalOf(f.Sown()).reached(to)
		must.OK(c.checkEnd(round.Cut, f.Sown(), to, harvest))
	case left == 0:
		must.OK(errTooShort)
	case f.Sown().Unreserved: // whoever only consumes leaves no rows
		round.Total = counted
	}
	return round
}

func (c Contestant) round(from, to reading) Round {
	seconds := to.at.Sub(from.at).Seconds()
	ended := to.ended - from.ended
	if c.Extent == ToTheEnd || c.Extent == Whole {
		ended += to.again - from.again
	}
	round := Round{
		Contestant: c.Name, Seconds: seconds, Deliveries: ended, Messages: to.ended - from.ended,
		Rate:    float64(ended) / seconds,
		Applied: float64(to.fresh-from.fresh) / seconds,
		Failed:  float64(to.again+to.dead-from.again-from.dead) / seconds, CPU: Sample{},
	}
	if c.Extent == Evenly {
		each := since(to.counts, from.counts, float64(max(ended, 1)))
		each["commits_per_second"] = each[comCommit] * round.Rate
		round.Sample = each
	}
	for name, cores := range since(to.cpu, from.cpu, seconds) {
		round.Busy += cores
		if ended > 0 {
			round.CPU[name] = cores * 1e6 / round.Rate
		}
	}
	return round
}

const (
	// mostRounds is how many rounds' time a round to the end may take: a contestant that is slow is measured by what it
	// did until then.
	mostRounds = 6
	// mostWhole is what a round that is never cut may take.
	mostWhole = 5 * time.Minute
)

// clock reads the processes at the beginning and at the end of what is measured: for a time, after warming up, or from
// the first delivery that ended until everything has come as far as it can, or each message has ended.
func (r *Runner) clock(c Contestant, f *ground.Field, p *processes) (from, to reading) {
	switch c.Extent {
	case Replayed:
		return r.replay(f, p)
	case Evenly:
		return r.offer(c, f, p)
	case Looked:
		return p.lookAt(c.Pages)
	}
	warm := r.Warm
	if c.Extent != Timed {
		warm = 0
	}
	p.begun(warm)
	from = p.read()
	switch c.Extent {
	case ToTheEnd:
		return from, p.untilReached(goalOf(f.Sown()), mostRounds*r.Length)
	case Whole:
		goal := target{ended: f.Published()}
		if to = p.untilReached(goal, mostWhole); !goal.reached(to) {
			must.OK(fmt.Errorf("%d of %d messages have ended within %v", to.ended, goal.ended, mostWhole))
		}
		return from, to
	}
	r.Ground.Rest(r.Length)
	return from, p.read()
}

// replay lets the daemon file all messages as letters, mends the cause, and measures from the start of the product's
// command until the last letter is applied. What the command takes of the processors counts as the client's.
func (r *Runner) replay(f *ground.Field, p *processes) (from, to reading) {
	const patience, windDown = 3 * time.Minute, 20 * time.Second // for the preparation; of a command that was stopped
	letters := target{dead: f.Sown().Orders}
	if filed := p.untilReached(letters, patience); !letters.reached(filed) {
		must.OK(fmt.Errorf("%d of %d letters were filed within %v", filed.dead, letters.dead, patience))
	}
	f.Mend()
	enough, cancel := context.WithTimeout(r.Ground.Ctx, mostRounds*r.Length)
	defer cancel()
	command := exec.CommandContext(enough, f.Build.Binary, "dlq", "replay", "--all", "--no-wait")
	command.Env = f.Environ()
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) } // it finishes what it has in hand
	command.WaitDelay = windDown
	from = p.read()
	if out, err := command.CombinedOutput(); enough.Err() == nil {
		must.OK(err, "replay the letters: ", string(out))
	}
	to = p.untilReached(goalOf(f.Sown()), mostRounds*r.Length-time.Since(from.at))
	to.cpu["client"] += (command.ProcessState.UserTime() + command.ProcessState.SystemTime()).Seconds()
	return from, to
}

// target is how far a round goes.
type target struct{ applied, dead, ended int64 }

// goalOf is how far the messages can come: all that can be applied are; if none can, all are dead letters.
func goalOf(s ground.Sowing) target {
	if good := s.Orders - s.Failing(); good > 0 {
		return target{applied: good}
	}
	return target{dead: s.Orders}
}

func (t target) reached(r reading) bool {
	return r.fresh >= t.applied && r.dead >= t.dead && r.ended >= t.ended
}

// untilReached reads the processes until the target is reached or the time is over.
func (p *processes) untilReached(t target, most time.Duration) (r reading) {
	p.r.Ground.Within(most, func() bool { r = p.read(); return t.reached(r) })
	return r
}

// attempts are those that everybody gives a message, the product by its default.
const attempts = 5

// checkEnd holds a round that came to its end to what must be so then: what can be applied is, and what cannot has had
// all its attempts and is a dead letter. A letter that was replayed is none any more.
func (c Contestant) checkEnd(cut bool, s ground.Sowing, to reading, h ground.Harvest) error {
	good := s.Orders - s.Failing()
	switch {
	case cut:
		return nil
	case h.Applied != good:
		return fmt.Errorf("%s: %w: %d messages are applied, want %d", c.Name, ground.ErrBroken, h.Applied, good)
	case c.Extent == Replayed && h.Dead != 0:
		return fmt.Errorf("%s: %d letters are still there", c.Name, h.Dead)
	case good == 0 && h.Dead != s.Orders:
		return fmt.Errorf("%s: %d messages are dead letters, want %d", c.Name, h.Dead, s.Orders)
	case good == 0 && to.again != (attempts-1)*s.Orders:
		return fmt.Errorf("%s: %d attempts failed before the last ones, want %d", c.Name, to.again, (attempts-1)*s.Orders)
	}
	return nil
}

// String is what the round says of itself in one line.
func (r Round) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "  %-22s", r.Contestant)
	if r.CPU != nil {
		fmt.Fprintf(&b, " %9.0f/s  %4.2f cores  µs each:", r.Rate, r.Busy)
	}
	for _, process := range Working {
		if spent, ok := r.CPU[process]; ok {
			fmt.Fprintf(&b, " %s %.1f", process, spent)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Sample)) {
		fmt.Fprintf(&b, " %s %.5g", name, r.Sample[name])
	}
	if r.Failed > 0 {
		fmt.Fprintf(&b, "  applied %.0f/s, failed attempts %.0f/s", r.Applied, r.Failed)
	}
	if r.Cut {
		fmt.Fprintf(&b, "  ended early, after %.0f s", r.Seconds)
	}
	return b.String()
}
