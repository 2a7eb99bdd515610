// Package doctor looks at everything that rollbackd stands on: every dependency, name, limit and right. Each check says
// what was found and, unless all is well, what to do about it. It changes nothing that lasts: no message is published
// that a queue could take, no row is written, and the one key it sets in Redis is its own and is taken away again.
// What only a running daemon knows, it is asked for.
//
// What lives here: the checks, each a question and the verdicts on its answer. What must not: how they are shown
// (internal/cli), and the rules of settings, which internal/config has.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/internal/admin/server"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/config"
	httphandler "github.com/rollbackd/rollbackd/internal/handler/http"
	sqlhandler "github.com/rollbackd/rollbackd/internal/handler/sql"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/redisdb"
	"github.com/rollbackd/rollbackd/lock"
	"github.com/rollbackd/rollbackd/outbox/relay"
)

// Level says how a check came out.
type Level string

// The levels.
const (
	OK   Level = "ok"
	Note Level = "note" // cannot be checked from here, or is only to be known
	Warn Level = "warn" // works, but not as well or as safely as it could
	Fail Level = "fail" // the daemon cannot work, or not keep its promise
)

// Check is one thing that was looked at. The names of its JSON form are stable.
type Check struct {
	Area  string `json:"area"` // rabbitmq, mysql, redis or lock, service, daemon, settings or host
	Name  string `json:"check"`
	Level Level  `json:"level"`
	Found string `json:"found"`
	Do    string `json:"do,omitempty"` // what to do about it
}

// Run makes all checks, or those that matter to a relay of an outbox; advice calls the program by the name that it was
// called. Of further queues it tells what is not well and was not told before. Servers are asked at the same time; one
// that does not answer costs some ten seconds.
func Run(ctx context.Context, cfg config.Config, program string, ofRelay bool) (all []Check) {
	areas := []look{{"rabbitmq", lookAtRabbit}, {"mysql", lookAtMySQL}, {"daemon", lookAtDaemon}}
	if ofRelay {
		return lookAt(ctx, areas, area{Config: cfg, program: program, ofRelay: true})
	}
	areas = slices.Insert(areas, 2, look{"redis", lookAtLock}, look{"service", lookAtService})
	areas = append(areas, look{"settings", lookAtSettings}, look{"host", lookAtHost})
	for i, queue := range cfg.All() {
		found := lookAt(ctx, areas, area{Config: queue, program: program})
		if i > 0 {
			made := len(found)
			found = slices.DeleteFunc(found, func(c Check) bool {
				return c.Level == OK || c.Level == Note || slices.Contains(all, c)
			})
			for j := range found {
				found[j].Name = queue.Queue + ": " + found[j].Name
			}
			all = append(all, Check{"settings", "further queue", OK, fmt.Sprintf("%s: %d checks were made for it, %d of them "+
				"say what is not well with it", queue.Queue, made, len(found)), ""})
		}
		all = append(all, found...)
	}
	return all
}

// look is what looks at one area.
type look struct {
	name string
	look func(context.Context, *area)
}

// lookAt makes the checks of areas, all at the same time.
func lookAt(ctx context.Context, areas []look, empty area) (all []Check) {
	empty.redisShown = empty.Shown("REDIS_URL")
	found := make([]area, len(areas))
	var wg sync.WaitGroup
	for i, a := range areas {
		found[i] = empty
		found[i].name = a.name
		wg.Go(func() { a.look(ctx, &found[i]) })
	}
	wg.Wait()
	for _, a := range found {
		all = append(all, a.checks...)
	}
	return all
}

// area is one server, or whatever else is looked at by itself, with the settings and what was found there.
type area struct {
	config.Config
	program    string
	ofRelay    bool   // nothing matters but what a relay needs
	redisShown string // RedisURL, secrets masked
	name       string
	checks     []Check
}

// connections is the name of those that are made to look.
func connections() string { return rabbit.ConnectionName("doctor") }

// verdict is told of an answer that has this property.
type verdict struct {
	when      bool
	level     Level
	found, do string
}

// tell adds the first of the verdicts that holds, if any does, and reports its level.
func (a *area) tell(check string, verdicts ...verdict) Level {
	for _, v := range verdicts {
		if v.when {
			a.checks = append(a.checks, Check{a.name, check, v.level, v.found, v.do})
			return v.level
		}
	}
	return OK
}

func fine(found string) verdict                  { return verdict{true, OK, found, ""} }
func okIf(when bool, found string) verdict       { return verdict{when, OK, found, ""} }
func noteIf(when bool, found string) verdict     { return verdict{when, Note, found, ""} }
func warnIf(when bool, found, do string) verdict { return verdict{when, Warn, found, do} }
func failIf(when bool, found, do string) verdict { return verdict{when, Fail, found, do} }

func (a *area) ok(check, found string)       { a.tell(check, fine(found)) }
func (a *area) note(check, found string)     { a.tell(check, noteIf(true, found)) }
func (a *area) warn(check, found, do string) { a.tell(check, warnIf(true, found, do)) }
func (a *area) fail(check, found, do string) { a.tell(check, failIf(true, found, do)) }

// again is what to do about a server that answers, but not this time.
const again = "run again; see the server's log"

// failed tells of a question that was not answered, and reports whether that is so.
func (a *area) failed(check string, err error, do string) bool {
	if err != nil {
		a.fail(check, err.Error(), do)
	}
	return err != nil
}

// without is the area before anything was found; with adds what was found there, under names that begin so.
func (a *area) without() *area {
	return &area{Config: a.Config, program: a.program, redisShown: a.redisShown, name: a.name}
}

func (a *area) with(prefix string, part *area) {
	for _, c := range part.checks {
		c.Name = prefix + c.Name
		a.checks = append(a.checks, c)
	}
}

// lookAtSettings says what settings mean together; each by itself was checked when they were read.
func lookAtSettings(_ context.Context, a *area) {
	for _, r := range a.Remarks() {
		a.warn(r.Variable, r.What, r.Do)
	}
	if a.Handler == config.HandlerSQL {
		_, err := sqlhandler.Load(a.SQLFile, a.OwnTables())
		a.failed("ROLLBACKD_SQL_FILE", err, "mend the file: run refuses to start")
	}
	if a.ExpectedFile != "" {
		_, _, err := sqlhandler.LoadQuery(a.ExpectedFile, "after", "limit")
		a.failed("ROLLBACKD_EXPECTED_FILE", err, "mend the file, see docs/outbox.md: run refuses to start")
	}
	a.tell("together", okIf(len(a.checks) == 0, "they go together"))
}

// lookAtHost compares the file descriptors that the process may have with those that a daemon may need at once: pools
// of MySQL and of the lock, two connections to RabbitMQ, the pages, and what the process has anyway.
func lookAtHost(_ context.Context, a *area) {
	const name = "file descriptors"
	limit, err := server.OpenFiles()
	need := uint64(a.mysqlConnections() + a.redisConnections() + 2 + 64)
	found := fmt.Sprintf("%d allowed, a daemon with these settings may need %d", limit, need)
	a.tell(name, noteIf(err != nil, fmt.Sprintf("their limit is not shown: %v", err)),
		failIf(limit < need, found, "raise the limit (ulimit -n, LimitNOFILE=), or use fewer ROLLBACKD_LANES"),
		warnIf(limit < 2*need, found, "raise the limit (ulimit -n, LimitNOFILE=)"),
		fine(found))
}

// mysqlConnections is how many connections of MySQL a daemon with these settings has at most: those of its engine,
// those of what persons do and look at, and those with which the pages look at a lock in MySQL.
func (a *area) mysqlConnections() int {
	if a.ofRelay {
		return relay.Connections
	}
	n := a.MySQLConnections()
	if a.HTTPAddr != "" {
		n += operator.Connections + view.Connections
		if a.Lock == lock.KindMySQL {
			n += view.Connections
		}
	}
	return n
}

// redisConnections is the same for the lock in Redis, with one node for each URL.
func (a *area) redisConnections() int {
	servers := a.LockServers("")
	if servers.None() || !servers.Kind.InRedis() {
		return 0
	}
	each := a.Lanes + 4 // as the engine has
	for _, other := range a.All()[1:] {
		each += other.Lanes
	}
	if a.HTTPAddr != "" {
		each += view.Connections
	}
	return each * len(redisdb.SplitURLs(servers.RedisURL))
}

// lookAtDaemon asks the daemon that answers where these settings say, and repeats what it misses: what it has met, a
// queue that ends its connections or refuses its copies, nobody sees from outside.
func lookAtDaemon(ctx context.Context, a *area) {
	_, port, _ := net.SplitHostPort(a.HTTPAddr)
	if a.HTTPAddr == "" || port == "0" {
		a.tell("answer", noteIf(a.HTTPAddr == "", "not asked for: ROLLBACKD_HTTP_ADDR is off; what a daemon misses stands "+
			"in its log only"), noteIf(true, "not asked for: ROLLBACKD_HTTP_ADDR is "+a.HTTPAddr+
			", which is another port each time; the daemon's log says which, and its /readyz what it misses"))
		return
	}
	said, err := server.Ask(ctx, a.HTTPAddr, "")
	if err == nil && said.Group == a.Group && said.Queue == a.Queue && a.AdminToken != "" { // no stranger's
		said, err = server.Ask(ctx, a.HTTPAddr, a.AdminToken)
	}
	if err != nil {
		a.tell("answer",
			noteIf(errors.Is(err, server.ErrNobody), "no daemon answers at ROLLBACKD_HTTP_ADDR, which is no fault when none "+
				"runs on this machine or in this container; where one runs, doctor repeats what it misses. "+err.Error()),
			warnIf(errors.Is(err, server.ErrSilent), a.HTTPAddr+": "+err.Error(), "is the daemon frozen, or this machine "+
				"overloaded? See its log"),
			warnIf(errors.Is(err, server.ErrStranger), a.HTTPAddr+": "+err.Error(), "no daemon can listen there beside it: "+
				"choose another ROLLBACKD_HTTP_ADDR"),
			warnIf(true, err.Error(), "see ROLLBACKD_HTTP_ADDR"))
		return
	}
	who := fmt.Sprintf("the daemon at %s, group %s, queue %s,", said.From, said.Group, said.Queue)
	stranger := said.Group != a.Group || said.Queue != a.Queue
	a.tell("answer",
		warnIf(stranger, fmt.Sprintf("%s is not that of these settings, group %s, queue %s: what it misses is not "+
			"repeated", who, a.Group, a.Queue), "run doctor with the settings of that daemon, or give each daemon of a machine "+
			"a ROLLBACKD_HTTP_ADDR of its own"),
		noteIf(said.PagesOnly, who+" only shows pages (serve)"),
		okIf(said.Ready, who+" takes deliveries"),
		noteIf(true, who+" takes no deliveries now"))
	if stranger {
		return
	}
	a.tell("draining", noteIf(said.Draining, "a stop was asked for: the daemon finishes what it has in hand"))
	for _, what := range said.Waiting {
		name, _, _ := strings.Cut(what, ": ")
		a.tell("waiting",
			warnIf(what == server.NotConnected, what, "ask again: the daemon starts, or is between two connections"),
			noteIf(name == consumer.PausedByPerson, what),
			failIf(true, what, "the daemon takes nothing until that is mended; its log says since when"))
	}
	for _, what := range said.Degraded {
		a.warn("degraded", what, "do what the daemon says; its log says since when")
	}
}

// lookAtService asks whether the service of handler http answers. It gets no message: what it would say to one is not
// known from that.
func lookAtService(ctx context.Context, a *area) {
	if a.Handler != config.HandlerHTTP {
		return
	}
	status, err := httphandler.Ask(ctx, httphandler.Options{
		Target: a.HTTPTarget, Timeout: a.HTTPTimeout, Concurrency: 1,
		CAFile: a.HTTPTLSCAFile, CertFile: a.HTTPTLSCertFile, KeyFile: a.HTTPTLSKeyFile,
		Token: func() string { return a.HTTPToken },
	})
	if a.failed("answer", err, "is the service running, and reached from here? See ROLLBACKD_HTTP_TARGET and "+
		"ROLLBACKD_HTTP_TLS_CA_FILE. While it is away the daemon waits") {
		return
	}
	const refused, gone, away = "see ROLLBACKD_HTTP_TOKEN and ROLLBACKD_HTTP_TLS_CERT_FILE: if a POST is answered so, " +
		"nothing is consumed", "see the path of ROLLBACKD_HTTP_TARGET: if a POST is answered so, every message is " +
		"dead-lettered", "the service behind that address is away: the daemon waits for it"
	do := map[int]string{
		http.StatusUnauthorized: refused, http.StatusForbidden: refused, http.StatusProxyAuthRequired: refused,
		http.StatusNotFound: gone, http.StatusGone: gone,
		http.StatusBadGateway: away, http.StatusServiceUnavailable: away, http.StatusGatewayTimeout: away,
	}[status]
	if status >= 300 && status <= 399 {
		do = "redirects are not followed: give ROLLBACKD_HTTP_TARGET the last address"
	}
	found := fmt.Sprintf("it answers a HEAD request with %d %s", status, http.StatusText(status))
	a.tell("answer", warnIf(do != "", found, do), fine(found))
}
