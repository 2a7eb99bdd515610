package dedup

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// LockState is what stands under a key now, for an operator.
type LockState struct {
	Hold  Hold          // 0: free; HeldByOther: locked by somebody, see Token; DoneMarker
	Token string        // the holder's; empty if nobody holds it, and if the value is none of rollbackd's
	Hash  []byte        // the body's in a done marker
	TTL   time.Duration // until it expires; negative: never, so rollbackd did not write it
}

// Show looks at one key, whatever the lock's own health. Its error is that of Redis.
func (l *RedisLock) Show(ctx context.Context, key LockKey) (LockState, error) {
	if err := key.check(); err != nil {
		return LockState{}, fmt.Errorf("show lock: %w", err)
	}
	pipe := l.client.Pipeline()
	get := pipe.Get(ctx, key.name)
	ttl := pipe.PTTL(ctx, key.name)
	if _, err := l.exec(ctx, pipe); err != nil {
		return LockState{}, fmt.Errorf("show lock %v: %w", key, err)
	}
	value, err := get.Result()
	switch {
	case errors.Is(err, redis.Nil):
		return LockState{}, nil
	case err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE"):
		return LockState{}, fmt.Errorf("show lock %v: %w", key, err)
	case ttl.Err() != nil:
		return LockState{}, fmt.Errorf("show lock %v: %w", key, ttl.Err())
	}
	s := LockState{Hold: HeldByOther, TTL: ttl.Val()}
	if hash, ok := readMarker(value); ok {
		s.Hold, s.Hash = DoneMarker, hash[:]
	} else if token, ok := readToken(value); ok {
		s.Token = token
	}
	return s, nil
}
