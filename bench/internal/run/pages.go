package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// viewer looks at a daemon's pages as people do: the overview stays open and is kept live, and every viewEvery another
// page is opened, each in turn.
type viewer struct {
	addr   string
	client *http.Client
}

// viewEvery is about as fast as three people click.
const viewEvery = 600 * time.Millisecond

// live is the overview's path whose answer goes on until somebody hangs up.
const live = "/?live=1"

// viewed are the pages by what they show. The letter is one of those that [ground.Field.FillLog] files.
func viewed() map[string]string {
	l := ground.LetterOf(4242)
	key, reason, at := url.QueryEscape(l.Key), string(l.Reason), deadletter.Fingerprint(l.Error)
	return map[string]string{
		"overview":          "/",
		"letters":           "/letters",
		"letters by key":    "/letters?key=" + key,
		"letters by error":  "/letters?error=" + url.QueryEscape(l.Error),
		"group":             "/letters/groups/" + view.GroupID(l.Reason, at),
		"preview of one":    "/letters/act?act=replay&key=" + key,
		"preview of all":    "/letters/act?act=replay&all=1",
		"preview of a kind": "/letters/act?act=replay&reason=" + reason + "&fingerprint=" + url.QueryEscape(at),
		"acts":              "/acts",
		"log":               "/log",
		"log by key":        "/log?key=" + key,
		"log by status":     "/log?status=dead",
		"message":           "/message?tag=" + ground.RoutingKey + "&key=" + key,
		"order":             "/order?sn=" + url.QueryEscape(l.Order),
	}
}

func newViewer(ctx context.Context, p *program.Process) (*viewer, error) {
	addr, err := p.Addr(ctx)
	return &viewer{addr, &http.Client{Transport: &http.Transport{}}}, err
}

// get opens a page, and reads it into a writer. What answers but 200 is an error.
func (v *viewer) get(ctx context.Context, path string, into io.Writer) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+v.addr+path, http.NoBody)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	response, err := v.client.Do(request)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %d", path, response.StatusCode)
	}
	_, err = io.Copy(into, response.Body)
	return err
}

// viewing lets somebody look at a daemon's pages from now until stop, which says how long each took at most, in
// milliseconds.
func viewing(ctx context.Context, p *program.Process) (stop func() (map[string]float64, error), err error) {
	v, err := newViewer(ctx, p)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	took := map[string]float64{}
	ended, hungUp := make(chan error, 1), make(chan error, 1)
	go func() { hungUp <- v.get(ctx, live, io.Discard) }()
	go func() { ended <- v.look(ctx, took) }()
	return func() (map[string]float64, error) {
		cancel()
		<-hungUp
		err := <-ended
		v.client.CloseIdleConnections()
		return took, err
	}, nil
}

// look opens pages until ctx ends, and notes how long each took at most.
func (v *viewer) look(ctx context.Context, took map[string]float64) error {
	for {
		for name, path := range viewed() {
			began := time.Now()
			err := v.get(ctx, path, io.Discard)
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return fmt.Errorf("the page of %s: %w", name, err)
			}
			took[name] = max(took[name], ms(time.Since(began)))
			if wait.For(ctx, viewEvery) != nil {
				return nil
			}
		}
	}
}

// PageCost is what one look at a page costs, in milliseconds: how long the answer took on the average, and what MySQL
// and the daemon spent on it of a processor.
type PageCost struct {
	Page                string
	Took, MySQL, Daemon float64
}

// looks is how often each page is opened: CPU times come in hundredths of a second.
const looks = 40

// PageCosts opens each page of a daemon that has nothing else to do, before the full log. If seconds is not 0, the
// first is what a second costs without anybody, and the last while somebody keeps the overview open, each over so many.
func (r *Runner) PageCosts(ctx context.Context, seconds int) ([]PageCost, error) {
	return repeated(ctx, r, "pages", func() (costs []PageCost, err error) {
		f, err := r.fullField(ctx)
		if err != nil {
			return nil, err
		}
		sowing := ground.Sowing{Orders: 1, NoBacklog: true, KeepLog: true}
		_, err = r.alone(ctx, f, "pages", sowing, nil, func(d *daemon) error {
			costs, err = r.pageCosts(ctx, d, seconds)
			return err
		})
		return costs, err
	})
}

func (r *Runner) pageCosts(ctx context.Context, d *daemon, seconds int) (costs []PageCost, err error) {
	if err := d.untilReady(ctx); err != nil {
		return nil, err
	}
	v, err := newViewer(ctx, d.Process)
	if err != nil {
		return nil, err
	}
	defer v.client.CloseIdleConnections()
	servers := r.watch(d.all)
	spend := func(name string, times int, do func() error) {
		before, failed := servers.sum(cpu)
		began := time.Now()
		if failed == nil {
			failed = do()
		}
		took := time.Since(began)
		now, gone := servers.sum(cpu)
		err = errors.Join(err, failed, gone)
		n, spent := float64(times)/1000, since(now, before)
		costs = append(costs, PageCost{name, took.Seconds() / n, spent["mysql"] / n, spent["client"] / n})
	}
	idle := time.Duration(seconds) * time.Second
	if seconds > 0 {
		spend("nothing, a second", seconds, func() error { return wait.For(ctx, idle) })
	}
	pages := viewed()
	for _, name := range slices.Sorted(maps.Keys(pages)) {
		spend(name, looks, func() (err error) {
			for n := 0; n < looks && err == nil; n++ {
				err = v.get(ctx, pages[name], io.Discard)
			}
			return err
		})
	}
	if seconds > 0 {
		spend("the overview kept live, a second", seconds, func() error {
			open, hangUp := context.WithTimeout(ctx, idle)
			defer hangUp()
			_ = v.get(open, live, io.Discard) // it ends when we hang up
			return ctx.Err()
		})
	}
	return costs, err
}
