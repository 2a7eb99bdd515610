package desk

import "time"

// LookEvery sets how often a desk looks for work by the clock.
func (d *Desk) LookEvery(every time.Duration) { d.look = every }
