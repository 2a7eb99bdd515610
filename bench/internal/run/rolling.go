package run

import (
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/must"
)

// Rolling measures a fleet under load, each of whose daemons is then replaced by another, one after the other as a
// rolling upgrade does it: how many messages a second are applied before and meanwhile, and the longest time, in steps
// of half a second, in which fewer than half as many were.
func (r *Runner) Rolling(c Contestant) Sample {
	return repeated(r, c.Name, func() Sample {
		upgrade := 8 * time.Second * time.Duration(c.Daemons) // at most
		f := r.empty()
		s := r.sowing(c)
		s.Orders += int64(c.Guess * upgrade.Seconds())
		f.Sow(s, r.seed())
		var before, meanwhile, slow float64
		r.beside(f, c, func(p *processes) {
			p.begun(r.Warm)
			began := time.Now()
			r.Ground.Rest(r.Length)
			middle := time.Now()
			for i, one := range p.all {
				code, err := one.Stop(r.Ground.Ctx)
				must.OK(err)
				if code != 0 {
					must.OK(fmt.Errorf("process %d ended with code %d", one.Pid(), code))
				}
				free(one.Pid())
				p.all[i] = c.start(r, f, p.log)
				p.ready(p.all[i])
			}
			end := time.Now()
			r.Ground.Rest(time.Second) // so that what was under way then is committed
			if r.Ground.Depth() == 0 {
				must.OK(errTooShort)
			}
			before = f.AppliedBetween(began, middle) / middle.Sub(began).Seconds()
			meanwhile = f.AppliedBetween(middle, end) / end.Sub(middle).Seconds()
			const step = time.Second / 2
			now := 0.0
			for at := middle; at.Before(end); at = at.Add(step) {
				now += step.Seconds()
				if f.AppliedBetween(at, at.Add(step)) >= before/2*step.Seconds() {
					now = 0
				}
				slow = max(slow, now)
			}
		})
		return r.tell(c.Name, Sample{"per_second": before, "meanwhile_per_second": meanwhile, "below_half_s": slow})
	})
}
