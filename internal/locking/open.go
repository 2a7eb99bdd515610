// Package locking makes the lock that a setting names, and holds those that are not in package lock: over MySQL, whose
// library that package must not link.
//
// What may live here: what is particular to a lock's servers. What must not: what all locks do alike (package lock),
// and what a lock's answer means for a message (package consumer).
package locking

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"

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

// Open makes the lock of these servers and asks them nothing. Close ends its connections, after Run has returned.
func Open(ctx context.Context, s Servers, o lock.Options) (lock.Locker, io.Closer, error) {
	switch {
	case s.None():
		return lock.None{}, io.NopCloser(nil), nil
	case s.Kind == lock.KindRedis:
		client, err := lock.OpenRedis(s.RedisURL, lock.RedisOptions{
			Name: s.Name, Connections: s.Connections, CurrentURL: s.CurrentRedisURL, Opened: s.Opened, TLS: s.RedisTLS,
			Warn: s.Warn,
		})
		if err != nil {
			return nil, nil, err
		}
		l, err := lock.NewRedis(client, o)
		if err != nil {
			return nil, nil, errors.Join(err, client.Close())
		}
		return l, client, nil
	case s.Kind == lock.KindRedlock:
		l, err := OpenRedlock(s, o)
		if err != nil {
			return nil, nil, err
		}
		return l, l, nil
	case s.Kind == lock.KindZooKeeper:
		l, err := OpenZooKeeper(s, o)
		if err != nil {
			return nil, nil, err
		}
		return l, l, nil
	case s.Kind == lock.KindMySQL:
		l, err := OpenMySQL(ctx, s, o)
		if err != nil {
			return nil, nil, err
		}
		return l, l, nil
	}
	return nil, nil, fmt.Errorf("a lock of kind %q is none of %q", s.Kind, lock.Kinds())
}
