package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Member is one of several [Consumers]: what is consumed, and by which handler.
type Member struct {
	Config
	Handler
}

// Consumers consume several queues in one program, on shared pools. Make them with [OpenAll], run them once.
type Consumers struct {
	members []*Consumer
	beside  *beside
}

// Run consumes until ctx ends, and drains all queues at the same time, as [Consumer.Run] does. When one cannot be
// consumed at all the others are drained and Run ends; each error names the queue of its consumer.
func (c *Consumers) Run(ctx context.Context) error {
	return c.beside.while(ctx, func(ctx context.Context) error {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		errs := make([]error, len(c.members))
		var wg sync.WaitGroup
		for i, m := range c.members {
			wg.Go(func() {
				if err := m.work(ctx); err != nil {
					errs[i] = fmt.Errorf("queue %s: %w", m.cfg.Queue, err)
					stop()
				}
			})
		}
		wg.Wait()
		return errors.Join(errs...)
	})
}

// Close closes what [OpenAll] opened. Run does it at its end; it is for Consumers that are never run.
func (c *Consumers) Close() error { return c.beside.close() }

// State is that of all members: they consume when each does, and what is amiss begins with the queue.
func (c *Consumers) State() State {
	all := State{Consuming: true}
	for _, m := range c.members {
		s := m.State()
		all.Consuming, all.Draining = all.Consuming && s.Consuming, all.Draining || s.Draining
		all.Still = max(all.Still, s.Still)
		for _, why := range s.Paused {
			all.Paused = append(all.Paused, m.cfg.Queue+": "+why)
		}
		for _, why := range s.Degraded {
			all.Degraded = append(all.Degraded, m.cfg.Queue+": "+why)
		}
	}
	return all
}

// Members are the consumers, in the order in which [OpenAll] was given them, to ask each for its State.
func (c *Consumers) Members() []*Consumer { return slices.Clone(c.members) }

// completeAll checks the configurations, each for itself and beside the first.
func completeAll(members []Member) (cfgs []Config, err error) {
	if len(members) == 0 {
		return nil, errors.New("consumer configuration: no member")
	}
	for i, m := range members {
		cfg := m.Config
		if i > 0 {
			cfg.certs, cfg.connections = cfgs[0].certs, cfgs[0].connections
			if cfg.Registerer == nil {
				cfg.Registerer = cfgs[0].Registerer
			}
		}
		if cfg, err = cfg.complete(m.Handler); err == nil && cfg.MySQLDSN == "" {
			err = errors.New("consumer configuration: MySQLDSN is empty; New takes a pool instead")
		}
		for _, before := range cfgs {
			if err == nil && before.Queue == cfg.Queue {
				err = errors.New("consumer configuration: two members consume it; one with more Lanes does the same")
			}
		}
		if cfgs = append(cfgs, cfg); err == nil {
			err = cfg.suits(cfgs[0])
		}
		if err != nil && len(members) > 1 {
			err = fmt.Errorf("queue %s: %w", cfg.Queue, err)
		}
		if err != nil {
			return nil, err
		}
	}
	return cfgs, nil
}

// suits says what c shares with the first member, and names otherwise.
func (c Config) suits(first Config) error {
	for _, field := range []struct {
		name string
		same bool
	}{
		{"MySQLDSN", c.MySQLDSN == first.MySQLDSN}, {"AMQPURLs", slices.Equal(c.AMQPURLs, first.AMQPURLs)},
		{"Lock", c.Lock == first.Lock}, {"RedisURL", c.RedisURL == first.RedisURL},
		{"ZooKeeperURL", c.ZooKeeperURL == first.ZooKeeperURL}, {"LockOnError", c.LockOnError == first.LockOnError},
		{"LockTTL", c.LockTTL == first.LockTTL}, {"DoneTTL", c.DoneTTL == first.DoneTTL},
		{"LogRetention", c.LogRetention == first.LogRetention}, {"MaxReplays", c.MaxReplays == first.MaxReplays},
		{"CompensateAfter", c.CompensateAfter == first.CompensateAfter},
		{"WithoutKeeper", c.WithoutKeeper == first.WithoutKeeper}, {"Outbox", c.Outbox == first.Outbox},
	} {
		if !field.same {
			return fmt.Errorf("consumer configuration: %s differs from that of queue %s, with which it is shared", field.name,
				first.Queue)
		}
	}
	return nil
}
