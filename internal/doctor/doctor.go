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
	"fmt"
	"slices"
	"sync"

	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/rabbit"
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
