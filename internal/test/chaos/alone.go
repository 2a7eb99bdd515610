package chaos

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// everything is the target of faults that must cost nothing: beside another fault nobody could tell whose cost it was.
var everything = on(onDaemon0, onDaemon1, onMySQL, onRabbit, onRedis)

// lonely is a kind of fault that must cost nothing. Times are in seconds: in a round, at least and at most.
func lonely(name, unit string, short, least, most int, do strike) fault {
	return fault{
		name: name, unit: unit, nodes: 1, targets: everything, short: time.Duration(short) * time.Second,
		least: time.Duration(least) * time.Second, most: time.Duration(most) * time.Second, strike: alone(do),
	}
}

// cost is what a fault that is nobody's fault must not raise.
type cost struct {
	attempts int // of applied messages, beyond the first of each
	stale    int // letters beyond one for each dead message
	unsure   int // letters that RabbitMQ may have without a confirm: each is published again, and one of two is stale
}

// alone strikes while all is well otherwise, waits until all is well again, and looks what it has cost.
func alone(do strike) strike {
	return func(ctx context.Context, w *world, p planned) (int, error) {
		w.recover(ctx, "before "+p.fault.name)
		before, err := w.cost(ctx, math.MinInt)
		if err != nil {
			return 0, err
		}
		hits, err := do(ctx, w, p)
		if err != nil || ctx.Err() != nil {
			return hits, err
		}
		w.recover(ctx, "after "+p.fault.name)
		after, err := w.cost(ctx, before.stale)
		if err != nil {
			return hits, err
		}
		if n := after.attempts - before.attempts; n > 0 {
			w.violation("%s cost %d attempts of messages with which nothing is wrong", p.fault.name, n)
		}
		n, unsure := after.stale-before.stale, max(0, after.unsure-before.unsure)
		if n > unsure && !w.o.People {
			w.violation("%s left %d letters more than dead messages, %d were not confirmed", p.fault.name, n, unsure)
		}
		return hits, nil
	}
}

// recover waits until the daemons consume and no message with which nothing is wrong has an open row, which an earlier
// fault may have left, with the attempt that it cost.
func (w *world) recover(ctx context.Context, when string) {
	const patience = 90 * time.Second
	w.calm(ctx)
	open := -1
	well := until(ctx, patience, func() bool {
		err := w.db.QueryRowContext(ctx,
			"SELECT COUNT(*) FROM consumer_log WHERE consumer_status IN (0, 2) AND msg_key LIKE 'rollback-%'").Scan(&open)
		return err == nil && open == 0
	})
	if !well && ctx.Err() == nil {
		w.violation("%s: %d messages with which nothing is wrong had open rows for %v", when, open, patience)
	}
}

// cost looks for stale letters until there are no more than enough of them, or it has looked often.
func (w *world) cost(ctx context.Context, enough int) (c cost, err error) {
	const attempts = `SELECT COALESCE(SUM(consumer_times - 1), 0) FROM consumer_log
		WHERE consumer_status = 1 AND consumer_times > 1`
	err = w.db.QueryRowContext(ctx, attempts).Scan(&c.attempts)
	if err != nil {
		return c, fmt.Errorf("count the attempts: %w", err)
	}
	c.unsure = w.fleet.published(ctx, "letter", "unknown")
	looks := 10
	if enough != math.MinInt {
		looks = 100
	}
	c.stale = math.MaxInt
	for ; looks > 0 && c.stale > enough; looks-- {
		n, err := w.staleLetters(ctx)
		if err != nil {
			return c, err
		}
		c.stale = min(c.stale, n)
		_ = wait.For(ctx, 100*time.Millisecond)
	}
	return c, nil
}

// staleLetters are at least as many as there are, and more while letters are made: one is confirmed a moment before its
// row says dead, and others die between the two readings. So rows are read first, and the least of some looks counts. A
// message that dies between the readings in the other order would make it one too few, and that one be charged later to
// a fault that cost nothing.
func (w *world) staleLetters(ctx context.Context) (int, error) {
	var dead int
	err := w.db.QueryRowContext(ctx, "SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 3").Scan(&dead)
	if err != nil {
		return 0, fmt.Errorf("count the dead: %w", err)
	}
	letters, err := w.depth(ctx, rabbit.DeadQueue(queue))
	if err != nil {
		return 0, err
	}
	if letters < dead {
		return math.MaxInt, nil // RabbitMQ says 0 of a queue that does not answer it soon, or somebody reads in it
	}
	return letters - dead, nil
}

// depth is how many messages wait in a queue and are in nobody's hands.
func (w *world) depth(ctx context.Context, queue string) (int, error) {
	conn, err := rabbit.Dial(ctx, rabbit.Config{URLs: w.load.urls, Name: "chaos depth"})
	if err != nil {
		return 0, fmt.Errorf("ask for the depth of %s: %w", queue, err)
	}
	defer conn.Close()
	ready, _, err := conn.Depth(ctx, queue)
	if err != nil {
		return 0, fmt.Errorf("ask for the depth of %s: %w", queue, err)
	}
	return ready, nil
}

// plantName is unique; whoever plants has everything for itself.
func (w *world) plantName() string {
	w.planted++
	return fmt.Sprintf("planted-%06d", w.planted)
}
