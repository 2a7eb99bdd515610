package relay

import (
	"context"
)

// Poll is what a relay asks of the database before it publishes: a look, and a claim where something is due. It returns
// the keys of what it has claimed.
func (r *Relay) Poll(ctx context.Context) (keys []string, err error) {
	from, due, err := r.looks.next(ctx)
	if err != nil || !due {
		return nil, err
	}
	c, err := r.claim(ctx, from, r.cfg.BatchSize)
	for _, one := range c.rows {
		keys = append(keys, one.key)
	}
	return keys, err
}
