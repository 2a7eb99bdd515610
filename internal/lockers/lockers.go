// Package lockers makes the lock that a setting names, and holds those that are not in package lock: over ZooKeeper and
// MySQL, whose libraries that package must not link.
//
// What may live here: what is particular to a lock's servers. What must not: what all locks do alike (package lock),
// and what a lock's answer means for a message (package consumer).
package lockers

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"

	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/internal/redisdb"
	"github.com/rollbackd/rollbackd/lock"
)

// Servers say where a lock is and how it is reached.
type Servers struct {
	Kind lock.Kind
	// RedisURL is asked by KindRedis, see [lock.OpenRedis]; empty: no lock. KindRedlock asks several, comma-separated.
	// MySQLDSN is asked by KindMySQL.
	RedisURL, MySQLDSN string
	// ZooKeeperURL is asked by KindZooKeeper: see [ZooKeeperForm].
	ZooKeeperURL string
	// Name is what the servers' lists of connections show.
	Name string
	// Connections is the most that are opened, to each server: lanes and some.
	Connections int
	// CurrentRedisURL and CurrentMySQLDSN, if set, are asked before each connection; only user and password are taken.
	CurrentRedisURL, CurrentMySQLDSN func() string
	// Opened, if set, is called for each connection that stands.
	Opened func()
	// RedisTLS and MySQLTLS encrypt, for a URL and a DSN that say nothing of it.
	RedisTLS, MySQLTLS *tls.Config
	// Warn, if set, is told why certificates cannot be read again; the former ones stay in use.
	Warn func(error)
}

// None reports whether the servers are none: nothing is locked.
func (s Servers) None() bool {
	return s.Kind == lock.KindOff || s.Kind.InRedis() && s.RedisURL == ""
}

// Asks is what the kind asks, as it is called in health pages and metrics.
func (s Servers) Asks() string {
	if s.Kind.InRedis() {
		return "redis"
	}
	return "lock"
}

// Lock is one of any kind. Close ends its connections, after Run has returned.
type Lock struct {
	lock.Locker
	io.Closer
}

// Clean deletes what locks of workers that died have left for over a minute, and returns how many. Only the lock in
// MySQL has such. One process is enough for it, and stands in nobody's way.
func (l *Lock) Clean(ctx context.Context) (deleted int, err error) {
	if m, ok := l.Closer.(*inMySQL); ok {
		return m.clean(ctx)
	}
	return 0, nil
}

// Open makes the lock of these servers and asks them nothing.
func Open(ctx context.Context, s Servers, o lock.Options) (l *Lock, err error) {
	l, o = &Lock{lock.None{}, io.NopCloser(nil)}, o.WithDefaults()
	switch {
	case s.None():
	case s.Kind.InRedis():
		err = l.openRedis(s, o)
	case s.Kind == lock.KindZooKeeper:
		err = l.openZooKeeper(s, o)
	case s.Kind == lock.KindMySQL:
		err = l.openMySQL(ctx, s, o)
	default:
		err = fmt.Errorf("a lock of kind %q is none of %q", s.Kind, lock.Kinds())
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

type redisClients []redis.UniversalClient

// Close closes all.
func (c *redisClients) Close() (err error) {
	for _, client := range *c {
		err = errors.Join(err, client.Close())
	}
	return err
}

// openRedis makes the lock over one Redis, or what is one for its clients, or over several masters.
func (l *Lock) openRedis(s Servers, o lock.Options) (err error) {
	urls := redisdb.SplitURLs(s.RedisURL)
	if s.Kind == lock.KindRedis {
		urls = []string{s.RedisURL}
	}
	var clients redisClients
	l.Closer = &clients
	for i, url := range urls {
		options := redisdb.Options{
			Name: s.Name, Connections: s.Connections, Opened: s.Opened, TLS: s.RedisTLS, Warn: s.Warn,
		}
		if s.CurrentRedisURL != nil {
			options.CurrentURL = func() string { // what has no such place in the list any more changes nothing
				return append(redisdb.SplitURLs(s.CurrentRedisURL()), make([]string, len(urls))...)[i]
			}
		}
		client, err := redisdb.Open(url, options)
		switch {
		case err != nil && len(urls) > 1:
			return fmt.Errorf("master %d of %d: %w", i+1, len(urls), err)
		case err != nil:
			return err
		}
		clients = append(clients, client)
	}
	if s.Kind == lock.KindRedis {
		l.Locker, err = lock.NewRedis(clients[0], o)
	} else {
		l.Locker, err = lock.NewRedlock(clients, o)
	}
	return err
}

// repeat calls again while it is worth it: all calls of locks may be repeated.
func repeat(call func() error, again func(error) bool) (err error) {
	for range 3 {
		if err = call(); err == nil || !again(err) {
			break
		}
	}
	return err
}
