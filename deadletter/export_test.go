package deadletter

import "time"

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
