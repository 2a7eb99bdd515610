package run

import (
	"context"
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
	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/wait"
)

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

// view opens a page as a browser does, on a connection that is kept, and reads it. What answers but 200 is an error.
func (p *processes) view(ctx context.Context, path string) (text []byte) {
	address := must.Get(p.all[0].Addr(ctx))
	request := must.Get(http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, http.NoBody))
	response := must.Get(http.DefaultClient.Do(request))
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		must.OK(fmt.Errorf("%s answers %d", path, response.StatusCode))
	}
	return must.Get(io.ReadAll(response.Body))
}

// viewing lets somebody look at a daemon's pages as people do, from now until stop: the overview stays open and is kept
// live, and every viewEvery another page is opened, each in turn. stop says how long each took at most, in
// milliseconds.
func (p *processes) viewing() (stop func() map[string]float64) {
	ctx, cancel := context.WithCancel(p.r.Ground.Ctx)
	took := map[string]float64{}
	ended, hungUp := make(chan error, 1), make(chan error, 1)
	go func() { hungUp <- must.Catch(func() { p.view(ctx, live) }) }()
	go func() { ended <- must.Catch(func() { p.look(ctx, took) }) }()
	return func() map[string]float64 {
		cancel()
		<-hungUp
		err := <-ended
		http.DefaultClient.CloseIdleConnections()
		must.OK(err)
		return took
	}
}

// look opens pages until ctx ends, and notes how long each took at most.
func (p *processes) look(ctx context.Context, took map[string]float64) {
	for {
		for name, path := range viewed() {
			began := time.Now()
			err := must.Catch(func() { p.view(ctx, path) })
			if ctx.Err() != nil {
				return
			}
			must.OK(err, "the page of ", name)
			took[name] = max(took[name], ms(time.Since(began)))
			if wait.For(ctx, viewEvery) != nil {
				return
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
func (r *Runner) PageCosts(seconds int) []PageCost {
	return repeated(r, "pages", func() (costs []PageCost) {
		sowing := ground.Sowing{Orders: 1, NoBacklog: true, KeepLog: true}
		r.alone(r.full(), "pages", sowing, nil, func(p *processes) {
			p.untilReady()
			defer http.DefaultClient.CloseIdleConnections()
			costs = p.pageCosts(seconds)
		})
		return costs
	})
}

func (p *processes) pageCosts(seconds int) (costs []PageCost) {
	spend := func(name string, times int, do func()) {
		before, began := p.sum(cpu), time.Now()
		do()
		each := float64(times) / 1000
		took := time.Since(began).Seconds() / each
		spent := since(p.sum(cpu), before, each)
		costs = append(costs, PageCost{name, took, spent["mysql"], spent["client"]})
	}
	ctx, idle := p.r.Ground.Ctx, time.Duration(seconds)*time.Second
	if seconds > 0 {
		spend("nothing, a second", seconds, func() { p.r.Ground.Rest(idle) })
	}
	pages := viewed()
	for _, name := range slices.Sorted(maps.Keys(pages)) {
		spend(name, looks, func() {
			for range looks {
				p.view(ctx, pages[name])
			}
		})
	}
	if seconds > 0 {
		spend("the overview kept live, a second", seconds, func() {
			open, hangUp := context.WithTimeout(ctx, idle)
			defer hangUp()
			_ = must.Catch(func() { p.view(open, live) }) // it ends when we hang up
			must.OK(context.Cause(ctx))
		})
	}
	return costs
}
