package chaos

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/shop"
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
		s.undo()
	}
}

// aside begins something; join waits for its end, and is stopped by what has stopped it.
func aside(do func()) (join func()) {
	done := make(chan error, 1)
	go func() { done <- must.Catch(do) }()
	return func() { must.OK(<-done) }
}

// pause is the time that the state lasts, for those who do something after it.
func pause(s *strike) {
	_ = s.pass(s.lasts)
	s.lasts = 0
}

// server does something to the node that begin has chosen, or to the fault's first target.
func server(do func(*stack.Server) error) act {
	return func(s *strike) {
		all := map[string]*stack.Server{rabbitmq: s.stack.RabbitMQ, mysqld: s.stack.MySQL, redisd: s.stack.Redis}
		must.OK(do(cmp.Or(s.node, all[s.target])))
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

func ask(ctx context.Context, server *stack.Server, expression string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
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
func breaksSchema(s *strike) { s.broken.Store(true) }

// each does something to all links to the fault's first target.
func each(do func(*stack.TCPProxy)) act {
	return func(s *strike) {
		for _, l := range s.links[s.target] {
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

// plantName is unique; whoever plants has everything for itself.
func (w *world) plantName() string {
	w.planted++
	return fmt.Sprintf("planted-%06d", w.planted)
}

// unreadable is a producer whose headers no daemon's library can read, among the load: of ten kinds that can never be
// read, and of three whose frame is full until RabbitMQ adds x-delivery-count: these are read each time, and are
// rollbacks of orders that nobody has reserved.
func unreadable(s *strike) {
	publish := func(id string, headers rabbit.Table, fate oracle.Fate) {
		body := fmt.Appendf(nil, `{"order_sn":"%s"}`, id)
		err := stack.Publish(s.load.urls[0], s.load.route.Exchange, s.load.route.Key, stack.Message{
			MessageId: id, DeliveryMode: rabbit.Persistent, Headers: headers, Body: body,
		})
		s.load.ledger.RecordNameless(body, fate, err)
		hash := sha256.Sum256(body)
		s.keys = append(s.keys, hash[:])
		must.OK(err)
	}
	for _, odd := range stack.UnreadableHeaders("chaos") {
		publish("unreadable-"+s.plantName(), odd.Table, oracle.ToDie(dedup.ReasonUnidentified))
	}
	// No daemon can settle anything meanwhile, and its connection is cut when it holds it all.
	s.lock("UNLOCK TABLES", "LOCK TABLES consumer_log WRITE")
	func() {
		defer s.undo()
		for i := range stack.FillingHeaders("chaos", "", "") {
			id := "unreadable-" + s.plantName()
			publish(id, stack.FillingHeaders("chaos", id, "")[i].Table, oracle.ToDie(dedup.ReasonExhausted))
		}
		s.until(10*time.Second, func() bool { n, err := s.depth(queue); return err == nil && n == 0 })
		for _, l := range s.links[rabbitmq] {
			l.Cut()
		}
	}()
	s.hits = s.die("have unreadable headers", "body_hash")
}

// die waits until all messages with the strike's keys in a column are dead, and counts them. Where people replay, those
// count that were dead before.
func (s *strike) die(what, column string) (dead int) {
	if len(s.keys) == 0 {
		return 0
	}
	const patience = time.Minute
	query := fmt.Sprintf("SELECT COUNT(DISTINCT %s) FROM consumer_log WHERE (consumer_status = 3 OR replays > 0) "+
		"AND %[1]s IN (?%s)", column, strings.Repeat(",?", len(s.keys)-1))
	all := func() bool { return s.ask(&dead, query, s.keys...) == nil && dead == len(s.keys) }
	if !s.until(patience, all) && s.ctx.Err() == nil {
		s.violation("only %d of %d messages that %s are dead %v later", dead, len(s.keys), what, patience)
	}
	return dead
}

// lock runs statements on a connection of its own, which undo ends by another one.
func (s *strike) lock(undo string, do ...string) {
	conn := must.Get(s.db.Conn(s.ctx))
	s.undo = func() {
		defer conn.Close()
		must.Exec(context.WithoutCancel(s.ctx), conn, undo)
	}
	must.Exec(s.ctx, conn, do...)
}

const (
	waitsForTable = "SELECT COUNT(*) FROM " + stack.Processes + " WHERE user = ? AND state LIKE 'Waiting for table%'"
	waitsForRow   = "SELECT COUNT(*) FROM " + stack.Transactions + " JOIN " + stack.Processes + " p ON p.id = conn " +
		"WHERE p.user = ? AND waits"
)

// waiting is how many connections of the daemons wait now.
func waiting(query string) meter {
	return func(s *strike) (n int) {
		_ = s.ask(&n, query, user) // it may wait itself
		return n
	}
}

// lockTables is a colleague's LOCK TABLES, or a dump that takes a table's read lock.
func lockTables(s *strike) {
	mode := []string{"WRITE", "READ"}[s.variant/3%2]
	s.lock("UNLOCK TABLES", "LOCK TABLES "+s.pick(written)+" "+mode)
}

// alterTable rebuilds a table by copying it, behind a colleague's transaction that has read from it: MySQL lets nobody
// pass a change of a table that waits.
func alterTable(s *strike) {
	s.lock("COMMIT", "BEGIN", "SELECT 1 FROM "+s.pick(written)+" LIMIT 1")
	commit, altered := s.undo, aside(func() { s.exec("ALTER TABLE " + s.pick(written) + " FORCE, ALGORITHM=COPY") })
	s.undo = func() { commit(); altered() }
}

// rowLocks is a colleague who locks a third of all goods, and the next, and the next, again and again, each third for a
// few seconds. Who needs goods of all three waits for one after the other, in one call of the handler.
func rowLocks(s *strike) {
	const thirds, each = 3, 1800 * time.Millisecond
	ctx, cancel := context.WithTimeout(s.ctx, s.lasts)
	held := aside(func() {
		must.Side(thirds, func(third int) {
			holds := time.Duration(third+1) * each // the first time: so they take turns
			for ctx.Err() == nil {
				s.holdGoods(ctx, third, thirds, holds)
				holds = thirds * each
			}
		})
	})
	s.undo = func() { cancel(); held() }
}

// holdGoods locks every step-th sku from the first on, for so long, in the order in which the daemons do.
func (w *world) holdGoods(ctx context.Context, first, step int, lasts time.Duration) {
	end, cancel := context.WithTimeout(ctx, lasts)
	defer cancel()
	tx := must.Get(w.db.BeginTx(context.WithoutCancel(ctx), &sql.TxOptions{Isolation: sql.LevelReadCommitted}))
	defer tx.Rollback() // it has read only
	for sku := first; sku < skus; sku += step {
		must.Value[int64](context.WithoutCancel(ctx), tx, "SELECT amount FROM stock WHERE sku_id = ? FOR UPDATE", sku+1)
	}
	<-end.Done()
}

// fullDead is a policy that lets the dead-letter queue take a few letters more and then refuse.
func fullDead(s *strike) {
	const room = 5
	s.bound(rabbit.DeadQueue(queue), must.Get(s.depth(rabbit.DeadQueue(queue)))+room)
	s.plant(func(name string) oracle.Sent {
		cut := s.load.route.Message(name, []byte(`{"order_sn":`))
		return oracle.Sent{Publishing: cut, Fate: oracle.ToDie(dedup.ReasonMalformed)}
	})
}

var shortestRetry = rabbit.RetryQueue(queue, retryDelays[0])

func fullRetry(s *strike) {
	s.bound(shortestRetry, 1)
	s.plant(s.load.unknown)
}

// goneRetry deletes the shortest retry queue while nothing is in it, and lets the program declare it again. That no row
// is open is not enough: a message that was given back before it had an attempt has no row, and its copy waits there.
func goneRetry(s *strike) {
	s.load.pure.Store(true)
	empty := func() bool {
		depth, err := s.depth(shortestRetry)
		return err == nil && depth == 0 && s.noOpenRow() == nil
	}
	if !s.until(time.Minute, empty) && s.ctx.Err() == nil {
		must.OK(errors.New("the retry queues did not become empty"))
	}
	s.undo = func() { s.migrates(s.asRoot) }
	must.Get(s.eval(lookUp(shortestRetry) + `, {ok, 0} = rabbit_amqqueue:delete(Q, false, false, <<"chaos">>)`))
	s.plant(s.load.unknown)
}

// bound bounds the length of a queue, which then refuses what is published to it, until undo.
func (s *strike) bound(queue string, length int) {
	s.undo = func() { dropPolicy("full")(s) }
	s.policy("full", "^"+strings.ReplaceAll(queue, ".", "[.]")+"$",
		fmt.Sprintf(`{<<"max-length">>, %d}, {<<"overflow">>, <<"reject-publish">>}`, length))
}

// plant publishes a crowd of messages that cannot be applied beside the load.
func (s *strike) plant(message func(name string) oracle.Sent) {
	p := rabbit.NewPublisher(rabbit.Config{URLs: s.load.urls, Name: "chaos planter"})
	defer func() { _ = p.Close(context.WithoutCancel(s.ctx)) }() // everything is confirmed, or the run fails
	sent := []oracle.Sent{}
	for range 60 { // more than RabbitMQ still takes when a queue is full
		sent = append(sent, message(s.plantName()))
	}
	must.OK(shop.Publish(s.ctx, p, s.load.ledger, sent, nil))
	for _, m := range sent {
		s.keys = append(s.keys, []byte(m.MessageID))
	}
	s.before, s.since = s.applied(), time.Now()
}

// takesAgain ends it that a queue refuses copies that messages need. The load has gone on, and must not have noticed.
func takesAgain(s *strike) {
	s.load.pure.Store(false)
	took := time.Since(s.since)
	most := int(took.Seconds() * float64(s.o.Rate))
	if n := s.applied() - s.before; len(s.keys) > 0 && n < most/4 && s.ctx.Err() == nil {
		s.violation("%s: %d messages were applied in %v, at least %d were published", s.name, n, took, most)
	}
	undo(s)
	s.die("waited for a queue", "msg_key")
}
