package lock

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
)

// Show looks at one key.
func (l *redisStore) Show(ctx context.Context, name Name) (State, error) {
	pipe := l.client.Pipeline()
	get := pipe.Get(ctx, name.text)
	ttl := pipe.PTTL(ctx, name.text)
	if _, err := l.exec(ctx, pipe); err != nil {
		return State{}, err
	}
	value, err := get.Result()
	switch {
	case errors.Is(err, redis.Nil):
		return State{}, nil
	case err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE"):
		return State{}, err
	case ttl.Err() != nil:
		return State{}, ttl.Err()
	}
	return ReadState(value, ttl.Val()), nil
}
