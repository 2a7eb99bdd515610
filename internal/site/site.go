// Package site joins what answers over HTTP for the consumers of a program: probes and metrics, pages for people and
// the API for programs, on pools of their own, and who does what is asked for there. A daemon has one, and so has a
// program that mounts one in its own server. It must not know where settings come from, nor consume.
package site

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/internal/admin/api"
	"github.com/rollbackd/rollbackd/internal/admin/pages"
	"github.com/rollbackd/rollbackd/internal/admin/server"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/store"
)

// What the process says of itself, and a proxy that vouches for persons.
type (
	Readiness = server.Readiness
	Proxy     = server.Proxy
)

// Options are where a [Site] answers, to whom, and with what. Of the View it is told Health, Hide and Logger.
type Options struct {
	Addr    string // host:port; port 0 takes a free one; "": it is mounted in somebody's server
	Version string // of the program, for its pages
	Guard   server.GuardOptions
	View    view.Options
	Metrics Metrics      // for the guard and the view too, as are the view's logger and health for the others
	Debug   http.Handler // at /debug/pprof/, for who may act; nil: nothing is there
	Bare    bool         // neither pages nor API: the view says health and log alone

	Queues   []store.Queue        // whose runs are done here; the pages are those of the first
	Members  []*consumer.Consumer // of each queue, whose handlers rehearse; nil: nothing is consumed here
	Expected operator.Query       // of the messages that should have come
}

// Metrics are shown, and take those of the site.
type Metrics interface {
	prometheus.Registerer
	prometheus.Gatherer
}

// Site answers on one address, or as a handler, and is open until Close.
type Site struct {
	http.Handler // nil with an address

	server  *server.Server // nil without
	view    *view.View     // nil of a bare one
	pages   *pages.Pages
	desks   []*operator.Operator // of each queue
	closers []func() error
}

// programName is how the commands are called that pages name.
const programName = "rollbackd"

// Open makes what persons and programs look and act with, on pools of its own, so that what they do takes no connection
// from a lane, and binds the address, if there is one. It asks no server yet.
func Open(ctx context.Context, o Options) (s *Site, err error) {
	s = &Site{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if !o.Bare {
		if err := s.join(ctx, &o); err != nil {
			return s, fmt.Errorf("pages: %w", err)
		}
	}
	return s, s.listen(ctx, o)
}

// join opens what the pages look at, and who acts.
func (s *Site) join(ctx context.Context, o *Options) error {
	first, looking := o.Queues[0], &o.View
	acts, err := s.open(ctx, first, "desk", operator.Pool())
	if err != nil {
		return err
	}
	for i, queue := range o.Queues {
		of, err := acts.Of(queue)
		if err != nil {
			return err
		}
		acting := operator.Options{
			Lookup: of.Lookup, Letters: of.Letters, Queue: queue.Queue, Retention: max(0, first.LogRetention),
			Logger: looking.Logger, Drain: first.DrainTimeout, Expected: o.Expected,
		}
		if o.Members != nil {
			member := o.Members[i]
			stage, err := s.open(ctx, queue, "rehearsal", operator.RehearsalPool(member.Config().HandlerTimeout))
			if err != nil {
				return err
			}
			acting.Rehearse = operator.RehearseOn(stage.Pool, member.Rehearse)
		}
		desk, err := operator.New(acting)
		if err != nil {
			return err
		}
		s.desks = append(s.desks, desk)
	}
	looks, err := s.open(ctx, first, "pages", store.Options{ // the engine has said what the DSN is warned of
		MaxOpen: view.Connections, ReadTimeout: 2 * view.StatementTime, WriteTimeout: 2 * view.StatementTime,
		Statement: view.StatementTime,
	})
	if err != nil {
		return err
	}
	looking.Lookup, looking.Letters, looking.Desk = looks.Lookup, looks.Letters, s.desks[0]
	looking.Elects, looking.Metrics = !first.WithoutKeeper, o.Metrics
	looking.Names = operator.Names{Queue: first.Queue, MaxAttempts: first.MaxAttempts, Program: programName}
	looking.Lock, err = looks.LockWords(ctx)
	return err
}

func (s *Site) open(ctx context.Context, q store.Queue, name string, o store.Options) (*store.Store, error) {
	opened, err := store.Open(ctx, q, name, o)
	if err == nil {
		s.closers = append(s.closers, opened.Close)
	}
	return opened, err
}

// listen makes what answers, and binds the address.
func (s *Site) listen(ctx context.Context, o Options) error {
	log := o.View.Logger
	o.Guard.Metrics, o.Guard.Logger = o.Metrics, log
	if !o.Bare {
		o.Guard.Refused = pages.NewRefusals(o.View.Desk, log).Note
	}
	guard, err := server.NewGuard(o.Guard)
	if err != nil {
		return err
	}
	o.View.Health = s.withNames(o.View.Health)
	guarded := map[string]http.Handler{}
	if o.Debug != nil {
		guarded["/debug/pprof/"] = guard.Protect(server.Act, o.Debug)
	}
	if !o.Bare {
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
		return nil
	}
	s.server, err = server.Listen(ctx, answers)
	return err
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

// Work does what persons ask for until ctx ends.
func (s *Site) Work(ctx context.Context) {
	var wg sync.WaitGroup
	for _, desk := range s.desks {
		wg.Go(func() { desk.Work(ctx) })
	}
	wg.Wait()
}

// Close ends what Open has opened.
func (s *Site) Close() error {
	var errs []error
	for _, end := range slices.Backward(s.closers) {
		errs = append(errs, end())
	}
	s.closers = nil
	return errors.Join(errs...)
}

// A lane that stands still for so many handler timeouts, and at least for so long, counts as stuck. Whatever it asks of
// a server has an end before that, also with the shortest timeouts; while it waits between two such questions it is not
// counted. So a server that is away does not get the process restarted, and a stuck lane does, whatever else is away.
const (
	stuckAfter = 3
	stuckLeast = 30 * time.Second
)

// ReadinessOf joins what the consumers of a process say of themselves; the first one's is its name.
func ReadinessOf(members []*consumer.Consumer) Readiness {
	r := Readiness{Consuming: true}
	for _, m := range members {
		s, of := m.State(), m.Config()
		r.Group, r.Queue = cmp.Or(r.Group, of.Group), cmp.Or(r.Queue, of.Queue)
		if len(members) > 1 {
			s = named(s, of.Queue)
			r.Queues = append(r.Queues, server.QueueReadiness{
				Group: of.Group, Queue: of.Queue, Ready: s.Consuming && !s.Draining && len(s.Paused) == 0,
			})
		}
		r.Consuming, r.Draining = r.Consuming && s.Consuming, r.Draining || s.Draining
		r.Waiting, r.Degraded = append(r.Waiting, s.Paused...), append(r.Degraded, s.Degraded...)
		r.Stuck = cmp.Or(r.Stuck, stuck(s.Still, of.HandlerTimeout))
	}
	slices.Sort(r.Waiting)
	slices.Sort(r.Degraded)
	return r
}

// named says of what is amiss with one of several queues of which. What is said of a queue begins with its name, and
// the outbox is that of all.
func named(s consumer.State, queue string) consumer.State {
	for _, all := range [][]string{s.Paused, s.Degraded} {
		for i, text := range all {
			if what, why, _ := strings.Cut(text, ": "); what != "outbox" && !strings.HasPrefix(what, queue) {
				all[i] = what + " of " + queue + ": " + why
			}
		}
	}
	return s
}

// stuck is why the process should be restarted; empty while it need not be.
func stuck(still, handlerTimeout time.Duration) string {
	limit := max(stuckAfter*handlerTimeout, stuckLeast)
	if still <= limit {
		return ""
	}
	return fmt.Sprintf("a lane, or a call of the handler, has not moved for %v, over %v (%d × ROLLBACKD_HANDLER_TIMEOUT, "+
		"at least %v)", still.Round(time.Second), limit, stuckAfter, stuckLeast)
}
