package consumer

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rollbackd/rollbackd/consumer/internal/admission"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
)

// Names of the dependencies in [State] and in the metric rollbackd_dependency_up.
const (
	DependencyRabbitMQ = "rabbitmq"
	DependencyMySQL    = "mysql"
	DependencyRedis    = "redis"
	DependencyLock     = "lock"    // the server of a lock that is not in Redis
	DependencyService  = "service" // what the function of [Calls] calls
)

// degradedByContention is the name of other people's locks in [State].
const degradedByContention = "contention"

// State is a snapshot of what the engine is doing, for health pages.
type State struct {
	// Consuming: a session stands and lanes take deliveries.
	Consuming bool
	// Paused names why nothing is consumed, sorted; empty while consuming.
	Paused []string
	// Degraded names what is amiss while consuming goes on, sorted, each with its reason.
	Degraded []string
	// Draining: a stop was asked for.
	Draining bool
	// Still is how long the laziest lane with a batch in hand has not moved; 0 when none has a batch. A lane that waits
	// for a dependency, or for somebody else's lease, counts only while it asks. A call of the handler that does not
	// return although its time is over counts from its beginning until it does: only the end of the process ends it.
	Still time.Duration
}

// health keeps what the engine is waiting for. It logs each change once.
type health struct {
	log *slog.Logger
	m   *metrics
	// recently is how long a lock that was waited for in vain is told of: longer than the next wait may take to end.
	recently time.Duration
	// again is how long after a wait in vain the next one may belong to it: its message comes back from a retry queue.
	again time.Duration

	mu        sync.Mutex
	met       trouble                 // the last wait in vain; guarded by mu
	contended time.Time               // when the first one was that belongs to it; guarded by mu
	who       string                  // holds the locks, as far as is known; guarded by mu
	troubles  map[degradation]trouble // of no queue: it is waited for; guarded by mu
	consuming bool                    // guarded by mu
	began     bool                    // it has consumed once; guarded by mu
	draining  bool                    // guarded by mu
	lanes     map[string][]*laneClock // by queue; guarded by mu
}

// degradation is something that is amiss, and the queue that it befell; none, where nothing is consumed because of it.
type degradation struct{ why, queue string }

// Why something is degraded, in the metric rollbackd_degraded.
const (
	notConsumed     = "not_consumed"       // the backstop: its session failed
	refusesCopies   = "refuses_copies"     // it is full or gone: deliveries are held
	cannotBeSent    = "cannot_be_sent"     // to it, as it is: a delivery is held
	handlerStuck    = "handler_stuck"      // calls of the handler do not return
	endsConnections = "ends_connections"   // something in it ends the connections on which it is delivered
	publishBlocked  = "publishing_blocked" // RabbitMQ takes nothing of those who publish: an alarm of memory or disk
	clocksDiffer    = "clocks_differ"      // MySQL's and this process's: what goes by age stands still
)

type trouble struct {
	why  string
	at   time.Time
	told time.Time // when the log last said so
}

// stillEvery is how often the log says that a dependency is still away.
const stillEvery = time.Minute

// dos say of each dependency what a person can do while it is away. What else is waited for says so itself.
var dos = map[string]string{
	DependencyRabbitMQ: "see that RabbitMQ runs, is reached from here and lets this user in; it keeps the messages",
	DependencyMySQL:    "see that MySQL runs, is reached from here, lets this user in and can write; nothing is lost",
	DependencyRedis:    "see that Redis runs, is reached from here and lets this user in; or go on without the lock",
	DependencyLock:     "see that the lock's servers run and are reached from here; or go on without the lock",
	DependencyService:  "see that the service runs and does what the error lacks; messages wait in RabbitMQ",
}

// doOf is what a person can do while a dependency says err, or nothing.
func doOf(what string, err error) string {
	if what == DependencyMySQL && (mysqldb.NoTable(err) || mysqldb.NoColumn(err)) {
		return "make it: `rollbackd migrate`, or Migrate in the Config, makes what is rollbackd's; nothing is lost"
	}
	return dos[what]
}

// laneClock is when a lane last moved, in Unix nanoseconds; 0 while it has no batch. Its lane writes it.
type laneClock struct{ at atomic.Int64 }

func (c *laneClock) tick() { c.at.Store(time.Now().UnixNano()) }
func (c *laneClock) rest() { c.at.Store(0) }

func newHealth(log *slog.Logger, m *metrics, handlerTimeout, longestDelay time.Duration) *health {
	recently := handlerTimeout + 2*longestPause
	return &health{log: log, m: m, recently: recently, again: recently + longestDelay,
		troubles: map[degradation]trouble{}, lanes: map[string][]*laneClock{}}
}

// begins notes what is amiss, and says since when, whether that is known, and whether it was told long ago.
func (h *health) begins(what degradation, err error) (since time.Time, known, longAgo bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	is, known := h.troubles[what]
	if !known {
		is.at, is.told = now, now
	}
	if longAgo = now.Sub(is.told) >= stillEvery; longAgo {
		is.told = now
	}
	is.why = err.Error()
	h.troubles[what] = is
	return is.at, known, longAgo
}

// ends forgets what was amiss, and says for how long it was.
func (h *health) ends(what degradation) (after time.Duration, known bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	was, known := h.troubles[what]
	delete(h.troubles, what)
	return time.Since(was.at).Round(time.Millisecond), known
}

// missing says that what does not answer. It logs when that is news, and of a dependency once a minute that it still
// does not.
func (h *health) missing(ctx context.Context, what string, err error) {
	since, known, longAgo := h.begins(degradation{why: what}, err)
	said := []any{"err", err}
	if do := doOf(what, err); do != "" {
		said = append(said, "do", do)
	} else {
		longAgo = false
	}
	switch {
	case !known:
		h.m.down(what)
		h.log.WarnContext(ctx, "waiting for "+what, said...)
	case longAgo:
		h.log.WarnContext(ctx, "still waiting for "+what, append(said, "since", time.Since(since).Round(time.Second))...)
	}
}

// back says that what answers. It logs when that is news.
func (h *health) back(ctx context.Context, what string) {
	after, known := h.ends(degradation{why: what})
	h.m.up(what)
	if known {
		h.log.InfoContext(ctx, what+" is back", "after", after)
	}
}

// names reports whether what is among the missing.
func (h *health) names(what string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, missing := h.troubles[degradation{why: what}]
	return missing
}

// degraded says that something is amiss with a queue while the engine goes on; without an error, that it is amiss no
// more. It logs when that is news.
func (h *health) degraded(ctx context.Context, why, queue string, err error) {
	if err == nil {
		after, known := h.ends(degradation{why, queue})
		h.m.degraded.WithLabelValues(why, queue).Set(0)
		if known {
			h.log.InfoContext(ctx, "no longer degraded", "why", why, "queue", queue, "after", after)
		}
	} else if _, known, _ := h.begins(degradation{why, queue}, err); !known {
		h.m.degraded.WithLabelValues(why, queue).Set(1)
		h.log.WarnContext(ctx, "degraded", "why", why, "queue", queue, "err", err)
	}
}

// unknownHolder is what is said of locks whose holder is not known.
const unknownHolder = "SHOW FULL PROCESSLIST in MySQL tells who"

// inVain says that somebody else had locks that were waited for in vain for so long. It counts them, and logs when
// that is news.
// Messages that were in the way come back later, to whatever lane, so nobody can say when it is over: it is forgotten
// after a while.
func (h *health) inVain(ctx context.Context, err error, waited time.Duration) {
	if waited < admission.ShortestLockWait {
		return // a deadlock: the next try may be the better one
	}
	h.m.contention.Inc()
	now := time.Now()
	h.mu.Lock()
	quiet := now.Sub(h.met.at)
	if quiet > h.recently {
		h.who = unknownHolder
	}
	if quiet > h.again {
		h.contended = now
	}
	h.met = trouble{why: err.Error(), at: now}
	h.mu.Unlock()
	if quiet > h.recently {
		h.log.WarnContext(ctx, "waiting for locks of others", "err", fmt.Errorf("%s; %s: %w", othersHold, unknownHolder, err))
	}
}

const othersHold = "others hold locks that messages wait for"

// contendedSince is when the first wait in vain was of those that still go on, as far as can be said; now if none does.
func (h *health) contendedSince() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.met.at) > h.again {
		return time.Now()
	}
	return h.contended
}

// heldBy says who has the locks that are waited for; "": nobody who stands out.
func (h *health) heldBy(who string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.who = cmp.Or(who, unknownHolder)
}

// blocked says whether RabbitMQ takes what is published: "", or why not.
func (h *health) blocked(ctx context.Context, why string) {
	var err error
	if why != "" {
		err = fmt.Errorf("it blocks all who publish (%s), so producers, retries and dead letters wait: free memory or disk "+
			"on its nodes; `rabbitmq-diagnostics alarms` says which", why)
	}
	h.degraded(ctx, publishBlocked, DependencyRabbitMQ, err)
}

// clocks says whether the database's clock agrees with this process's: nil, or why not.
func (h *health) clocks(ctx context.Context, err error) {
	if err != nil {
		err = fmt.Errorf("no row is deleted by its age, and no dead letter replayed by itself: %w", err)
	}
	h.degraded(ctx, clocksDiffer, DependencyMySQL, err)
}

// set says which lanes work on a queue; main, that it is the main queue, which makes the engine consume.
// The first time is logged, because whoever starts a process waits for it; later what was missing is said to be back.
func (h *health) set(ctx context.Context, queue string, main bool, lanes []*laneClock) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lanes[queue] = lanes
	if !main {
		return
	}
	h.consuming = len(lanes) > 0
	if h.consuming && !h.began {
		h.began = true
		h.log.InfoContext(ctx, "consuming", "queue", queue)
	}
}

func (h *health) drain() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.draining = true
}

// state says so; aside: some step aside for locks of others.
func (h *health) state(aside bool) State {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := State{Consuming: h.consuming, Draining: h.draining}
	for what, is := range h.troubles {
		if what.queue == "" {
			s.Paused = append(s.Paused, what.why+": "+is.why)
		} else {
			s.Degraded = append(s.Degraded, what.queue+": "+is.why)
		}
	}
	if aside || time.Since(h.met.at) <= h.recently {
		s.Degraded = append(s.Degraded, fmt.Sprintf("%s: %s; %s: %s", degradedByContention, othersHold, h.who, h.met.why))
	}
	slices.Sort(s.Paused)
	slices.Sort(s.Degraded)
	now := time.Now().UnixNano()
	for _, c := range slices.Concat(slices.Collect(maps.Values(h.lanes))...) {
		if at := c.at.Load(); at != 0 {
			s.Still = max(s.Still, time.Duration(now-at))
		}
	}
	return s
}
