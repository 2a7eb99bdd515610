// Package doctor looks at everything that rollbackd stands on: every dependency, name, limit and right. Each check says
// what was found and, unless all is well, what to do about it. It changes nothing that lasts: no message is published
// that a queue could take, no row is written, and the one key it sets in Redis is its own and is taken away again.
// What only a running daemon knows, it is asked for.
//
// What belongs here: the checks. What does not: how they are shown (internal/cli), and the rules of single settings,
// which internal/config has checked before.
package doctor

import (
	"context"
	"sync"

	"github.com/rollbackd/rollbackd/internal/config"
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

// Options are what the checks need besides the settings.
type Options struct {
	Program string // the program's name, for the commands in the advice
	Name    string // of the connections
	// MySQL and Redis are ROLLBACKD_MYSQL_DSN and ROLLBACKD_REDIS_URL as a person may see them, secrets masked.
	MySQL, Redis string
}

// Run makes all checks. Servers are asked at the same time; one that does not answer costs some ten seconds.
func Run(ctx context.Context, cfg config.Config, o Options) []Check {
	var rabbitmq, mysql, redis, daemon list
	rabbitmq.area, mysql.area, redis.area, daemon.area = "rabbitmq", "mysql", "redis", "daemon"
	var wg sync.WaitGroup
	wg.Go(func() { checkRabbit(ctx, cfg, o, &rabbitmq) })
	wg.Go(func() { checkMySQL(ctx, cfg, o, &mysql) })
	wg.Go(func() { checkLock(ctx, cfg, o, &redis) })
	wg.Go(func() { checkDaemon(ctx, cfg, &daemon) })
	service := list{area: "service"}
	wg.Go(func() { checkService(ctx, cfg, &service) })
	settings, host := list{area: "settings"}, list{area: "host"}
	checkSettings(cfg, &settings)
	checkHost(cfg, &host)
	wg.Wait()
	var all []Check
	for _, l := range []list{rabbitmq, mysql, redis, service, daemon, settings, host} {
		all = append(all, l.checks...)
	}
	return all
}

// list collects the checks of one area.
type list struct {
	area   string
	checks []Check
}

func (l *list) add(level Level, name, found, do string) {
	l.checks = append(l.checks, Check{l.area, name, level, found, do})
}

func (l *list) ok(name, found string)       { l.add(OK, name, found, "") }
func (l *list) note(name, found string)     { l.add(Note, name, found, "") }
func (l *list) warn(name, found, do string) { l.add(Warn, name, found, do) }
func (l *list) fail(name, found, do string) { l.add(Fail, name, found, do) }
