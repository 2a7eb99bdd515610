package consumer

import (
	"context"
	"errors"
	"time"
)

// run consumes until intake ends, and drains.
func (c *Consumer) run(intake context.Context) error {
	work, kill := context.WithCancelCause(context.WithoutCancel(intake))
	defer kill(nil)
	done := make(chan error, 1)
	go func() { done <- c.migrateAndConsume(intake, work) }() // joined below, or abandoned

	select {
	case err := <-done:
		return err
	case <-intake.Done():
	}
	c.health.drain()
	c.log.InfoContext(intake, "draining", "timeout", c.cfg.DrainTimeout)
	late := time.AfterFunc(c.cfg.DrainTimeout, func() { kill(ErrDrainTimeout) })
	defer late.Stop()
	select {
	case err := <-done:
		if work.Err() == nil {
			return err
		}
	// A worker that does not return even now is stuck in a handler or on a frozen server; the process ends without it.
	case <-time.After(c.cfg.DrainTimeout + killGrace):
	}
	return ErrDrainTimeout
}

// killGrace is how long workers have to notice that the drain is over.
const killGrace = 2 * time.Second

// ErrDrainTimeout says that a stop took longer than DrainTimeout: what was in hand is abandoned, nothing is lost.
var ErrDrainTimeout = errors.New("not drained in time: what was in hand goes back to the broker")
