package operator

import (
	"context"
	"time"
)

// LookEvery sets how often a desk looks for work by the clock.
func (d *Operator) LookEvery(every time.Duration) { d.look = every }

// IssuedBefore is a token that was issued so long ago.
func (d *Operator) IssuedBefore(ctx context.Context, who Actor, age time.Duration) (string, error) {
	key, now, err := d.o.Records.FormKey(ctx)
	return d.tokenOf(key, who, now.Add(-age)), err
}
