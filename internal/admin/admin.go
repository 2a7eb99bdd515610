// Package admin is all that a daemon answers over HTTP, joined: server (probes, metrics, and who is let in), view (what
// there is to see and do), pages for people and api for programs. It must not know the engine, whose state it is given
// as a function, nor settings.
package admin

import (
	"context"
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/admin/api"
	"github.com/rollbackd/rollbackd/internal/admin/pages"
	"github.com/rollbackd/rollbackd/internal/admin/server"
	"github.com/rollbackd/rollbackd/internal/admin/view"
)

// What a daemon says of itself, and a proxy that vouches for persons.
type (
	Readiness      = server.Readiness
	QueueReadiness = server.QueueReadiness
	Proxy          = server.Proxy
)

// Options are where a [Site] answers, to whom, and with what.
type Options struct {
	Addr    string // host:port; port 0 takes a free one; "": it is mounted in somebody's server
	Version string // of the program, for its pages
	Guard   server.GuardOptions
	View    view.Options
	Metrics Metrics      // for the guard and the view too, as are the view's logger and health for the others
	Debug   http.Handler // at /debug/pprof/, for who may act; nil: nothing is there
	Bare    bool         // neither pages nor API: the view says health and log alone
}

// Metrics are shown, and take those of the site.
type Metrics interface {
	prometheus.Registerer
	prometheus.Gatherer
}

// Site answers on one address, or as a handler.
type Site struct {
	http.Handler // nil with an address

	server *server.Server // nil without
	view   *view.View
	pages  *pages.Pages
}

// Pool is how the pool is opened that the letters and rows of a site are read on.
func Pool() dedup.OpenOptions {
	return dedup.OpenOptions{
		MaxOpen: view.Connections, ReadTimeout: 2 * view.StatementTime, WriteTimeout: 2 * view.StatementTime,
		Statement: view.StatementTime,
	}
}

// Open binds the address, if there is one. It asks no server yet.
func Open(ctx context.Context, o Options) (*Site, error) {
	log := o.View.Logger
	o.Guard.Metrics, o.Guard.Logger = o.Metrics, log
	if !o.Bare {
		o.Guard.Refused = pages.NewRefusals(o.View.Desk, log).Note
	}
	guard, err := server.NewGuard(o.Guard)
	if err != nil {
		return nil, err
	}
	s := &Site{}
	o.View.Health = s.withNames(o.View.Health)
	guarded := map[string]http.Handler{}
	if o.Debug != nil {
		guarded["/debug/pprof/"] = guard.Protect(server.Act, o.Debug)
	}
	if !o.Bare {
		o.View.Metrics = o.Metrics
		s.view = view.New(o.View)
		s.pages = pages.New(s.view, guard, o.Version)
		programs := api.New(s.view, guard)
		guarded["/"] = s.pages                                            // which guard themselves, page by page
		guarded[api.Prefix], guarded[api.Prefix+"/"] = programs, programs // which does so too
	}
	answers := server.Options{
		Addr: o.Addr, Health: o.View.Health, Metrics: o.Metrics, Guard: guard, Logger: log, Guarded: guarded,
	}
	if o.Addr == "" {
		s.Handler = server.Mounted(answers)
		return s, nil
	}
	s.server, err = server.Listen(ctx, answers)
	return s, err
}

// withNames says of a process that consumes nothing, and so has no engine that would, what it misses.
func (s *Site) withNames(health func() Readiness) func() Readiness {
	return func() Readiness {
		r := health()
		if !r.PagesOnly {
			return r
		}
		names := s.view.Unknown()
		switch {
		case names.Err != nil:
			r.Waiting = append(r.Waiting, "mysql: "+names.Err.Error())
		case names.At.IsZero():
			r.Waiting = append(r.Waiting, "mysql: it has not answered yet")
		}
		r.Degraded = append(r.Degraded, names.Value...)
		return r
	}
}

// Addr is the bound address.
func (s *Site) Addr() string { return s.server.Addr() }

// Serve answers until ctx ends; a mounted site answers by itself, and looks around until then.
func (s *Site) Serve(ctx context.Context) error {
	if s.view != nil {
		var watching sync.WaitGroup
		watching.Go(func() { s.view.Run(ctx) })
		defer watching.Wait()
		defer context.AfterFunc(ctx, s.pages.End)()
	}
	if s.server == nil {
		<-ctx.Done()
		return nil
	}
	return s.server.Serve(ctx)
}
