package deadletter

import "time"

// Hold makes a run give back what it holds after d.
func (l *Letters) Hold(d time.Duration) { l.hold = d }
