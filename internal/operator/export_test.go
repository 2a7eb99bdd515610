package operator

import (
	"context"
	"time"
)

// LookEvery sets how often a desk looks for work by the clock.
func (d *Operator) LookEvery(every time.Duration) { d.look = every }

// Does makes a desk do another kind of task.
func (d *Operator) Does(kind Kind, do func(context.Context, Task) (any, error)) { d.tasks[kind] = do }

// IssuedBefore is a token that was issued so long ago.
func (d *Operator) IssuedBefore(ctx context.Context, who Actor, age time.Duration) (string, error) {
	key, now, err := d.o.Records.FormKey(ctx)
	return d.tokenOf(key, who, now.Add(-age)), err
}

// PruneOutbox is one pass of maintenance over the outbox.
func (d *Operator) PruneOutbox(ctx context.Context) error {
	return (&Maintenance{d: d, MaintenanceOptions: MaintenanceOptions{Logger: d.log}}).pruneOutbox(ctx)
}

// LookOnce shows what the log has now.
func (m *Maintenance) LookOnce(ctx context.Context) error {
	return m.figures.look(ctx, m.d.o.Records, m.Clocks)
}
