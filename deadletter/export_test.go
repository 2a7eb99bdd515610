package deadletter

import (
	"context"
	"time"
)

// Hold makes a run give back what it holds after d.
func (l *Letters) Hold(d time.Duration) { l.hold = d }

// Point names a durable step of a run.
type Point = point

// The points, in their order.
const (
	PointReopened  = pointReopened
	PointPublished = pointPublished
	PointDiscarded = pointDiscarded
	PointAcked     = pointAcked
)

// Hook makes every run call hook after each durable step; its error ends the run there as a kill would.
func (l *Letters) Hook(hook func(Point) error) { l.hook = hook }

// ReplayDue is what Compensate does when it looks for letters that are due.
func (l *Letters) ReplayDue(ctx context.Context, o CompensateOptions) (Result, bool, error) {
	o, err := o.withDefaults()
	if err != nil {
		return Result{}, false, err
	}
	return newReplayer(l, o).replay(ctx)
}
