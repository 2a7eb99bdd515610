package chaos

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func both(acts ...act) act {
	return func(s *strike) {
		var errs []error // one that fails must not keep the next from undoing its part
		for _, a := range acts {
			errs = append(errs, must.Catch(func() { a(s) }))
		}
		must.OK(errors.Join(errs...))
	}
}

// undo ends what begin has left a function for.
func undo(s *strike) {
	if s.undo != nil {
		must.OK(s.undo())
	}
}

// pause is the time that the state lasts, for those who do something after it.
func pause(s *strike) {
	_ = s.pass(s.lasts)
	s.lasts = 0
}

// server does something to the node that begin has chosen, or to the fault's first target.
func server(do func(*stack.Server) error) act {
	return func(s *strike) {
		all := map[string]*stack.Server{onRabbit: s.stack.RabbitMQ, onMySQL: s.stack.MySQL, onRedis: s.stack.Redis}
		must.OK(do(cmp.Or(s.node, all[s.on[0]])))
	}
}

var (
	kill, start  = server((*stack.Server).Kill), server((*stack.Server).Start)
	freeze, thaw = server((*stack.Server).Freeze), server((*stack.Server).Thaw)
)

func ctl(command string) act {
	return server(func(node *stack.Server) error { _, err := node.Ctl(command); return err })
}

// eval runs an Erlang expression in a node of RabbitMQ, also when the run is cut short.
func eval(expression string) act {
	return server(func(node *stack.Server) error { _, err := ask(context.Background(), node, expression); return err })
}

const askTimeout = 5 * time.Second

func ask(ctx context.Context, server *stack.Server, expression string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return server.Eval(ctx, expression)
}

// statement runs SQL as root, also when the run is cut short. {} in it is one of the tables.
func statement(text string, tables ...string) act {
	return func(s *strike) {
		table := ""
		if len(tables) > 0 {
			table = s.pick(tables)
		}
		s.exec(strings.ReplaceAll(text, "{}", table))
	}
}

func (s *strike) pick(some []string) string { return some[s.variant%len(some)] }

// breaksSchema says that a daemon that starts may refuse the schema from now on, and end.
func breaksSchema(s *strike) { s.add(broken) }

// each does something to all links to the fault's first target.
func each(do func(*stack.TCPProxy)) act {
	return func(s *strike) {
		for _, l := range s.links[s.on[0]] {
			do(l)
		}
	}
}

func slow(by time.Duration) act     { return each(func(l *stack.TCPProxy) { l.Delay(by) }) }
func narrow(bytesPerSecond int) act { return each(func(l *stack.TCPProxy) { l.Rate(bytesPerSecond) }) }
func silent(on bool) act            { return each(func(l *stack.TCPProxy) { l.Hold(on) }) }

// slowly does something while the links are slow: what lasts for a moment can be caught.
func slowly(do act) act { return both(slow(100*time.Millisecond), do, slow(0)) }

func resets(s *strike) {
	for end := time.Now().Add(s.lasts); time.Now().Before(end) && s.ctx.Err() == nil; {
		each(func(l *stack.TCPProxy) { s.hits += l.Cut() })(s)
		_ = s.pass(700 * time.Millisecond)
	}
	s.lasts = 0
}

// AMQP's methods begin with the numbers of their class and their own.
const (
	basicAck     = "\x00\x3c\x00\x50"
	basicPublish = "\x00\x3c\x00\x28"
)

func dropReply(sign string) act   { return trap((*stack.TCPProxy).DropReply, sign) }
func dropRequest(sign string) act { return trap((*stack.TCPProxy).DropRequest, sign) }

// trap waits on all links for a client's bytes with this sign in them, and loses the first.
func trap(set func(*stack.TCPProxy, func([]byte) bool) <-chan struct{}, sign string) act {
	return func(s *strike) {
		var done atomic.Bool
		defer done.Store(true)
		match := func(piece []byte) bool {
			return bytes.Contains(piece, []byte(sign)) && done.CompareAndSwap(false, true)
		}
		var traps []<-chan struct{}
		each(func(l *stack.TCPProxy) { traps = append(traps, set(l, match)) })(s)
		if s.until(15*time.Second, func() bool { return slices.ContainsFunc(traps, poll.IsClosed) }) {
			s.hits = 1
		}
	}
}

// linked counts the connections that there are when the fault begins.
func linked(s *strike) { each(func(l *stack.TCPProxy) { s.hits += l.Links() })(s) }

// since counts how much more something is than when the fault began.
func since(what meter) meter {
	return func(s *strike) int {
		n := what(s)
		if s.began.IsZero() {
			s.base = n
		}
		return n - s.base
	}
}

// carried counts the bytes that go the hard way.
var carried = since(func(s *strike) (n int) {
	each(func(l *stack.TCPProxy) { n += int(l.Carried()) })(s)
	return n
})

// said counts how often daemons say that they notice. Under other faults nobody may be there to notice.
func said(what string) meter { return since(func(s *strike) int { return s.fleet.said(what) }) }

const missesMySQL = "waiting for mysql"

var missed = said(missesMySQL)

// refused counts the copies of a kind that a queue does not take.
func refused(copies string) meter {
	return since(func(s *strike) int { return s.fleet.published(copies, "failed") })
}

// blockedNow counts the connections that RabbitMQ blocks.
func blockedNow(s *strike) int {
	n, _ := s.erlang(`length([S || [{state, S}] <- rabbit_networking:connection_info_all([state]), S =:= blocked])`)
	return n
}

const unackedNow = `lists:sum([N || [{messages_unacknowledged, N}] <- ` +
	`rabbit_channel:info_all([messages_unacknowledged])])`

// disconnect closes all connections, as an operator does, while the daemons hold deliveries.
func disconnect(s *strike) {
	s.until(10*time.Second, func() bool {
		n, err := s.erlang(unackedNow)
		s.hits = n
		return err == nil && n > 0
	})
	must.Get(s.eval(`[rabbit_networking:close_connection(P, "closed by the chaos run") || P <- ` +
		`rabbit_networking:connections()], ok`))
}

func flush(s *strike) {
	client := redis.NewClient(must.Get(redis.ParseURL(s.stack.Redis.URL())))
	defer client.Close()
	s.until(10*time.Second, func() bool { // it may just have been emptied
		s.hits = int(must.Get(client.DBSize(s.ctx).Result()))
		return s.hits > 0
	})
	must.OK(errors.Join(client.FlushAll(s.ctx).Err(), client.ScriptFlush(s.ctx).Err()), "empty redis")
}

// killConnections kills the daemons' connections as an operator does. A transaction lasts milliseconds: it does so
// again and again, until some in one were hit.
func killConnections(s *strike) {
	for tries, open := 0, 0; tries < 5 && open == 0; tries++ {
		ids := map[int64]bool{}
		must.Rows(s.ctx, s.db, "SELECT p.id, MAX(conn IS NOT NULL) FROM "+stack.Processes+" p LEFT JOIN "+
			stack.Transactions+" ON conn = p.id WHERE p.user = ? GROUP BY p.id", func(scan func(...any)) {
			var id int64
			var inTransaction bool
			scan(&id, &inTransaction)
			ids[id] = inTransaction
		}, user)
		for id, inTransaction := range ids {
			if _, err := s.db.ExecContext(s.ctx, "KILL "+strconv.FormatInt(id, 10)); err == nil { // it may be gone already
				s.hits++
			}
			if inTransaction {
				open++
			}
		}
		_ = s.pass(200 * time.Millisecond)
	}
}
