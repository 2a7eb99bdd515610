package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/bench/internal/run"
	"github.com/rollbackd/rollbackd/internal/config"
)

var (
	// speeds are those at which a message's cost is measured, messages a second.
	speeds = []int{100, 1000, 5000, 10_000}
	// fleets are how many daemons work side by side on what sleeps.
	fleets = []int{1, 2, 4}
)

// asleep is how long the service of the fleets takes for a call: so long that four daemons, each with 64 calls at once,
// leave the processors alone.
const asleep = 200 * time.Millisecond

// scaling prints the tables of docs/scaling.md: what a message costs each server, and what more daemons bring.
func scaling(ctx context.Context, s settings) (err error) {
	r, err := newRunner(ctx, s, ground.Options{Log: os.Stdout})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close(), r.Ground.Stop()) }()
	table := "\n| messages/s | daemon | MySQL | RabbitMQ | Redis | MySQL's commits/s | redo log | MySQL writes | " +
		"RabbitMQ writes |\n|---|---|---|---|---|---|---|---|---|\n"
	var last run.Cost
	for _, speed := range speeds {
		if last, err = r.Cost(ctx, speed); err != nil {
			return err
		}
		micros := func(who string) float64 { return 1e6 * last.Cores[who] / last.Rate }
		line := fmt.Sprintf("| %.0f | %.0f | %.0f | %.0f | %.1f | %.0f | %.0f | %.0f | %.0f |\n", last.Rate, micros("client"),
			micros("mysql"), micros("rabbitmq"), micros("redis"), last.Commits, last.Redo, last.Written["mysql"],
			last.Written["rabbitmq"])
		fmt.Printf("  %d offered: %s", speed, line)
		table += line
	}
	fmt.Print(table)
	fmt.Printf("\nbytes of a row with its indexes: consumer_log %.0f, stock_reservation %.0f; connections of the daemon: "+
		"mysql %d, rabbitmq %d, redis %d\n", last.RowBytes["consumer_log"], last.RowBytes["stock_reservation"],
		last.Connections["mysql"], last.Connections["rabbitmq"], last.Connections["redis"])
	table = fmt.Sprintf("\n| daemons | messages/s, each call of %v | cores busy |\n|---|---|---|\n", asleep)
	for _, n := range fleets {
		round, err := r.Round(ctx, run.Contestant{
			Name: fmt.Sprintf("asleep_%d", n), Daemons: n, Guess: 320 * float64(n),
			Sowing: ground.Sowing{Handler: config.HandlerHTTP, AnswerAfter: asleep},
		})
		if err != nil {
			return err
		}
		table += fmt.Sprintf("| %d | %.0f | %.2f |\n", n, round.Rate, round.Busy)
	}
	fmt.Print(table)
	return nil
}
