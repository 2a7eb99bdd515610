// Package admin mounts what a daemon answers over HTTP in a program's own server: pages for people, the API, health and
// metrics of the consumers of the program. Who may look and who may act is decided as the daemon decides it.
//
// It is a package beside consumer, so that a program without pages links none. It must not answer anything itself:
// package internal/admin does.
package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/internal/site"
	"github.com/rollbackd/rollbackd/internal/store"
)

// Options are where a [Site] is mounted, and who is let in. Without Token and TokensFile only the machine's own
// loopback address is, to everything.
type Options struct {
	// Prefix is the path below which the program mounts the Site, such as /rollbacks, without a slash at its end. All
	// links begin with it. The Site answers whether [http.StripPrefix] has cut it off or not. Default: none, the root.
	Prefix string
	// Token is asked at each request for the one token that may do everything, so that it may change. Nil, or "": none.
	Token func() string
	// TokensFile is a file with named tokens, as ROLLBACKD_ADMIN_TOKENS_FILE names it. Empty: none.
	TokensFile string
	// HideBodies: pages and API show no body, no properties and no headers.
	HideBodies bool
	// Gatherer is what /metrics shows, and where charts come from. Default: the consumers' Registerer, which a
	// [prometheus.Registry] is both.
	Gatherer prometheus.Gatherer
}

// Site is a handler. Make it with [Open], run it once.
//
// /healthz, /readyz and /metrics answer to anybody, below the prefix too: keep them from strangers, if the server has
// any. The limits of a daemon for strangers' connections are the server's own business here.
type Site struct {
	site *site.Site
}

// Open makes the site of the consumers of a program: of one, or of all that [consumer.Consumers.Members] names. The
// pages are those of the first. What it looks at and who acts has pools of its own, of 14 connections to MySQL at most,
// and 12 more for each queue whose handler is rehearsed. Their Config says the servers, also of what [consumer.New] has
// made. It asks no server yet.
func Open(ctx context.Context, o Options, consumers ...*consumer.Consumer) (*Site, error) {
	if len(consumers) == 0 {
		return nil, errors.New("admin: no consumer is given")
	}
	first := consumers[0].Config()
	if first.MySQLDSN == "" {
		return nil, errors.New("admin: MySQLDSN of the consumer's Config is empty, and the pages have pools of their own")
	}
	odd := func(c rune) bool { return c <= ' ' || c > '~' || strings.ContainsRune("{}?#%\";", c) }
	if p := o.Prefix; p != "" && (path.Clean(p) != p || p[0] != '/' || p == "/" || strings.ContainsFunc(p, odd)) {
		return nil, fmt.Errorf("admin: Prefix %q must be a path like /rollbacks, in ASCII, without a slash at its end", p)
	}
	if o.Gatherer == nil {
		var ok bool
		if o.Gatherer, ok = first.Registerer.(prometheus.Gatherer); !ok {
			return nil, errors.New("admin: Gatherer is needed, because the consumer's Registerer only takes metrics")
		}
	}
	var all site.Options
	all.Metrics = struct {
		prometheus.Registerer
		prometheus.Gatherer
	}{first.Registerer, o.Gatherer}
	all.Guard.Token, all.Guard.TokensFile, all.Guard.BasePath = o.Token, o.TokensFile, o.Prefix
	all.View.Health = func() site.Readiness { return site.ReadinessOf(consumers) }
	all.View.Logger, all.View.Hide.Bodies = first.Logger, o.HideBodies
	all.Members = consumers
	for _, c := range consumers {
		all.Queues = append(all.Queues, store.Queue{Config: c.Config()})
	}
	opened, err := site.Open(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("admin: %w", err)
	}
	return &Site{opened}, nil
}

// ServeHTTP answers. Before and after Run too, but pages say less then, and what is asked for waits.
func (s *Site) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.site.ServeHTTP(w, r) }

// Run does what persons and programs ask for, such as a replay, and keeps the figures of the last hour, until ctx ends.
// Then it ends the pages that are watched, so that the server can shut down, gives unfinished acts to other processes,
// and closes what Open has opened.
func (s *Site) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { s.site.Work(ctx) })
	err := s.site.Serve(ctx)
	wg.Wait()
	return errors.Join(err, s.Close())
}

// Close closes what Open has opened. Run does it at its end; it is for a Site that is never run.
func (s *Site) Close() error { return s.site.Close() }
