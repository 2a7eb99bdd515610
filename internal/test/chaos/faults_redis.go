package chaos

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wait"
)

func redisFaults() []fault {
	return []fault{
		{name: "redis kill -9", unit: "connections cut", targets: on(onRedis), most: 5 * time.Second,
			strike: killServer(redisOf)},
		{name: "redis frozen", unit: "links held", targets: on(onRedis), least: 20 * time.Second, most: 20 * time.Second,
			short: 6 * time.Second, strike: freezeRedis},
		{name: "redis FLUSHALL", unit: "keys gone", targets: on(onRedis), strike: flush},
	}
}

func redisOf(w *world) (*stack.Server, []*stack.TCPProxy) {
	return w.stack.Redis, []*stack.TCPProxy{w.redis}
}

// freezeRedis has hit when daemons were connected and bytes stood still: going on without the lock is no news to
// anybody.
func freezeRedis(ctx context.Context, w *world, p planned) (int, error) {
	held := w.redis.Links()
	if err := w.stack.Redis.Freeze(); err != nil {
		return 0, err
	}
	_ = wait.For(ctx, p.lasts)
	return held, w.stack.Redis.Thaw()
}

func flush(ctx context.Context, w *world, _ planned) (int, error) {
	options, err := redis.ParseURL(w.stack.Redis.URL())
	if err != nil {
		return 0, fmt.Errorf("parse the URL of redis: %w", err)
	}
	client := redis.NewClient(options)
	defer client.Close()
	var keys int64
	until(ctx, 10*time.Second, func() bool { // it may just have been emptied
		keys, err = client.DBSize(ctx).Result()
		return err != nil || keys > 0
	})
	if err != nil {
		return 0, fmt.Errorf("count the keys: %w", err)
	}
	if err := client.FlushAll(ctx).Err(); err != nil {
		return 0, fmt.Errorf("empty redis: %w", err)
	}
	if err := client.ScriptFlush(ctx).Err(); err != nil {
		return 0, fmt.Errorf("forget the scripts: %w", err)
	}
	return int(keys), nil
}

func lostSet(ctx context.Context, w *world, _ planned) (int, error) {
	return lost(ctx, w.redis.DropReply(func(piece []byte) bool { return bytes.Contains(piece, []byte("$3\r\nset\r\n")) }))
}

// lost waits until a trap has sprung.
func lost(ctx context.Context, sprung <-chan struct{}) (int, error) {
	timer := time.NewTimer(15 * time.Second)
	defer timer.Stop()
	select {
	case <-sprung:
		return 1, nil
	case <-timer.C: // it stays set: a later one springs it
	case <-ctx.Done():
	}
	return 0, nil
}
