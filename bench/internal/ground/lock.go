package ground

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// locks are what the kinds of lock need beside the servers that everybody has: so many of a kind, and the setting that
// names them.
var locks = map[string]struct {
	kind    stack.Kind
	servers int
	setting string
}{
	"redlock":   {stack.KindRedis, 3, "REDIS_URL="},
	"zookeeper": {stack.KindZooKeeper, 1, "ZOOKEEPER_URL="},
	"mysql":     {},
}

// Lock starts what a kind of lock needs, and makes its tables. It returns the settings that name it, and what ends its
// servers.
func (f *Field) Lock(ctx context.Context, kind string) (settings []string, stop func() error, err error) {
	need, ok := locks[kind]
	if !ok {
		return nil, nil, fmt.Errorf("nobody has a lock of kind %q in the bench", kind)
	}
	var all []*stack.Stack
	stop = func() (err error) {
		for _, s := range all {
			err = errors.Join(err, s.Stop())
		}
		return err
	}
	var urls []string
	for range need.servers {
		s, err := stack.Start(ctx, stack.Options{Only: []stack.Kind{need.kind}})
		if err != nil {
			return nil, nil, errors.Join(fmt.Errorf("start the servers of lock %s: %w", kind, err), stop())
		}
		all = append(all, s)
		server := s.Redis
		if need.kind == stack.KindZooKeeper {
			server = s.ZooKeeper
		}
		urls = append(urls, server.URL())
	}
	settings = []string{"LOCK=" + kind}
	if need.servers > 0 {
		return append(settings, need.setting+strings.Join(urls, ",")), stop, nil
	}
	_, err = program.Run(ctx, f.Build.Binary, f.Environ(settings...), "migrate")
	return settings, stop, err
}
