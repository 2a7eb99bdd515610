package run

import (
	"time"

	"github.com/rollbackd/rollbackd/internal/test/must"
)

// Rolling measures a fleet under load, each of whose daemons is then replaced by another, one after the other as a
// rolling upgrade does it: how many messages a second are applied before and meanwhile, and the longest time, in steps
// of half a second, in which fewer than half as many were.
func (r *Runner) Rolling(c Contestant) Sample {
	upgrade := 8 * time.Second * time.Duration(c.Daemons) // at most
	f := r.empty()
	s := r.sowing(c)
	s.Orders += int64(c.Guess * upgrade.Seconds())
	f.Sow(s, r.seed())
	var began, middle, end time.Time
	r.beside(f, c, func(p *processes) {
		p.begun(r.Warm)
		began = time.Now()
		r.Ground.Rest(r.Length)
		middle = time.Now()
		for i, one := range p.all {
			p.stop(one)
			free(one.Pid())
			p.all[i] = p.start(f, c)
			p.untilReady(p.all[i])
		}
		end = time.Now()
		r.Ground.Rest(time.Second) // so that what was under way then is committed
		if r.Ground.Depth() == 0 {
			must.OK(errTooShort)
		}
	})
	rate := func(from, to time.Time) float64 { return f.AppliedBetween(from, to) / to.Sub(from).Seconds() }
	before := rate(began, middle)
	const step = time.Second / 2
	now, slow := 0.0, 0.0
	for at := middle; at.Before(end); at = at.Add(step) {
		now += step.Seconds()
		if rate(at, at.Add(step)) >= before/2 {
			now = 0
		}
		slow = max(slow, now)
	}
	return Sample{"per_second": before, "meanwhile_per_second": rate(middle, end), "below_half_s": slow}
}
