package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Readiness is how it stands with the daemon, as /readyz answers it. Who may not look is told no reasons. The names of
// its JSON form are stable.
type Readiness struct {
	// Ready: everything is reachable, and deliveries are taken where they are to be.
	Ready bool `json:"ready"`
	// Draining: a stop was asked for.
	Draining bool `json:"draining"`
	// Waiting names what is missing or paused, each with its reason.
	Waiting []string `json:"waiting"`
	// Degraded names what is amiss while deliveries are taken all the same.
	Degraded []string `json:"degraded"`
	// Group and Queue are those of the settings: whose daemon this is.
	Group string `json:"group"`
	Queue string `json:"queue"`
	// Queues tells of each, where a daemon consumes several; Queue is the first of them.
	Queues []QueueReadiness `json:"queues,omitempty"`
	// PagesOnly: nothing is to be consumed here.
	PagesOnly bool `json:"pages_only,omitempty"`
	// Consuming: deliveries are taken.
	Consuming bool `json:"-"`
	// Stuck is why the process should be restarted, empty while it is alive.
	Stuck string `json:"-"`
}

// QueueReadiness is how it stands with one of several queues.
type QueueReadiness struct {
	Group string `json:"group"`
	Queue string `json:"queue"`
	// Ready: its deliveries are taken.
	Ready bool `json:"ready"`
}

// NotConnected is what a daemon waits for that misses nothing: it starts, or is between two connections to RabbitMQ.
const NotConnected = "session: not yet connected"

// aliveText is what /healthz answers of a daemon that is alive.
const aliveText = "ok"

// Server answers on one address.
type Server struct {
	listener *connections
	http     *http.Server
}

// Options are what a [Server] answers with.
type Options struct {
	Addr    string // host:port; port 0 takes a free one
	Health  func() Readiness
	Metrics prometheus.Gatherer
	// Guarded are handlers by the pattern below the base path that they answer at, such as /debug/pprof/. They see paths
	// without the base path, and must stand behind the guard.
	Guarded map[string]http.Handler
	// Guard knows the base path; nil when there is nothing that it guards.
	Guard  *Guard
	Logger *slog.Logger
}

// Listen binds the address. [Server.Serve] answers.
func Listen(ctx context.Context, o Options) (*Server, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", o.Addr)
	if err != nil {
		return nil, fmt.Errorf("listen on ROLLBACKD_HTTP_ADDR %s: %w; is another daemon running there? Choose another "+
			"address, or off", o.Addr, err)
	}
	all := newConnections(l.(*net.TCPListener), o.Logger) // as its network is TCP
	return &Server{
		listener: all,
		http: &http.Server{
			Handler: all.heard(o.handler()), ConnContext: all.known, ReadHeaderTimeout: headersWithin,
			ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute,
			MaxHeaderBytes: mostHeader, ErrorLog: slog.NewLogLogger(o.Logger.Handler(), slog.LevelWarn),
		},
	}, nil
}

// handler answers probes and scrapes to anybody, at the root. Behind the guard everything answers below the base path,
// and at the root too, for a proxy that cuts the base path off.
func (o Options) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if stuck := o.Health().Stuck; stuck != "" {
			http.Error(w, stuck, http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, aliveText) // a prober that went away is not an error of ours
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		said := o.Health().Said()
		if !o.Guard.knows(r) {
			said.Waiting, said.Degraded = named(said.Waiting), named(said.Degraded)
		}
		readyz(w, said)
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(o.Metrics, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(o.Logger.Handler(), slog.LevelError),
	}))
	for pattern, h := range o.Guarded {
		mux.Handle(pattern, h)
		if base := o.Guard.BasePath(); base != "" {
			mux.Handle(base+pattern, http.StripPrefix(base, h))
		}
	}
	return mux
}

// Mounted answers in a server of somebody else's, below the base path: whether that is cut off already or not.
func Mounted(o Options) http.Handler {
	all := o.handler()
	base := o.Guard.BasePath()
	if base == "" {
		return all
	}
	mux := http.NewServeMux()
	mux.Handle("/", all)
	mux.Handle(base+"/", http.StripPrefix(base, all)) // probes and metrics too
	return mux
}

// Addr is the bound address.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Serve answers until ctx ends, then lets the requests in hand finish within a second.
func (s *Server) Serve(ctx context.Context) error {
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		stopped <- s.http.Shutdown(grace)
	})
	err := s.http.Serve(s.listener)
	if !stop() {
		err = errors.Join(err, <-stopped)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Said is r as it is answered: with what follows from it, and lists that are never null.
func (r Readiness) Said() Readiness {
	r.Waiting, r.Degraded = append([]string{}, r.Waiting...), append([]string{}, r.Degraded...)
	atWork := r.Consuming || r.PagesOnly
	if !atWork && !r.Draining && len(r.Waiting) == 0 {
		r.Waiting = append(r.Waiting, NotConnected)
	}
	r.Ready = atWork && !r.Draining && len(r.Waiting) == 0
	return r
}

// named is what anybody may know: what is missing or amiss, but not why. Reasons are texts of servers and people, with
// accounts, addresses and keys in them.
func named(all []string) []string {
	for i, text := range all {
		if text != NotConnected {
			all[i], _, _ = strings.Cut(text, ": ")
		}
	}
	return slices.Compact(all) // all is sorted
}

func readyz(w http.ResponseWriter, body Readiness) {
	status := http.StatusOK
	if !body.Ready {
		status = http.StatusServiceUnavailable
	}
	writeJSON(w, "application/json", status, body)
}
