package admin

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

// Health is what the pages say of the daemon.
type Health struct {
	// Group and Queue are those of the settings: whose daemon this is.
	Group, Queue string
	// Stuck is why the process should be restarted, empty while it is alive.
	Stuck string
	// Consuming: deliveries are taken.
	Consuming bool
	// Draining: a stop was asked for.
	Draining bool
	// Waiting names what is missing or paused, each with its reason.
	Waiting []string
	// Degraded names what is amiss while deliveries are taken all the same.
	Degraded []string
}

// Ready reports whether everything is reachable and deliveries are taken.
func (h Health) Ready() bool { return h.Consuming && !h.Draining && len(h.Waiting) == 0 }

// Readiness is what /readyz answers; see [Health] for the words. Who may not look is told no reasons. The names of its
// JSON form are stable.
type Readiness struct {
	Ready    bool     `json:"ready"`
	Draining bool     `json:"draining"`
	Waiting  []string `json:"waiting"`
	Degraded []string `json:"degraded"`
	Group    string   `json:"group"`
	Queue    string   `json:"queue"`
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
	Health  func() Health
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
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { healthz(w, o.Health()) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		said := o.Health().Readiness()
		if !o.Guard.knows(r) {
			said = said.named()
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

func healthz(w http.ResponseWriter, h Health) {
	if h.Stuck != "" {
		http.Error(w, h.Stuck, http.StatusServiceUnavailable)
		return
	}
	_, _ = fmt.Fprintln(w, aliveText) // a prober that went away is not an error of ours
}

// Readiness is h as /readyz answers it.
func (h Health) Readiness() Readiness {
	waiting, degraded := append([]string{}, h.Waiting...), append([]string{}, h.Degraded...) // never null
	if !h.Consuming && !h.Draining && len(waiting) == 0 {
		waiting = append(waiting, NotConnected)
	}
	return Readiness{h.Ready(), h.Draining, waiting, degraded, h.Group, h.Queue}
}

// named is what anybody may know: what is missing or amiss, but not why. Reasons are texts of servers and people, with
// accounts, addresses and keys in them.
func (r Readiness) named() Readiness {
	r.Waiting, r.Degraded = named(r.Waiting), named(r.Degraded)
	return r
}

func named(all []string) []string {
	names := make([]string, len(all))
	for i, text := range all {
		if names[i] = text; text != NotConnected {
			names[i], _, _ = strings.Cut(text, ": ")
		}
	}
	return slices.Compact(names) // all is sorted
}

func readyz(w http.ResponseWriter, body Readiness) {
	status := http.StatusOK
	if !body.Ready {
		status = http.StatusServiceUnavailable
	}
	writeJSON(w, "application/json", status, body)
}
