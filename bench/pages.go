package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/rollbackd/rollbackd/bench/internal/ground"
)

// idleSeconds is how long nobody looks, and somebody at the overview only.
const idleSeconds = 20

// pages prints what one look at each page costs, before the full log and without messages beside it.
func pages(ctx context.Context, s settings) (err error) {
	r, err := newRunner(ctx, s, ground.Options{Log: os.Stdout})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close(), r.Ground.Stop()) }()
	costs, err := r.PageCosts(ctx, idleSeconds)
	if err != nil {
		return err
	}
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	table := "\n| page | answered after, ms | CPU of MySQL, ms | of the daemon, ms |\n|---|---|---|---|\n"
	for _, c := range costs {
		table += fmt.Sprintf("| %s | %.1f | %.1f | %.1f |\n", c.Page, ms(c.Took), ms(c.MySQL), ms(c.Daemon))
	}
	fmt.Print(table)
	return nil
}
