package lock

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/internal/redisdb"
)

// RedisOptions says how OpenRedis connects.
type RedisOptions struct {
	// Name is what CLIENT LIST shows, "rollbackd host/pid". Redis refuses blanks in it: they become colons.
	Name string
	// Connections is the most that are opened, to each node; lanes and one for the renewer. 0: 8.
	Connections int
	// CurrentURL, if set, is asked before each connection for the URL as it is now. Only user and password are taken from
	// it: they may have changed. What cannot be parsed changes nothing, and sentinels keep their password.
	CurrentURL func() string
	// Opened, if set, is called for each connection that stands.
	Opened func()
	// TLS encrypts, for a rediss URL that names no certificates. Nil: what the URL names.
	TLS *tls.Config
	// Warn, if set, is told why certificates that the URL names cannot be read again; the former ones stay in use.
	Warn func(error)
}

// OpenRedis returns a client for the URL. It connects at first use, so it succeeds while Redis is away.
//
//	redis://[user:password@]host[:port][/db]                 one server
//	redis://…@host[:port],host[:port]…?cluster=true          Redis Cluster, by one or more of its nodes
//	redis://…@host[:port],host[:port]…[/db]?master=NAME      the master NAME, found by these sentinels;
//	                                                         sentinel_user and sentinel_password if those want some
//
// rediss:// speaks TLS and verifies the server's certificate, by the system's list of authorities or by the PEM file
// ssl_ca_certs; ssl_certfile and ssl_keyfile are the client's own, and ssl_server_name is expected in place of the
// host. The files are read again before each connection. What a URL does not say is not guessed: a cluster is spoken to
// only with cluster=true, and several addresses without cluster or master are an error. No error shows the password.
func OpenRedis(rawURL string, o RedisOptions) (redis.UniversalClient, error) {
	return redisdb.Open(rawURL, redisdb.Options{
		Name: o.Name, Connections: o.Connections, CurrentURL: o.CurrentURL, Opened: o.Opened,
		TLS: o.TLS, Warn: o.Warn,
	})
}

// Redis is the Locker over Redis 7.0 or later, or Valkey. What its account there needs, docs/rights.md says.
//
// After one failure it asks Redis nothing more until a background probe succeeds, so that a Redis that is away costs
// one timeout and not one per batch; Policy says what Lock answers meanwhile. Run does the probing and renews the locks
// in hand: without it neither happens.
type Redis struct{ *base }

// redisStore is the store of Redis.
type redisStore struct {
	client  redis.UniversalClient
	renewer *renewer             // of the lock
	cluster *redis.ClusterClient // the client, if it is that of a cluster
	lockTTL any                  // the PX arguments, int64, boxed once
	doneTTL any
	// missed is a key of a cluster's node that did not answer: a probe asks that node.
	missed atomic.Pointer[string]
}

var _ Store = (*redisStore)(nil)

// NewRedis makes a lock over a client of OpenRedis, which stays the caller's to close after Run has returned. It asks
// Redis nothing.
func NewRedis(client redis.UniversalClient, o Options) (*Redis, error) {
	b, err := overRedis("redis", o, client)
	if err != nil {
		return nil, err
	}
	return &Redis{b}, nil
}

func overRedis(server string, o Options, clients ...redis.UniversalClient) (*base, error) {
	o = o.WithDefaults()
	stores := make([]Store, len(clients))
	for i, client := range clients {
		s := &redisStore{client: client, lockTTL: o.LockTTL.Milliseconds(), doneTTL: o.DoneTTL.Milliseconds()}
		s.cluster, _ = client.(*redis.ClusterClient)
		stores[i] = s
	}
	b, err := newBase(server, o, stores...)
	for _, s := range stores {
		if err == nil {
			s.(*redisStore).renewer = &b.renewer
		}
	}
	return b, err
}

// Take is one pipeline of SET key token NX PX ttl GET. The command returns the holder, so it may be sent again after a
// lost reply without taking its own token for another worker's (SETNX would). A second pipeline asks when the locks of
// other processes end, if there are any.
func (l *redisStore) Take(ctx context.Context, value string, names []Name) ([]Held, error) {
	const words = 7
	args := make([]any, 0, words*len(names)) // one slice for all commands, and each argument boxed once
	boxed := any(value)
	held := make([]Held, len(names))
	cmds, failure := l.exec(ctx, len(names), func(i int) redis.Cmder {
		args = append(args, "set", names[i].text, boxed, "nx", "px", l.lockTTL, "get")
		return redis.NewStringCmd(ctx, args[i*words:(i+1)*words:(i+1)*words]...)
	})
	for i, cmd := range cmds {
		found, err := cmd.(*redis.StringCmd).Result()
		switch {
		case err == nil:
			held[i] = ReadHeld(found, value)
		case errors.Is(err, redis.Nil): // nothing stood there, and now ours does
			held[i].Hold = Mine
		case redis.HasErrorPrefix(err, "WRONGTYPE"): // a key of somebody else, and no fault of Redis
			held[i].Hold = Foreign
		default:
			failure = explain(err)
		}
	}
	if failure != nil {
		return held, failure
	}
	return held, l.checkEnds(ctx, names, held)
}

// checkEnds makes Foreign what looks like the lock of another worker but would stand for longer than a lock does:
// nobody must wait for it. A key that holds something else by now is Foreign likewise, or free and tried again. What
// this process holds itself is not asked for.
func (l *redisStore) checkEnds(ctx context.Context, names []Name, held []Held) error {
	var doubted []int
	for i := range held {
		if held[i].Hold == HeldByOther && !l.renewer.holds(lockedPrefix+held[i].Holder, names[i]) {
			doubted = append(doubted, i)
		}
	}
	if doubted == nil {
		return nil
	}
	cmds, err := l.execAll(ctx, len(doubted), func(n int) redis.Cmder {
		return redis.NewIntCmd(ctx, "pttl", names[doubted[n]].text)
	})
	const never = -1 // -2: it is gone
	for n, cmd := range cmds {
		if ms := cmd.(*redis.IntCmd).Val(); ms == never || ms > l.lockTTL.(int64) {
			held[doubted[n]] = Held{Hold: Foreign}
		}
	}
	return err
}

// The scripts delete or extend a key only while it holds the caller's token.
const (
	releaseScript = `if redis.call("get",KEYS[1])==ARGV[1] then return redis.call("del",KEYS[1]) end return 0`
	renewScript   = `if redis.call("get",KEYS[1])==ARGV[1] then return redis.call("pexpire",KEYS[1],ARGV[2]) end ` +
		`return 0`
)

// GiveBack is one pipeline of compare-and-delete. The script is sent with each EVAL: EVALSHA inside a pipeline does not
// fall back when Redis has forgotten the script.
func (l *redisStore) GiveBack(ctx context.Context, value string, names []Name) error {
	_, err := l.execAll(ctx, len(names), func(i int) redis.Cmder {
		return redis.NewIntCmd(ctx, "eval", releaseScript, 1, names[i].text, value)
	})
	return err
}

// Renew is one pipeline of compare-and-expire.
func (l *redisStore) Renew(ctx context.Context, names []Name, values []string) (stands []bool, err error) {
	cmds, err := l.execAll(ctx, len(names), func(i int) redis.Cmder {
		return redis.NewIntCmd(ctx, "eval", renewScript, 1, names[i].text, values[i], l.lockTTL)
	})
	for _, cmd := range cmds {
		stands = append(stands, cmd.(*redis.IntCmd).Val() != 0)
	}
	return stands, err
}

// Mark is one pipeline of SET key marker PX ttl. On Redis 7.0 a marker takes 152 bytes by MEMORY USAGE, and 209 of
// used_memory with its share of the hash tables: at 10,000 messages/s and a DoneTTL of 5 minutes that is 630 MB.
func (l *redisStore) Mark(ctx context.Context, marks []Mark) error {
	const words, size = 5, len(donePrefix) + sha256.Size
	args, values := make([]any, 0, words*len(marks)), make([]byte, 0, size*len(marks))
	_, err := l.execAll(ctx, len(marks), func(i int) redis.Cmder {
		values = append(append(values, donePrefix...), marks[i].BodyHash[:]...)
		args = append(args, "set", marks[i].Name.text, values[len(values)-size:], "px", l.doneTTL)
		return redis.NewStatusCmd(ctx, args[i*words:(i+1)*words:(i+1)*words]...)
	})
	return err
}

// Probe asks what Take asks, because a PING is also answered by a Redis that is full, a read-only replica, or too old.
// In a cluster it also asks the node that was missed: a key with a name in braces is in the slot of that name.
// Somebody else's value under the probe's name is an answer too.
func (l *redisStore) Probe(ctx context.Context) error {
	keys := []string{probeKey}
	missed := l.missed.Load()
	if missed != nil {
		keys = append(keys, probeKey+"{"+*missed+"}")
	}
	_, err := l.execAll(ctx, len(keys), func(i int) redis.Cmder {
		return redis.NewStringCmd(ctx, "set", keys[i], "probe", "nx", "px", 1000, "get")
	})
	if err == nil {
		l.missed.CompareAndSwap(missed, nil)
	}
	return err
}

// Show looks at one key.
func (l *redisStore) Show(ctx context.Context, name Name) (State, error) {
	get, ttl := redis.NewStringCmd(ctx, "get", name.text), redis.NewDurationCmd(ctx, time.Millisecond, "pttl", name.text)
	_, err := l.execAll(ctx, 2, func(i int) redis.Cmder { return []redis.Cmder{get, ttl}[i] })
	if err != nil || errors.Is(get.Err(), redis.Nil) {
		return State{}, err
	}
	return ReadState(get.Val(), ttl.Val()), nil
}

// exec sends so many commands in one pipeline. Its error is one of the call as a whole, and then no command has an
// answer; those of single commands stay with them. A Redis that refuses the connection (a wrong password, too many
// clients) answers with a Redis error too, and the client leaves the commands as if each had succeeded with an empty
// answer.
func (l *redisStore) exec(ctx context.Context, n int, command func(i int) redis.Cmder) ([]redis.Cmder, error) {
	pipe := l.client.Pipeline()
	for i := range n {
		_ = pipe.Process(ctx, command(i)) // only queues
	}
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
	return nil, explain(err)
}

// execAll is exec where no command should fail. It returns those before the first that did. Nothing under a key, or
// somebody else's value of another type, is no fault of Redis.
func (l *redisStore) execAll(ctx context.Context, n int, command func(i int) redis.Cmder) ([]redis.Cmder, error) {
	cmds, err := l.exec(ctx, n, command)
	for i, cmd := range cmds {
		err := cmd.Err()
		if err != nil && !errors.Is(err, redis.Nil) && !redis.HasErrorPrefix(err, "WRONGTYPE") {
			return cmds[:i], explain(err)
		}
	}
	return cmds, err
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
