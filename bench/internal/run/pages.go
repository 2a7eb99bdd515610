package run

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"text/tabwriter"
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

// pages are the paths by what they show. The letter is one of those that [ground.Field.FillLog] files.
func pages() map[string]string {
	const key, order, cause, reason = "letter-4242", "dead-4242", "shelf k of order dead-4242 is locked", "exhausted"
	at := deadletter.Fingerprint(cause)
	return map[string]string{
		"overview":          "/",
		"letters":           "/letters",
		"letters by key":    "/letters?key=" + key,
		"letters by error":  "/letters?error=" + url.QueryEscape(cause),
		"group":             "/letters/groups/" + view.GroupID(reason, at),
		"preview of one":    "/letters/act?act=replay&key=" + key,
		"preview of all":    "/letters/act?act=replay&all=1",
		"preview of a kind": "/letters/act?act=replay&reason=" + reason + "&fingerprint=" + url.QueryEscape(at),
		"acts":              "/acts",
		"log":               "/log",
		"log by key":        "/log?key=" + key,
		"log by status":     "/log?status=dead",
		"message":           "/message?tag=" + ground.RoutingKey + "&key=" + key,
		"order":             "/order?sn=" + order,
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

// viewed does something while somebody looks at a daemon's pages as people do: the overview stays open and is kept
// live, and every viewEvery another page is opened, each in turn. It says how long each took at most, in milliseconds.
func (p *processes) viewed(do func()) Sample {
	defer http.DefaultClient.CloseIdleConnections()
	ctx, cancel := context.WithCancel(p.r.Ground.Ctx)
	took := Sample{}
	must.Side(3, func(side int) {
		switch side {
		case 0:
			defer cancel()
			do()
		case 1:
			_ = must.Catch(func() { p.view(ctx, live) }) // it ends when we hang up
		default:
			p.look(ctx, took)
		}
	})
	return took
}

// look opens pages until ctx ends, and notes how long each took at most.
func (p *processes) look(ctx context.Context, took Sample) {
	for {
		for name, path := range pages() {
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

// looks is how often each page is opened: CPU times come in hundredths of a second.
const looks = 40

// lookAt opens the pages of a daemon that has nothing else to do; the readings count the looks.
func (p *processes) lookAt() (from, to reading) {
	defer http.DefaultClient.CloseIdleConnections()
	p.untilReady(p.all[0])
	from = p.read()
	for _, path := range pages() {
		for range looks {
			p.view(p.r.Ground.Ctx, path)
		}
	}
	to = p.read()
	to.ended = from.ended + int64(looks*len(pages()))
	return from, to
}

// mostProfiled is how long the daemon's pages answer at most, with room.
const mostProfiled = 25 * time.Second

// profiled does something and writes what the daemon's pages tell meanwhile: cpu.prof and allocs.prof, for go tool
// pprof. And it tells the database's time by statement, for which the ground must have been started with Statements.
func (p *processes) profiled(f *ground.Field, do func()) {
	ctx, seconds := p.r.Ground.Ctx, max(1, min(p.r.Length, mostProfiled).Seconds())
	must.OK(os.MkdirAll(p.r.Profiles, 0o755))
	f.ForgetStatements()
	must.Side(3, func(side int) {
		if side == 0 {
			do()
			return
		}
		p.begun(p.r.Warm)
		name, page := "cpu", "profile"
		if side == 1 {
			name, page = "allocs", "allocs"
		}
		text := p.view(ctx, fmt.Sprintf("/debug/pprof/%s?seconds=%.0f", page, seconds))
		must.OK(os.WriteFile(filepath.Join(p.r.Profiles, name+".prof"), text, 0o644))
	})
	now := p.read()
	n := float64(now.fresh + now.again + now.dead)
	w := tabwriter.NewWriter(p.r.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "of %.0f messages applied or failed\nµs a message\tcount\tms each\tstatement\n", n)
	f.Statements(func(text string, count, seconds float64) {
		fmt.Fprintf(w, "%.2f\t%.0f\t%.2f\t%.150s\n", seconds*1e6/n, count, seconds*1e3/count, text)
	})
	must.OK(w.Flush())
}
