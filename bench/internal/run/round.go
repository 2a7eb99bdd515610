package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/bench/internal/rival"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// Contestant is who works off a backlog, and on what.
type Contestant struct {
	Name string
	// Rival, if not empty, is one of package rival's, with so many workers; else it is the product.
	Rival   string
	Workers int
	// Daemons is how many processes of the product run side by side; 0 means one.
	Daemons int
	// Settings are the product's that are not left at their defaults, NAME=value without the prefix.
	Settings []string
	// Sowing is what is special about the round's orders; how many there are is the runner's to say.
	Sowing ground.Sowing
	// FullLog puts the round on the field whose consumer log is full already.
	FullLog bool
	// ToTheEnd is a round over so many messages as the runner says, and not over a time: until the last one that can be
	// applied is, or, if none can, until the last one is a dead letter; but no longer than six rounds. In such a round an
	// attempt that failed counts as a delivery that ended, whether or not another follows.
	ToTheEnd bool
	// Whole is a round to the end over about as many messages as the guess says of its length, until each of them has
	// ended, the failing ones as dead letters: the same work whoever does it, however fast. It is never cut.
	Whole bool
	// Replay is a round over dead letters: the daemon first files the messages as letters, which is not measured. Then
	// what was wrong is mended, the letters are replayed with the product's command, and the clock runs until all are
	// applied.
	Replay bool
	// MySQLDelay is how much later everything arrives on the way to MySQL, and on the way back.
	MySQLDelay time.Duration
	// Lock is on what the product's lock stands, if not on the Redis that everybody has.
	Lock string
	// Viewed: somebody looks at the daemon's pages meanwhile.
	Viewed bool
	// Guess is how many deliveries a second are expected at first.
	Guess float64
}

// Round is one measured round.
type Round struct {
	Contestant string             `json:"contestant"`
	Seconds    float64            `json:"seconds"`    // between the two readings
	Deliveries int64              `json:"deliveries"` // that ended meanwhile
	Messages   int64              `json:"messages"`   // of them the last of their message
	Rate       float64            `json:"per_second"` // deliveries by seconds
	Applied    float64            `json:"applied_per_second"`
	Failed     float64            `json:"failed_attempts_per_second,omitempty"`
	CPU        map[string]float64 `json:"cpu_us_per_delivery"` // by process
	Busy       float64            `json:"cores_busy"`          // by all processes of the machine that were watched
	Total      int64              `json:"applied_in_all"`      // checked against the stock
	Cut        bool               `json:"cut,omitempty"`       // a round to the end that took too long
	Pages      map[string]float64 `json:"pages_ms,omitempty"`  // the longest time of each page that was looked at
	// NotMeasured, if not empty, says why there is no more than the name.
	NotMeasured string `json:"not_measured,omitempty"`
}

// Spent is what a message cost each process, in µs of CPU, with all the attempts that it had.
func (r Round) Spent() map[string]float64 {
	spent := map[string]float64{}
	for _, process := range working {
		spent[process] = r.CPU[process] * float64(r.Deliveries) / float64(max(r.Messages, 1))
	}
	return spent
}

// working are the processes that a message is put through; the bench itself is none.
var working = []string{"client", "mysql", "rabbitmq", "redis"}

const (
	dead    = "dead_lettered"
	retried = "retried"
)

// The outcomes that count as done work. The product's others (retried, in_progress) leave a copy behind.
var done = []string{"applied", "duplicate", "duplicate_of_dead", dead}

func (c Contestant) start(f *ground.Field, g *ground.Ground, log io.Writer) ([]*program.Process, error) {
	o := program.Options{Path: f.Build.Binary, Args: []string{"run"}, Env: f.Environ(c.Settings...), Log: log}
	if c.Rival != "" {
		o.Path, o.Args = g.Self, []string{"rival", c.Rival, fmt.Sprint(c.Workers)}
	}
	var all []*program.Process
	for range max(1, c.Daemons) {
		p, err := program.Start(o)
		if err != nil {
			return all, errors.Join(err, kill(all))
		}
		all = append(all, p)
	}
	return all, nil
}

func kill(all []*program.Process) error {
	var errs []error
	for _, p := range all {
		errs = append(errs, p.Kill())
	}
	return errors.Join(errs...)
}

// reading is what all processes of a contestant have done so far.
type reading struct {
	at           time.Time
	ended, fresh int64 // deliveries; of them applied
	again, dead  int64 // failed attempts with another to come; and those that made a dead letter
	cpu          times
}

func read(ctx context.Context, all []*program.Process, w watched) (r reading, err error) {
	for _, p := range all {
		m, err := p.Metrics(ctx)
		if err != nil {
			return r, err
		}
		for _, outcome := range done {
			r.ended += int64(m.Deliveries(outcome))
		}
		r.fresh += int64(m.Deliveries("applied"))
		r.again += int64(m.Deliveries(retried))
		r.dead += int64(m.Deliveries(dead))
	}
	r.at = time.Now()
	r.cpu, err = w.now()
	return r, err
}

// errTooShort says that the backlog ended before the clock.
var errTooShort = errors.New("the backlog was worked off before the clock stopped")

// measure runs one contestant against the backlog that lies there: it starts the processes, lets them warm up, reads
// them at the beginning and at the end of the time, stops them and checks the stock.
func (r *Runner) measure(ctx context.Context, c Contestant, f *ground.Field) (round Round, err error) {
	if c.MySQLDelay > 0 {
		proxy, err := r.slowLine(f, c.MySQLDelay)
		if err != nil {
			return round, err
		}
		defer proxy.Close()
		c.Settings = append(slices.Clip(c.Settings), "MYSQL_DSN="+proxy.Through(f.DSN))
	}
	if c.Lock != "" {
		settings, stop, started := f.Lock(ctx, c.Lock)
		if started != nil {
			return round, started
		}
		defer func() { err = errors.Join(err, stop()) }()
		c.Settings = append(slices.Clip(c.Settings), settings...)
	}
	log := &tail{}
	all, err := c.start(f, r.Ground, log)
	if err != nil {
		return round, err
	}
	defer func() {
		if err = errors.Join(err, kill(all)); err != nil && !errors.Is(err, errTooShort) {
			err = fmt.Errorf("%w\nlast lines of %s:\n%s", err, c.Name, log)
		}
	}()
	looked := func() (map[string]float64, error) { return nil, nil }
	if c.Viewed {
		if looked, err = viewing(ctx, all); err != nil {
			return round, err
		}
	}
	from, to, err := r.clock(c)(ctx, f, all, r.watch(all))
	pages, notLooked := looked()
	if err = errors.Join(err, notLooked); err != nil {
		return round, err
	}
	left, err := r.Ground.Depth()
	if err != nil {
		return round, err
	}
	counted, err := stop(ctx, all)
	if err != nil {
		return round, err
	}
	round = c.round(from, to)
	round.Pages = pages
	harvest, err := f.Check(ctx)
	if err != nil {
		return round, fmt.Errorf("%s: %w", c.Name, err)
	}
	round.Total = harvest.Applied
	if c.ToTheEnd || c.Replay {
		round.Cut = !goalOf(f.Sown()).reached(to)
		return round, c.checkEnd(round.Cut, f.Sown(), to, harvest)
	}
	if left == 0 {
		return round, errTooShort
	}
	if c.Rival == rival.PlainEach || c.Rival == rival.PlainMultiple {
		round.Total = counted
	}
	return round, nil
}

func (c Contestant) round(from, to reading) Round {
	seconds := to.at.Sub(from.at).Seconds()
	ended := to.ended - from.ended
	if c.ToTheEnd {
		ended += to.again - from.again
	}
	round := Round{
		Contestant: c.Name, Seconds: seconds, Deliveries: ended, Messages: to.ended - from.ended,
		Rate:    float64(ended) / seconds,
		Applied: float64(to.fresh-from.fresh) / seconds,
		Failed:  float64(to.again+to.dead-from.again-from.dead) / seconds, CPU: map[string]float64{},
	}
	for name, cpu := range to.cpu.since(from.cpu) {
		round.Busy += cpu.Seconds() / seconds
		if ended > 0 {
			round.CPU[name] = float64(cpu.Microseconds()) / float64(ended)
		}
	}
	return round
}

// warmUp waits for the first deliveries to end, and then a while.
func warmUp(ctx context.Context, all []*program.Process, warm time.Duration) error {
	const patience, step = 30 * time.Second, 50 * time.Millisecond
	for began := time.Now(); ; {
		r, err := read(ctx, all, nil)
		if err != nil {
			return err
		}
		if r.ended+r.again > 0 {
			return wait.For(ctx, warm)
		}
		if time.Since(began) > patience {
			return fmt.Errorf("no delivery ended within %v", patience)
		}
		if err := wait.For(ctx, step); err != nil {
			return err
		}
	}
}

// stop ends all processes in good order: what they have in hand they finish. It returns how many deliveries they had
// counted shortly before.
func stop(ctx context.Context, all []*program.Process) (counted int64, err error) {
	last, err := read(ctx, all, nil)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, 40*time.Second)
	defer cancel()
	var errs []error
	for _, p := range all {
		code, err := p.Stop(ctx)
		if err == nil && code != 0 {
			err = fmt.Errorf("process %d ended with code %d", p.Pid(), code)
		}
		errs = append(errs, err)
	}
	return last.ended, errors.Join(errs...)
}

func (r *Runner) watch(all []*program.Process) watched {
	s := r.Ground.Stack
	w := watched{
		"mysql": {s.MySQL.Pid()}, "rabbitmq": {s.RabbitMQ.Pid()}, "redis": {s.Redis.Pid()}, "bench": {os.Getpid()},
	}
	for _, p := range all {
		w["client"] = append(w["client"], p.Pid())
	}
	return w
}
