package dedup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// LockPolicy says what Lock does while Redis is away.
type LockPolicy string

// The policies.
const (
	LockProceed LockPolicy = "proceed" // every key is Mine at once: the consumer log alone keeps the promise
	LockPause   LockPolicy = "pause"   // ErrLockUnavailable at once: nothing is consumed until Redis answers
)

// RedisLockOptions says how a RedisLock works. SchemaID is required; a zero field has the default named beside it.
type RedisLockOptions struct {
	SchemaID string        // UUID of the consumer log's schema
	LockTTL  time.Duration // how long a dead worker's lock keeps others off; renewed at a third. 10s
	DoneTTL  time.Duration // how long a done marker ends duplicates. 5m
	OnError  LockPolicy    // LockProceed
	Timeout  time.Duration // of one call, its repetitions included. 1s
	// MaxHold ends the renewing of a lock that was neither released nor done, so that a forgotten one does not keep its
	// identity from everybody until this process ends. 15m
	MaxHold time.Duration
	Log     *slog.Logger // told once of each loss and each return of Redis. Nothing is logged without it
}

func (o *RedisLockOptions) setDefaults() {
	o.LockTTL = orDefault(o.LockTTL, 10*time.Second)
	o.DoneTTL = orDefault(o.DoneTTL, 5*time.Minute)
	o.OnError = orDefault(o.OnError, LockProceed)
	o.Timeout = orDefault(o.Timeout, time.Second)
	o.MaxHold = orDefault(o.MaxHold, 15*time.Minute)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
}

func orDefault[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

func (o RedisLockOptions) validate() error {
	var errs []error
	if o.SchemaID == "" {
		errs = append(errs, errors.New("no schema id: locks of two installations on one redis would meet"))
	}
	if o.LockTTL < 100*time.Millisecond {
		errs = append(errs, fmt.Errorf("lock TTL %v is under 100ms", o.LockTTL))
	}
	if o.DoneTTL < time.Millisecond {
		errs = append(errs, fmt.Errorf("done TTL %v is under 1ms", o.DoneTTL))
	}
	if o.Timeout < time.Millisecond {
		errs = append(errs, fmt.Errorf("timeout %v is under 1ms", o.Timeout))
	}
	if o.MaxHold < o.LockTTL {
		errs = append(errs, fmt.Errorf("locks are renewed for %v, under their TTL %v", o.MaxHold, o.LockTTL))
	}
	if o.OnError != LockProceed && o.OnError != LockPause {
		errs = append(errs, fmt.Errorf("policy %q is neither %q nor %q", o.OnError, LockProceed, LockPause))
	}
	return errors.Join(errs...)
}

// RedisLock is the Locker over Redis 7.0 or later, or Valkey. Its account there needs the commands set, get, del, pexpire,
// pttl and eval on keys "rollbackd:*".
//
// After one failure it asks Redis nothing more until a background probe succeeds, so that a Redis that is away costs one
// timeout and not one per batch; LockPolicy says what Lock answers meanwhile. Run does the probing and renews the locks
// in hand: without it neither happens.
type RedisLock struct {
	client  redis.UniversalClient
	o       RedisLockOptions
	lockTTL any // the PX arguments, boxed once
	doneTTL any
	health  lockHealth
	renewer renewer
	counts  [lockResults]atomic.Uint64
	running atomic.Bool
}

var _ Locker = (*RedisLock)(nil)

// NewRedisLock makes a lock over a client of OpenRedis, which stays the caller's to close after Run has returned. It asks
// Redis nothing.
func NewRedisLock(client redis.UniversalClient, o RedisLockOptions) (*RedisLock, error) {
	o.setDefaults()
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("lock options: %w", err)
	}
	l := &RedisLock{client: client, o: o, lockTTL: o.LockTTL.Milliseconds(), doneTTL: o.DoneTTL.Milliseconds()}
	l.health.init(o)
	l.renewer.init(o.MaxHold)
	return l, nil
}

// LockKey hashes the schema's UUID and the identity.
func (l *RedisLock) LockKey(k Key) LockKey { return newLockKey(l.o.SchemaID, k) }

// Lock is one pipeline of SET key token NX PX ttl GET. The command returns the holder, so it may be sent again after a
// lost reply without taking its own token for another worker's (SETNX would).
func (l *RedisLock) Lock(ctx context.Context, token string, keys []LockKey) ([]Held, error) {
	if err := checkKeys(keys); err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if len(keys) == 0 {
		return nil, nil
	}
	if cause := l.health.down(); cause != nil {
		return l.lockWithout(len(keys), cause)
	}
	value := lockedPrefix + token
	held, err := l.setLocks(ctx, value, keys)
	if err != nil {
		if err = l.failed(ctx, fmt.Sprintf("lock %d keys", len(keys)), err); err != nil {
			l.count(LockFailed, len(keys))
			return nil, err
		}
	}
	l.take(value, keys, held)
	return held, nil
}

// setLocks leaves the zero Hold for the keys of which nothing is known; the error then says why.
func (l *RedisLock) setLocks(ctx context.Context, value string, keys []LockKey) ([]Held, error) {
	const words = 7
	args := make([]any, 0, words*len(keys)) // one slice for all commands, and each argument boxed once
	cmds := make([]*redis.StringCmd, len(keys))
	boxed := any(value)
	pipe := l.client.Pipeline()
	for i, k := range keys {
		args = append(args, "set", k.name, boxed, "nx", "px", l.lockTTL, "get")
		cmds[i] = redis.NewStringCmd(ctx, args[i*words:(i+1)*words:(i+1)*words]...)
		_ = pipe.Process(ctx, cmds[i]) // only queues
	}
	held := make([]Held, len(keys))
	if _, err := l.exec(ctx, pipe); err != nil {
		return held, err
	}
	var failure error
	for i, cmd := range cmds {
		found, err := cmd.Result()
		switch {
		case err == nil:
			held[i] = readHeld(found, value)
		case errors.Is(err, redis.Nil): // nothing stood there, and now ours does
			held[i].Hold = Mine
		case redis.HasErrorPrefix(err, "WRONGTYPE"): // a key of somebody else, and no fault of Redis
			held[i].Hold = HeldByOther
		default:
			failure = err
		}
	}
	return held, failure
}

// take counts what was found, renews from now on what is ours, and proceeds with the keys of which nothing is known.
func (l *RedisLock) take(value string, keys []LockKey, held []Held) {
	l.renewer.add(value, keys, held)
	var found [lockResults]int
	for i := range held {
		r := resultOf(held[i].Hold)
		found[r]++
		if r == LockFailed {
			held[i].Hold = Mine
		}
	}
	for r, n := range found {
		l.count(LockResult(r), n)
	}
}

func (l *RedisLock) lockWithout(n int, cause error) ([]Held, error) {
	if l.o.OnError == LockProceed {
		l.count(LockBypassed, n)
		return allMine(n), nil
	}
	l.count(LockFailed, n)
	return nil, fmt.Errorf("%w: %w", ErrLockUnavailable, cause)
}

// failed notes that Redis failed and says what the caller is told of it: nothing with LockProceed, for the health tells
// the log once. A call that its caller ended is no failure of Redis.
func (l *RedisLock) failed(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	}
	err = explain(err)
	l.health.fail(err)
	if l.o.OnError == LockProceed {
		return nil
	}
	return fmt.Errorf("%w: %s: %w", ErrLockUnavailable, what, err)
}

// releaseScript deletes a key only while it holds the caller's token.
const releaseScript = `if redis.call("get",KEYS[1])==ARGV[1] then return redis.call("del",KEYS[1]) end return 0`

// Release is one pipeline of compare-and-delete. The script is sent with each EVAL: EVALSHA inside a pipeline does not
// fall back when Redis has forgotten the script.
func (l *RedisLock) Release(ctx context.Context, token string, keys []LockKey) error {
	if err := checkKeys(keys); err != nil {
		return fmt.Errorf("release locks: %w", err)
	}
	value := lockedPrefix + token
	l.renewer.remove(value, keys)
	if len(keys) == 0 || l.health.down() != nil {
		return nil // they expire by themselves
	}
	pipe := l.client.Pipeline()
	for _, k := range keys {
		_ = pipe.Process(ctx, redis.NewIntCmd(ctx, "eval", releaseScript, 1, k.name, value))
	}
	if err := l.execAll(ctx, pipe); err != nil {
		return l.failed(ctx, fmt.Sprintf("release %d locks", len(keys)), err)
	}
	return nil
}

// Done is one pipeline of SET key marker PX ttl. On Redis 7.0 a marker takes 152 bytes by MEMORY USAGE, and 209 of
// used_memory with its share of the hash tables: at 10,000 messages/s and a DoneTTL of 5 minutes that is 630 MB.
func (l *RedisLock) Done(ctx context.Context, marks []Mark) error {
	for _, m := range marks {
		if err := m.Key.check(); err != nil {
			return fmt.Errorf("write done markers: %w", err)
		}
	}
	l.renewer.forget(marks)
	if len(marks) == 0 || l.health.down() != nil {
		return nil // the consumer log knows
	}
	const words = 5
	args := make([]any, 0, words*len(marks))
	pipe := l.client.Pipeline()
	for i, m := range marks {
		args = append(args, "set", m.Key.name, donePrefix+string(m.BodyHash[:]), "px", l.doneTTL)
		_ = pipe.Process(ctx, redis.NewStatusCmd(ctx, args[i*words:(i+1)*words:(i+1)*words]...))
	}
	if err := l.execAll(ctx, pipe); err != nil {
		return l.failed(ctx, fmt.Sprintf("write %d done markers", len(marks)), err)
	}
	return nil
}

// exec sends the pipeline. Its error is one of the call as a whole, and then no command has an answer; those of single
// commands stay with them. A Redis that refuses the connection (a wrong password, too many clients) answers with a
// Redis error too, and the client leaves the commands as if each had succeeded with an empty answer.
func (l *RedisLock) exec(ctx context.Context, pipe redis.Pipeliner) ([]redis.Cmder, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, l.o.Timeout, fmt.Errorf("redis took over %v", l.o.Timeout))
	defer cancel()
	cmds, err := pipe.Exec(ctx)
	if err == nil {
		return cmds, nil
	}
	_, reply := errors.AsType[redis.Error](err)
	if reply && slices.ContainsFunc(cmds, func(c redis.Cmder) bool { return c.Err() != nil }) {
		return cmds, nil
	}
	if cause := context.Cause(ctx); cause != nil {
		return nil, fmt.Errorf("%w: %w", cause, err)
	}
	return nil, err
}

// execAll is exec where no command should fail. A key of another type is somebody else's and no fault of Redis.
func (l *RedisLock) execAll(ctx context.Context, pipe redis.Pipeliner) error {
	cmds, err := l.exec(ctx, pipe)
	if err != nil {
		return err
	}
	for _, cmd := range cmds {
		if err := cmd.Err(); err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") {
			return err
		}
	}
	return nil
}

func checkKeys(keys []LockKey) error {
	for _, k := range keys {
		if err := k.check(); err != nil {
			return err
		}
	}
	return nil
}

func (k LockKey) check() error {
	if len(k.name) != lockKeySize {
		return errors.New("a lock key that this lock's LockKey did not make")
	}
	return nil
}
