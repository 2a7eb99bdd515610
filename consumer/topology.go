package consumer

import (
	"context"
	"errors"
	"sync"

	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// queues is the topology, as it is to be, and what was said of it.
type queues struct {
	rabbit.TopologyConfig

	mu       sync.Mutex
	declared bool            // at least once; guarded by mu
	warned   map[string]bool // guarded by mu
}

// declare makes what is missing of the topology, or checks it. Both sources do it, one after the other.
func (c *engine) declare(ctx context.Context, conn *rabbit.Conn) error {
	c.queues.mu.Lock()
	defer c.queues.mu.Unlock()
	declare := rabbit.Declare
	if c.queues.declared {
		declare = rabbit.Redeclare
	}
	warnings, err := declare(ctx, conn, c.queues.TopologyConfig)
	if err != nil {
		return err
	}
	if !c.queues.declared && c.queues.TakeMain {
		if err := c.lookAtMain(ctx, conn); err != nil {
			return err
		}
	}
	c.queues.declared = true
	for _, w := range warnings {
		if !c.queues.warned[w] { // a reconnect makes no news of it
			c.queues.warned[w] = true
			c.log.WarnContext(ctx, w)
		}
	}
	return nil
}

// lookAtMain refuses a main queue that is taken as it is and can never work, and warns of what it lacks as far as that
// is seen: none of it keeps messages from being consumed.
func (c *engine) lookAtMain(ctx context.Context, conn *rabbit.Conn) error {
	found, err := rabbit.LookAtMain(ctx, c.cfg.amqp("run"), conn, c.cfg.RabbitMQAPIURL, c.queues.TopologyConfig)
	log := c.log.With("queue", c.cfg.Queue, "it needs", found.Command)
	switch {
	case errors.Is(err, rabbit.ErrClassic), ctx.Err() != nil:
		return err
	case err != nil:
		log.WarnContext(ctx, "the main queue is taken as it is, and could not be looked at", "err", err)
	case !found.Seen:
		log.WarnContext(ctx, "the main queue is taken as it is; what policies give it is not seen over AMQP, only by the "+
			"management API")
	}
	for _, flaw := range found.Flaws {
		log.WarnContext(ctx, "the main queue lacks something", "what", flaw)
	}
	return nil
}
