package consumertest

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wait"
	"github.com/rollbackd/rollbackd/lock"
	"github.com/rollbackd/rollbackd/outbox"
	"github.com/rollbackd/rollbackd/outbox/relay"
)

// Servers are where a [Suite] runs. Give it a schema and a virtual host that hold nothing else: its tables and queues
// stay there.
type Servers struct {
	MySQLDSN, AMQPURL string
	// Lock, RedisURL and ZooKeeperURL are the fields of [consumer.Config]. All empty: no lock.
	Lock                   lock.Kind
	RedisURL, ZooKeeperURL string
}

// Invariant is what must be true of the effects of some messages, whatever happens on the way.
type Invariant struct {
	// Setup makes the handler's tables and rows anew. It is called before each fault.
	Setup func(t *testing.T, db *sql.DB)
	// Messages are what comes, each twice, once by the outbox: two at least. Their identities differ.
	Messages []consumer.Message
	// Query finds no row when all effects are there once. What it finds is what a fault has broken.
	Query string
}

// errSuite fails some messages behind the handler's back.
var errSuite = errors.New("consumertest: this attempt is to fail")

// lastsAtMost is how long it may take until all messages have ended.
const lastsAtMost = time.Minute

// killedAt are the points at which a process is killed. A message may pass each of them.
var killedAt = []consumer.Point{
	consumer.PointClaimed, consumer.PointEffect, consumer.PointCommitted, consumer.PointFailed, consumer.PointRetryCopy,
	consumer.PointLetter, consumer.PointDead, consumer.PointAcked,
}

// inChild is the variable in which a test that is run as a process to be killed finds the queue, and where to die.
const inChild = "CONSUMERTEST_SUITE"

// Suite runs a handler on real servers, each time with another fault:
//
//   - two workers share the messages;
//   - a process is killed (kill -9), at each of these steps of a message's way: it is claimed; the handler has written,
//     and nothing is committed; that is committed, and nothing acked; a failure is recorded; its copy is in a retry
//     queue; a dead letter is in its queue; its row says so; the acks are sent;
//   - of every three COMMITs of effects one does not arrive, and one is made without an answer.
//
// All messages come twice: published, and by the outbox. Of every three the first fails once and the second is
// dead-lettered, each after the handler is done. When all have ended, all dead letters are replayed; when these have
// ended too, the invariant must hold. The subtest that fails has the fault's name.
//
// For a process to be killed the test is run once more, by the same binary and under the same name, so whatever comes
// before Suite in it happens again. The handler must write in its transaction; one of [consumer.Calls] passes if its
// service knows a call again.
func Suite(t *testing.T, s Servers, h consumer.Handler, in Invariant) {
	t.Helper()
	if queue, point, ok := strings.Cut(os.Getenv(inChild), " "); ok {
		r := &suiteRun{t: t, Servers: s, queue: queue, handler: h, in: in}
		r.consume(t.Context(), func(p consumer.Point) {
			if string(p) == point {
				if self, err := os.FindProcess(os.Getpid()); err == nil {
					_ = self.Kill()
				}
				select {} // until it is dead
			}
		})
		return
	}
	name := t.Name()
	play := func(fault string, strike func(r *suiteRun)) {
		t.Run(fault, func(t *testing.T) {
			r := begin(t, s, h, in)
			r.test = name
			strike(r)
			r.check(fault)
		})
	}
	play("two workers, and every message twice", func(r *suiteRun) { r.settle(2, nil) })
	for _, point := range killedAt {
		play("killed when it is "+string(point), func(r *suiteRun) {
			r.killed(point)
			r.settle(1, nil)
		})
	}
	play("COMMITs without an answer", func(r *suiteRun) {
		lossy := newLossy(r)
		r.settle(1, func(p consumer.Point) {
			if p == consumer.PointEffect {
				lossy.armed.Store(true)
			}
		})
		if lossy.commits.Load() < 2 {
			r.t.Error("no COMMIT was lost: is the connection encrypted?")
		}
	})
}

// suiteRun is one fault, on a queue of its own.
type suiteRun struct {
	t *testing.T
	Servers
	queue, test string
	handler     consumer.Handler
	in          Invariant
	db          *gorm.DB
	conn        *rabbit.Conn
	delays      []time.Duration
}

func (r *suiteRun) must(what string, err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatalf("consumertest: %s: %v", what, err)
	}
}

func (r *suiteRun) config(hook func(consumer.Point)) consumer.Config {
	return consumer.Config{
		MySQLDSN: r.MySQLDSN, AMQPURLs: []string{r.AMQPURL}, Queue: r.queue, Exchange: r.queue, Migrate: true,
		Lock: r.Lock, RedisURL: r.RedisURL, ZooKeeperURL: r.ZooKeeperURL, LockTTL: time.Second,
		RetryDelays: []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond, time.Second},
		Lease:       3 * time.Second, HandlerTimeout: 2 * time.Second, MaxDead: consumer.Off, WithoutKeeper: true, Hook: hook,
		BatchSize: 50, Logger: slog.New(slog.NewTextHandler(r.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
}

// begin makes the tables and publishes the messages.
func begin(t *testing.T, s Servers, h consumer.Handler, in Invariant) *suiteRun {
	t.Helper()
	r := &suiteRun{
		t: t, Servers: s, handler: h, in: in, queue: fmt.Sprintf("consumertest.%d.%d", os.Getpid(), time.Now().UnixNano()),
	}
	var err error
	r.db, _, err = dedup.Open(t.Context(), s.MySQLDSN, dedup.OpenOptions{})
	r.must("MySQLDSN", err)
	pool, err := r.db.DB()
	r.must("MySQLDSN", err)
	t.Cleanup(func() { _ = pool.Close() })
	in.Setup(t, pool)
	amqp := rabbit.Config{URLs: []string{s.AMQPURL}, Name: "consumertest"}
	r.conn, err = rabbit.Dial(t.Context(), amqp)
	r.must("AMQPURL", err)
	t.Cleanup(func() { _ = r.conn.Close() })
	cfg := r.config(nil)
	r.delays = cfg.RetryDelays
	_, err = rabbit.Declare(t.Context(), r.conn, rabbit.TopologyConfig{
		Exchange: r.queue, Queue: r.queue, RoutingKeys: []string{r.queue}, Delays: r.delays,
	})
	r.must("declare the queues", err)
	var batch []rabbit.Publishing
	var puts []outbox.Message
	for _, m := range in.Messages {
		headers := rabbit.Table{"x-message-key": m.Key}
		batch = append(batch, rabbit.Publishing{Exchange: r.queue, Key: r.queue, Message: rabbit.Message{
			Type: m.Tag, MessageID: cmp.Or(m.MessageID, m.Key), Body: m.Body, ContentType: m.ContentType, Headers: headers,
		}})
		puts = append(puts, outbox.Message{Tag: m.Tag, Key: m.Key, Body: m.Body, ContentType: m.ContentType,
			RoutingKey: r.queue})
	}
	publisher := rabbit.NewPublisher(amqp)
	defer func() { _ = publisher.Close(context.WithoutCancel(t.Context())) }()
	r.must("publish", errors.Join(publisher.Publish(t.Context(), batch)...))
	r.must("send by the outbox", r.relay(t.Context(), pool, puts))
	return r
}

// relay puts messages, and sends them.
func (r *suiteRun) relay(ctx context.Context, pool *sql.DB, puts []outbox.Message) error {
	err := outbox.Migrate(ctx, r.db)
	if err == nil {
		err = r.db.Transaction(func(tx *gorm.DB) error { return outbox.Put(ctx, consumer.SQL(tx), puts...) })
	}
	if err != nil {
		return err
	}
	sending, err := relay.New(r.config(nil).Relay(pool))
	if err != nil {
		return err
	}
	until, stop := context.WithTimeout(ctx, lastsAtMost)
	var running sync.WaitGroup
	running.Go(func() { err = sending.Run(until) })
	left, looked := len(puts), error(nil)
	for left > 0 && looked == nil {
		looked = cmp.Or(wait.For(until, 20*time.Millisecond), r.db.WithContext(until).Raw("SELECT COUNT(*) FROM "+
			"rollbackd_outbox WHERE routing_key = ?", r.queue).Scan(&left).Error)
	}
	stop()
	running.Wait()
	return errors.Join(looked, err)
}

// consume runs a consumer until ctx ends.
func (r *suiteRun) consume(ctx context.Context, hook func(consumer.Point)) {
	c, err := consumer.Open(ctx, r.config(hook), r.failing())
	if err == nil {
		err = c.Run(ctx)
	}
	if err != nil {
		r.t.Errorf("consumertest: the consumer: %v", err)
	}
}

// failing is the handler, some of whose messages fail after it has written.
func (r *suiteRun) failing() consumer.Handler {
	place := map[string]int{}
	for i, m := range r.in.Messages {
		place[m.Tag+"/"+m.Key] = i
	}
	fails := func(m consumer.Message) error {
		switch place[m.Tag+"/"+m.Key] % 3 {
		case 0:
			if m.Attempt < 2 && m.Replays == 0 {
				return errSuite
			}
		case 1:
			if m.Replays == 0 {
				return consumer.Permanent(errSuite)
			}
		}
		return nil
	}
	return consumer.With(r.handler, func(next consumer.Handler) consumer.Handler {
		return consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
			err := next.Handle(ctx, tx, msgs)
			theirs, partly := errors.AsType[*consumer.BlameError](err)
			if err != nil && !partly {
				return err
			}
			var blamed []consumer.BlamedMessage
			for i, m := range msgs {
				if err := fails(m); err != nil {
					blamed = append(blamed, consumer.BlamedMessage{Index: i, Err: err})
				}
			}
			if len(blamed) > 0 && partly { // or its handler says that all others are applied
				blamed = append(blamed, theirs.Messages...)
			}
			return cmp.Or(consumer.Blame(blamed...), err)
		})
	})
}

// killed runs a process until it kills itself, or until all messages have ended without it having to.
func (r *suiteRun) killed(at consumer.Point) {
	r.t.Helper()
	ctx, stop := context.WithCancel(r.t.Context())
	defer stop()
	parts := strings.Split(r.test, "/")
	for i, part := range parts {
		parts[i] = "^" + regexp.QuoteMeta(part) + "$"
	}
	var said bytes.Buffer
	child := exec.CommandContext(ctx, os.Args[0], "-test.run="+strings.Join(parts, "/"), "-test.count=1")
	child.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s", inChild, r.queue, at))
	child.Stdout, child.Stderr = &said, &said
	r.must("start the process that is killed", child.Start())
	dead := make(chan struct{})
	go func() { // joined below
		_ = child.Wait()
		close(dead)
	}()
	alive := true
	for patience := 100; alive && patience > 0; {
		select {
		case <-dead:
			alive = false
		case <-time.After(50 * time.Millisecond):
			if r.ended(r.t.Context()) { // the step of the last message may be the one at which it is about to die
				patience--
			}
		}
	}
	stop()
	<-dead
	if alive || child.ProcessState.Exited() {
		r.t.Errorf("no process was killed when a message was %s (%v); it said:\n%s", at, child.ProcessState, &said)
	}
}

// settle runs consumers until all messages have ended, and again all dead letters once they are replayed.
func (r *suiteRun) settle(consumers int, hook func(consumer.Point)) {
	r.t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(r.t.Context()))
	var running sync.WaitGroup
	for range consumers {
		running.Go(func() { r.consume(ctx, hook) })
	}
	until, cancel := context.WithTimeout(ctx, lastsAtMost)
	defer cancel()
	letters, err := r.config(nil).Letters(r.db)
	for _, replay := range []bool{true, false} {
		for err == nil && !(r.ended(until) && r.empty(until)) {
			err = wait.For(until, 50*time.Millisecond)
		}
		if err == nil && replay {
			_, err = letters.Replay(until, deadletter.Filter{All: true}, deadletter.ReplayOptions{By: "consumertest"})
		}
	}
	if err != nil {
		r.t.Errorf("consumertest: not all messages have ended: %v", err)
	}
	stop()
	running.Wait()
}

// ended reports whether each message is applied, or a dead letter.
func (r *suiteRun) ended(ctx context.Context) bool {
	n := 0
	err := r.db.WithContext(ctx).Raw("SELECT COUNT(*) FROM consumer_log WHERE group_name = ? AND consumer_status IN ?",
		r.queue, []dedup.Status{dedup.Success, dedup.Dead}).Scan(&n).Error
	return err == nil && n >= len(r.in.Messages) // before the first consumer there is no such table
}

// empty reports whether nothing waits for a consumer.
func (r *suiteRun) empty(ctx context.Context) bool {
	queues := []string{r.queue}
	for _, d := range r.delays {
		queues = append(queues, rabbit.RetryQueue(r.queue, d))
	}
	for _, q := range queues {
		if ready, _, err := r.conn.Depth(ctx, q); err != nil || ready > 0 {
			return false
		}
	}
	return true
}

// check asks the invariant's query.
func (r *suiteRun) check(fault string) {
	r.t.Helper()
	var found []map[string]any
	r.must("the invariant's query", r.db.WithContext(r.t.Context()).Raw(r.in.Query).Scan(&found).Error)
	for _, row := range found {
		for column, v := range row {
			if text, ok := v.([]byte); ok {
				row[column] = string(text)
			}
		}
		r.t.Errorf("%s has broken the invariant: %v", fault, row)
	}
}

// lossy is a way to MySQL on which, of three COMMITs that come when it is armed, two get no answer.
type lossy struct {
	armed   atomic.Bool
	commits atomic.Int32 // that came so
}

// mostCommits is after how many COMMITs it loses none any more.
const mostCommits = 12

var commit = []byte("\x03COMMIT")

// newLossy leads a run's consumers to MySQL by another address.
func newLossy(r *suiteRun) *lossy {
	r.t.Helper()
	l := &lossy{}
	dsn, err := mysql.ParseDSN(r.MySQLDSN)
	r.must("MySQLDSN", err)
	network, address := dsn.Net, dsn.Addr
	door, err := new(net.ListenConfig).Listen(r.t.Context(), "tcp", "127.0.0.1:0")
	r.must("listen", err)
	var links sync.WaitGroup
	links.Go(func() {
		for {
			in, err := door.Accept()
			if err != nil {
				return
			}
			out, err := new(net.Dialer).DialContext(context.WithoutCancel(r.t.Context()), network, address)
			if err != nil {
				_ = in.Close()
				continue
			}
			links.Go(func() { l.link(in, out) })
		}
	})
	r.t.Cleanup(func() {
		_ = door.Close()
		links.Wait()
	})
	dsn.Net, dsn.Addr = "tcp", door.Addr().String()
	r.MySQLDSN = dsn.FormatDSN()
	return l
}

// link carries what both sides say until one of them ends, or an answer is to be lost.
func (l *lossy) link(in, out net.Conn) {
	var back sync.WaitGroup
	lose := make(chan struct{})
	back.Go(func() {
		defer in.Close()
		buf := make([]byte, 64<<10)
		for {
			n, err := out.Read(buf)
			select {
			case <-lose:
				return
			default:
			}
			if err != nil {
				return
			}
			if _, err := in.Write(buf[:n]); err != nil {
				return
			}
		}
	})
	buf := make([]byte, 64<<10)
	for {
		n, err := in.Read(buf)
		if bytes.HasSuffix(buf[:n], commit) && l.armed.CompareAndSwap(true, false) {
			if nth := l.commits.Add(1); nth <= mostCommits && nth%3 == 1 {
				break
			} else if nth <= mostCommits && nth%3 == 2 {
				close(lose)
			}
		}
		if _, writeErr := out.Write(buf[:n]); errors.Join(err, writeErr) != nil {
			break
		}
	}
	_ = out.Close()
	back.Wait()
}
