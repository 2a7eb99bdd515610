package deadletter

import "context"

// ReplayDue is what Compensate does when it looks for letters that are due.
func (l *Letters) ReplayDue(ctx context.Context, o CompensateOptions) (Result, bool, error) {
	o, err := o.withDefaults()
	if err != nil {
		return Result{}, false, err
	}
	return newReplayer(l, o).replay(ctx)
}
