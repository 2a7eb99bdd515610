package lock

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// Probe asks what Lock asks, because a PING is also answered by a Redis that is full, a read-only replica, or too old.
// In a cluster it also asks the node that was missed: a key with a name in braces is in the slot of that name.
func (l *redisStore) Probe(ctx context.Context) error {
	keys := []string{probeKey}
	missed := l.missed.Load()
	if missed != nil {
		keys = append(keys, probeKey+"{"+*missed+"}")
	}
	pipe := l.client.Pipeline()
	for _, key := range keys {
		_ = pipe.Process(ctx, redis.NewStringCmd(ctx, "set", key, "probe", "nx", "px", 1000, "get"))
	}
	cmds, err := l.exec(ctx, pipe)
	if err != nil {
		return explain(err)
	}
	for _, c := range cmds {
		// somebody else's value under the probe's name is an answer too
		if err := c.Err(); err != nil && !errors.Is(err, redis.Nil) && !redis.HasErrorPrefix(err, "WRONGTYPE") {
			return explain(err)
		}
	}
	l.missed.CompareAndSwap(missed, nil)
	return nil
}

// explain says what to do about answers that only another Redis or another URL can cure.
func explain(err error) error {
	switch {
	case redis.HasErrorPrefix(err, "syntax error"):
		return fmt.Errorf("redis 7.0 or later is needed, for SET with NX and GET: %w", err)
	case redis.HasErrorPrefix(err, "MOVED"):
		return fmt.Errorf("this is a cluster, say cluster=true in the URL: %w", err)
	}
	return err
}

// renewScript extends a key only while it holds our value.
const renewScript = `if redis.call("get",KEYS[1])==ARGV[1] then return redis.call("pexpire",KEYS[1],ARGV[2]) end ` +
	`return 0`

// Renew is one pipeline of compare-and-expire.
func (l *redisStore) Renew(ctx context.Context, names []Name, values []string) (stands []bool, err error) {
	pipe := l.client.Pipeline()
	for i, n := range names {
		_ = pipe.Process(ctx, redis.NewIntCmd(ctx, "eval", renewScript, 1, n.text, values[i], l.lockTTL))
	}
	cmds, err := l.exec(ctx, pipe)
	if err != nil {
		return nil, err
	}
	for _, cmd := range cmds {
		n, err := cmd.(*redis.IntCmd).Result()
		if err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") {
			return stands, err
		}
		stands = append(stands, n != 0)
	}
	return stands, nil
}

// GiveUp has nothing to do: the keys expire by themselves.
func (*redisStore) GiveUp(context.Context, string, []Name) error { return nil }
