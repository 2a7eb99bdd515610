package ground

import (
	"cmp"
	"strings"

	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// locks are what the kinds of lock need beside the servers that everybody has: so many of a kind, and the setting that
// names them. None: the lock stands on Redis, or beside the log.
var locks = map[string]struct {
	kind    stack.Kind
	servers int
	setting string
}{
	"redlock":   {stack.KindRedis, 3, "REDIS_URL="},
	"zookeeper": {stack.KindZooKeeper, 1, "ZOOKEEPER_URL="},
}

// WithLock starts what a kind of lock needs, or makes its tables, and ends it after do, which gets the settings that
// name it.
func (f *Field) WithLock(kind string, do func(settings []string)) {
	need := locks[kind]
	var settings, urls []string
	for range need.servers {
		s := must.Get(stack.Start(f.ground.Ctx, stack.Options{Only: []stack.Kind{need.kind}}))
		defer func() { must.OK(s.Stop()) }()
		urls = append(urls, cmp.Or(s.Redis, s.ZooKeeper).URL())
	}
	if kind != "" {
		settings = []string{"LOCK=" + kind}
	}
	if len(urls) > 0 {
		settings = append(settings, need.setting+strings.Join(urls, ","))
	} else if kind != "" {
		f.migrate(settings...)
	}
	do(settings)
}
