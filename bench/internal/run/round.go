package run

import (
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Contestant is who works off a backlog, and on what.
type Contestant struct {
	Name string
	// Rival, if not empty, is one of package rival's, with so many workers; else it is the product.
	Rival   string
	Workers int
	// Command is the product's; empty: run.
	Command string
	// Daemons is how many processes of the product run side by side; 0 means one.
	Daemons int
	// Quota, if not 0, is how much of a core each of them may take, and ServersQuota all servers together, by the kernel's
	// control groups (version 1).
	Quota, ServersQuota float64
	// Settings are the product's that are not left at their defaults, NAME=value without the prefix.
	Settings []string
	// Sowing is what is special about the round's orders; how many there are is the runner's to say.
	Sowing ground.Sowing
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
	// until the last one is a dead letter. In such a round an attempt that failed counts as a delivery that ended, whether
	// or not another follows.
	ToTheEnd
	// Whole is to the end over about as many messages as the guess says of the length, until each of them has ended, the
	// failing ones as dead letters: the same work whoever does it, however fast.
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
	Pages      Sample  `json:"pages_ms,omitempty"`            // the longest time of each page that was looked at
	Sample     Sample  `json:"sample,omitempty"`              // of one that is special, and what comes evenly cost
	Fixed      Sample  `json:"fixed_ms,omitempty"`            // [FixedWork] just before and just after, the longer times
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
	var left int64
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
			left = r.Ground.Depth()
			if f.Sown.Unreserved { // whoever only consumes leaves no rows
				round.Total = p.read().ended
			}
			if c.Extent == Evenly {
				p.until(target{applied: f.Sown.Orders})
			}
		})
	})
	if c.Extent == Timed && left == 0 {
		must.OK(errTooShort)
	}
	must.OK(c.checkEnd(f.Sown, to, harvest))
	round.Total += harvest.Applied
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

// clock reads the processes at the beginning and at the end of what is measured: for a time, after warming up, or from
// the first delivery that ended until everything has come as far as it can, or each message has ended.
func (r *Runner) clock(c Contestant, f *ground.Field, p *processes) (from, to reading) {
	switch c.Extent {
	case Replayed:
		return r.replay(f, p)
	case Evenly:
		return r.offer(c, f, p)
	case Looked:
		return p.lookAt()
	case ToTheEnd:
		return p.begun(0), p.until(goalOf(f.Sown))
	case Whole:
		return p.begun(0), p.until(target{ended: f.Published()})
	}
	from = p.begun(r.Warm)
	r.Ground.Rest(r.Length)
	return from, p.read()
}

// replay lets the daemon file all messages as letters, mends the cause, and measures from the start of the product's
// command until the last letter is applied. What the command takes of the processors counts as the client's.
func (r *Runner) replay(f *ground.Field, p *processes) (from, to reading) {
	p.until(target{dead: f.Sown.Orders})
	f.Mend()
	command := exec.CommandContext(r.Ground.Ctx, f.Build.Binary, "dlq", "replay", "--all", "--no-wait")
	command.Env = f.Environ()
	from = p.read()
	out, err := command.CombinedOutput()
	must.OK(err, "replay the letters: ", string(out))
	to = p.until(goalOf(f.Sown))
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

// mostWhole is what a round to its end may take.
const mostWhole = 5 * time.Minute

// until reads the processes until the target is reached.
func (p *processes) until(t target) (r reading) {
	p.r.Ground.Until(fmt.Sprintf("as many messages have come to their end as %+v", t), mostWhole, func() bool {
		r = p.read()
		return r.fresh >= t.applied && r.dead >= t.dead && r.ended >= t.ended
	})
	return r
}

// attempts are those that everybody gives a message, the product by its default.
const attempts = 5

// checkEnd holds a round that comes to its end to what must be so then: what can be applied is, and what cannot has had
// all its attempts and is a dead letter. A letter that was replayed is none any more.
func (c Contestant) checkEnd(s ground.Sowing, to reading, h ground.Harvest) error {
	good := s.Orders - s.Failing()
	switch {
	case c.Extent == Timed, c.Extent == Evenly, c.Extent == Looked:
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
	return b.String()
}
