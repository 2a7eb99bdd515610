package ground

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Lock starts what a kind of lock needs beside the servers that everybody has, and makes its tables. It returns the
// settings that name it, and what ends its servers.
func (f *Field) Lock(ctx context.Context, kind string) (settings []string, stop func() error, _ error) {
	const masters = 3
	want := map[string]int{"redlock": masters, "zookeeper": 1, "mysql": 0}
	n, ok := want[kind]
	if !ok {
		return nil, nil, fmt.Errorf("nobody has a lock of kind %q in the bench", kind)
	}
	server := stack.KindRedis
	if kind == "zookeeper" {
		server = stack.KindZooKeeper
	}
	var all []*stack.Stack
	stop = func() error {
		var errs []error
		for _, s := range slices.Backward(all) {
			errs = append(errs, s.Stop())
		}
		return errors.Join(errs...)
	}
	var urls []string
	for range n {
		s, err := stack.Start(ctx, stack.Options{Only: []stack.Kind{server}})
		if err != nil {
			return nil, nil, errors.Join(fmt.Errorf("start the servers of lock %s: %w", kind, err), stop())
		}
		all = append(all, s)
		if kind == "zookeeper" {
			urls = append(urls, s.ZooKeeper.URL())
		} else {
			urls = append(urls, s.Redis.URL())
		}
	}
	settings = []string{"LOCK=" + kind}
	switch kind {
	case "redlock":
		settings = append(settings, "REDIS_URL="+strings.Join(urls, ","))
	case "zookeeper":
		settings = append(settings, "ZOOKEEPER_URL="+urls[0])
	case "mysql":
		if _, err := program.Run(ctx, f.Build.Binary, f.Environ(settings...), "migrate"); err != nil {
			return nil, nil, err
		}
	}
	return settings, stop, nil
}
