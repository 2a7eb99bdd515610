package redisdb

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Sentinel is what one of a URL's sentinels says of the master that the URL names.
type Sentinel struct {
	Addr   string
	Err    error  // why it says nothing
	Master string // host and port; empty: it knows none of that name
	// Replicas is how many of the master it reaches; negative: not told.
	Replicas int
	// Quorum says why the sentinels could not agree to make a replica the master, or why it is not told. Nil: they could.
	Quorum error
}

// AskSentinels asks each sentinel that a URL names, at the same time. Other URLs have none.
func AskSentinels(ctx context.Context, rawURL string, o Options) ([]Sentinel, error) {
	c, err := options(rawURL, o)
	if err != nil || c.MasterName == "" {
		return nil, err
	}
	said := make([]Sentinel, len(c.Addrs))
	var wg sync.WaitGroup
	for i, addr := range c.Addrs {
		wg.Go(func() { said[i] = askSentinel(ctx, c, addr) })
	}
	wg.Wait()
	return said, nil
}

func askSentinel(ctx context.Context, c *redis.UniversalOptions, addr string) Sentinel {
	s := Sentinel{Addr: addr, Replicas: -1}
	o := c.Simple()
	o.Addr, o.Username, o.Password, o.DB = addr, c.SentinelUsername, c.SentinelPassword, 0
	o.CredentialsProvider, o.OnConnect, o.DialTimeout, o.PoolSize = nil, nil, redisTimeout, 1
	client := redis.NewSentinelClient(o)
	defer func() { _ = client.Close() }() // nothing is left in it
	named, err := client.GetMasterAddrByName(ctx, c.MasterName).Result()
	switch {
	case errors.Is(err, redis.Nil):
		return s
	case err == nil && len(named) != 2:
		err = errors.New("it answered with something else than host and port")
	}
	if err != nil {
		s.Err = err
		return s
	}
	s.Master = net.JoinHostPort(named[0], named[1])
	if replicas, err := client.Replicas(ctx, c.MasterName).Result(); err == nil {
		s.Replicas = 0
		for _, r := range replicas {
			if !strings.Contains(r["flags"], "down") && !strings.Contains(r["flags"], "disconnected") {
				s.Replicas++
			}
		}
	}
	s.Quorum = client.CkQuorum(ctx, c.MasterName).Err()
	return s
}
