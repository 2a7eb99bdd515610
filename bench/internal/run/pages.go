package run

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// PageCost is what one look at a page costs.
type PageCost struct {
	Page string
	// Took is how long the answer took on the average, MySQL and Daemon what they spent on it of a processor.
	Took, MySQL, Daemon time.Duration
}

// looks is how often each page is opened: CPU times come in hundredths of a second.
const looks = 40

// PageCosts opens each page of a daemon that has nothing else to do, before the full log. If seconds is not 0, the
// first is what a second costs without anybody, and the last while somebody keeps the overview open, each over so many.
func (r *Runner) PageCosts(ctx context.Context, seconds int) (costs []PageCost, err error) {
	err = r.repeated(ctx, "pages", func() (err error) {
		costs, err = r.pageCosts(ctx, seconds)
		return err
	})
	return costs, err
}

func (r *Runner) pageCosts(ctx context.Context, seconds int) (costs []PageCost, err error) {
	f, err := r.field(ctx, Contestant{FullLog: true})
	if err != nil {
		return nil, err
	}
	sowing := ground.Sowing{Orders: 1, Goods: ManyGoods, NoBacklog: true, KeepLog: true}
	if err := f.Sow(ctx, sowing, r.seed()); err != nil {
		return nil, fmt.Errorf("prepare the pages: %w", err)
	}
	log := &tail{}
	all, err := (Contestant{Name: "rollbackd"}).start(f, r.Ground, log)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err = errors.Join(err, kill(all)); err != nil {
			err = fmt.Errorf("pages: %w\nlast lines of the daemon:\n%s", err, log)
		}
	}()
	if err := untilReady(ctx, all[0]); err != nil {
		return nil, err
	}
	addr, err := all[0].Addr(ctx)
	if err != nil {
		return nil, err
	}
	v := &viewer{addr: addr, client: &http.Client{Transport: &http.Transport{}}}
	defer v.client.CloseIdleConnections()
	servers := r.watch(all)
	spend := func(name string, times int, do func() error) error {
		before, err := servers.now()
		if err != nil {
			return err
		}
		began := time.Now()
		if err := do(); err != nil {
			return fmt.Errorf("look at %s: %w", name, err)
		}
		took := time.Since(began)
		now, err := servers.now()
		if err != nil {
			return err
		}
		n := time.Duration(times)
		spent := now.since(before)
		costs = append(costs, PageCost{
			Page: name, Took: took / n, MySQL: spent["mysql"] / n, Daemon: spent["client"] / n,
		})
		return nil
	}
	idle := time.Duration(seconds) * time.Second
	if seconds > 0 {
		if err := spend("nothing, a second", seconds, func() error { return wait.For(ctx, idle) }); err != nil {
			return nil, err
		}
	}
	pages := viewed()
	for _, name := range slices.Sorted(maps.Keys(pages)) {
		err := spend(name, looks, func() error {
			for range looks {
				status, err := v.get(ctx, pages[name])
				if err == nil && status != http.StatusOK {
					err = fmt.Errorf("%s answers %d", pages[name], status)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	if seconds > 0 {
		err = spend("the overview kept live, a second", seconds, func() error {
			open, hangUp := context.WithTimeout(ctx, idle)
			defer hangUp()
			v.live(open)
			return ctx.Err()
		})
		if err != nil {
			return nil, err
		}
	}
	_, err = stop(ctx, all)
	return costs, err
}
