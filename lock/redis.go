package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// Redis is the Locker over Redis 7.0 or later, or Valkey. What its account there needs, docs/rights.md says.
//
// After one failure it asks Redis nothing more until a background probe succeeds, so that a Redis that is away costs
// one timeout and not one per batch; Policy says what Lock answers meanwhile. Run does the probing and renews the locks
// in hand: without it neither happens.
type Redis struct{ *base }

// redisStore is the store of Redis.
type redisStore struct {
	client  redis.UniversalClient
	o       Options
	renewer *renewer
	cluster *redis.ClusterClient // the client, if it is that of a cluster
	lockTTL any                  // the PX arguments, boxed once
	doneTTL any
	// missed is a key of a cluster's node that did not answer: a probe asks that node.
	missed atomic.Pointer[string]
}

var _ Store = (*redisStore)(nil)

// NewRedis makes a lock over a client of OpenRedis, which stays the caller's to close after Run has returned. It asks
// Redis nothing.
func NewRedis(client redis.UniversalClient, o Options) (*Redis, error) {
	o.setDefaults()
	s := &redisStore{
		client: client, o: o, lockTTL: o.LockTTL.Milliseconds(), doneTTL: o.DoneTTL.Milliseconds(),
	}
	s.cluster, _ = client.(*redis.ClusterClient)
	b, err := newBase("redis", s, o)
	if err != nil {
		return nil, err
	}
	s.renewer = &b.renewer
	return &Redis{b}, nil
}

// Take is one pipeline of SET key token NX PX ttl GET. The command returns the holder, so it may be sent again after a
// lost reply without taking its own token for another worker's (SETNX would). A second pipeline asks when the locks of
// other processes end, if there are any.
func (l *redisStore) Take(ctx context.Context, value string, names []Name) ([]Held, error) {
	held, err := l.setLocks(ctx, value, names)
	if err == nil {
		err = l.checkEnds(ctx, names, held)
	}
	return held, explain(err)
}

// setLocks leaves the zero Hold for the keys of which nothing is known; the error then says why.
func (l *redisStore) setLocks(ctx context.Context, value string, names []Name) ([]Held, error) {
	const words = 7
	args := make([]any, 0, words*len(names)) // one slice for all commands, and each argument boxed once
	cmds := make([]*redis.StringCmd, len(names))
	boxed := any(value)
	pipe := l.client.Pipeline()
	for i, n := range names {
		args = append(args, "set", n.text, boxed, "nx", "px", l.lockTTL, "get")
		cmds[i] = redis.NewStringCmd(ctx, args[i*words:(i+1)*words:(i+1)*words]...)
		_ = pipe.Process(ctx, cmds[i]) // only queues
	}
	held := make([]Held, len(names))
	if _, err := l.exec(ctx, pipe); err != nil {
		return held, err
	}
	var failure error
	for i, cmd := range cmds {
		found, err := cmd.Result()
		switch {
		case err == nil:
			held[i] = ReadHeld(found, value)
		case errors.Is(err, redis.Nil): // nothing stood there, and now ours does
			held[i].Hold = Mine
		case redis.HasErrorPrefix(err, "WRONGTYPE"): // a key of somebody else, and no fault of Redis
			held[i].Hold = Foreign
		default:
			failure = err
		}
	}
	return held, failure
}

// checkEnds makes Foreign what looks like the lock of another worker but would stand for longer than a lock does:
// nobody must wait for it. A key that holds something else by now is Foreign likewise, or free and tried again. What
// this process holds itself is not asked for.
func (l *redisStore) checkEnds(ctx context.Context, names []Name, held []Held) error {
	var doubted []int
	pipe := l.client.Pipeline()
	for i := range held {
		if held[i].Hold == HeldByOther && !l.renewer.holds(lockedPrefix+held[i].Holder, names[i]) {
			doubted = append(doubted, i)
			_ = pipe.Process(ctx, redis.NewIntCmd(ctx, "pttl", names[i].text)) // only queues
		}
	}
	if len(doubted) == 0 {
		return nil
	}
	cmds, err := l.exec(ctx, pipe)
	if err != nil {
		return err
	}
	const never = -1 // -2: it is gone
	for n, i := range doubted {
		ms, err := cmds[n].(*redis.IntCmd).Result()
		if err != nil {
			return err
		}
		if ms == never || ms > l.o.LockTTL.Milliseconds() {
			held[i] = Held{Hold: Foreign}
		}
	}
	return nil
}

// releaseScript deletes a key only while it holds the caller's token.
const releaseScript = `if redis.call("get",KEYS[1])==ARGV[1] then return redis.call("del",KEYS[1]) end return 0`

// GiveBack is one pipeline of compare-and-delete. The script is sent with each EVAL: EVALSHA inside a pipeline does not
// fall back when Redis has forgotten the script.
func (l *redisStore) GiveBack(ctx context.Context, value string, names []Name) error {
	pipe := l.client.Pipeline()
	for _, n := range names {
		_ = pipe.Process(ctx, redis.NewIntCmd(ctx, "eval", releaseScript, 1, n.text, value))
	}
	return l.execAll(ctx, pipe)
}

// Mark is one pipeline of SET key marker PX ttl. On Redis 7.0 a marker takes 152 bytes by MEMORY USAGE, and 209 of
// used_memory with its share of the hash tables: at 10,000 messages/s and a DoneTTL of 5 minutes that is 630 MB.
func (l *redisStore) Mark(ctx context.Context, marks []Mark) error {
	const words = 5
	args := make([]any, 0, words*len(marks))
	pipe := l.client.Pipeline()
	for i, m := range marks {
		args = append(args, "set", m.Name.text, donePrefix+string(m.BodyHash[:]), "px", l.doneTTL)
		_ = pipe.Process(ctx, redis.NewStatusCmd(ctx, args[i*words:(i+1)*words:(i+1)*words]...))
	}
	return l.execAll(ctx, pipe)
}

// exec sends the pipeline. Its error is one of the call as a whole, and then no command has an answer; those of single
// commands stay with them. A Redis that refuses the connection (a wrong password, too many clients) answers with a
// Redis error too, and the client leaves the commands as if each had succeeded with an empty answer.
func (l *redisStore) exec(ctx context.Context, pipe redis.Pipeliner) ([]redis.Cmder, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, l.o.Timeout, fmt.Errorf("redis took over %v", l.o.Timeout))
	defer cancel()
	cmds, err := pipe.Exec(ctx)
	if err == nil {
		return cmds, nil
	}
	if l.cluster != nil {
		l.miss(cmds)
	}
	_, reply := errors.AsType[redis.Error](err)
	if (reply || l.cluster != nil && slices.ContainsFunc(cmds, answered)) &&
		slices.ContainsFunc(cmds, func(c redis.Cmder) bool { return c.Err() != nil }) {
		return cmds, nil
	}
	if cause := context.Cause(ctx); cause != nil {
		return nil, fmt.Errorf("%w: %w", cause, err)
	}
	return nil, err
}

// answered reports whether the server of a command has answered, with an error perhaps.
func answered(c redis.Cmder) bool {
	_, reply := errors.AsType[redis.Error](c.Err())
	return reply || c.Err() == nil
}

// miss notes which key a node of the cluster did not take, and has the client look where the slots are now. By itself
// it does so once in a minute, or when a node sends it elsewhere: a dead one sends nobody anywhere, though another has
// its slots by now.
func (l *redisStore) miss(cmds []redis.Cmder) {
	for _, c := range cmds {
		if err := c.Err(); answered(c) && !redis.HasErrorPrefix(err, "CLUSTERDOWN") {
			continue
		}
		l.cluster.ReloadState(context.Background()) // in the background; the context is not used
		args := c.Args()
		at := 1
		if args[0] == "eval" {
			at = 3
		}
		if key, ok := args[at].(string); ok && len(key) == nameSize { // a name, and not what a probe asks for
			l.missed.Store(&key)
		}
		return
	}
}

// execAll is exec where no command should fail. A key of another type is somebody else's and no fault of Redis.
func (l *redisStore) execAll(ctx context.Context, pipe redis.Pipeliner) error {
	cmds, err := l.exec(ctx, pipe)
	if err != nil {
		return explain(err)
	}
	for _, cmd := range cmds {
		if err := cmd.Err(); err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") {
			return explain(err)
		}
	}
	return nil
}
