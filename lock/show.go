package lock

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// Show looks at one key, whatever the lock's own health. Its error is that of Redis.
func (l *Redis) Show(ctx context.Context, name Name) (State, error) {
	if err := name.Check(); err != nil {
		return State{}, fmt.Errorf("show lock: %w", err)
	}
	pipe := l.client.Pipeline()
	get := pipe.Get(ctx, name.text)
	ttl := pipe.PTTL(ctx, name.text)
	if _, err := l.exec(ctx, pipe); err != nil {
		return State{}, fmt.Errorf("show lock %v: %w", name, err)
	}
	value, err := get.Result()
	switch {
	case errors.Is(err, redis.Nil):
		return State{}, nil
	case err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE"):
		return State{}, fmt.Errorf("show lock %v: %w", name, err)
	case ttl.Err() != nil:
		return State{}, fmt.Errorf("show lock %v: %w", name, ttl.Err())
	}
	return ReadState(value, ttl.Val()), nil
}
