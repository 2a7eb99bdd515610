package stack

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// Message is what a test publishes: Body, Headers, MessageId and so on, in the client library's own type, so that a
// test can send what our product never would.
type Message = amqp.Publishing

// Delivery is what a test gets from a queue.
type Delivery = amqp.Delivery

// Broker is a test's own place on a RabbitMQ: a virtual host of its own, or, on a server given from outside, names of
// its own ([Broker.Name]) on the virtual host of the given URL. Its methods fail the test when they fail, and may be
// called from any goroutine.
type Broker struct {
	// URL has the virtual host in it.
	URL string

	t      testing.TB
	node   *rabbitNode // nil on a server given from outside
	vhost  string
	suffix string

	mu     sync.Mutex
	conn   *amqp.Connection // opened at first use, again after it broke
	cleans []func()         // for the end, on a server given from outside
}

// AMQP makes a fresh virtual host for this test, and removes it with all that is in it when the test ends.
func AMQP(t testing.TB) *Broker {
	t.Helper()
	s := shared[KindRabbitMQ].get(t, KindRabbitMQ)
	if s.node == nil {
		return s.Broker(t)
	}
	u := require.Get(url.Parse(s.url))(t)
	vhost := "test-" + uniqueSuffix()
	evalForTest(t, s.node, fmt.Sprintf(`ok = rabbit_vhost:add(%s, <<"tests">>), ok = `+
		`rabbit_auth_backend_internal:set_permissions(%s, %[1]s, <<".*">>, <<".*">>, <<".*">>, <<"tests">>)`,
		erlangBinary(vhost), erlangBinary(u.User.Username())))
	t.Cleanup(func() {
		evalForTest(t, s.node, fmt.Sprintf(`rabbit_vhost:delete(%s, <<"tests">>)`, erlangBinary(vhost)))
	})
	u.Path = "/" + vhost
	return newBroker(t, s.node, u.String())
}

// Broker gives the broker methods for the default virtual host of a test's own RabbitMQ.
func (s *Server) Broker(t testing.TB) *Broker {
	t.Helper()
	return newBroker(t, s.node, s.url)
}

func newBroker(t testing.TB, node *rabbitNode, target string) *Broker {
	t.Helper()
	vhost := require.Get(amqp.ParseURI(target))(t).Vhost
	b := &Broker{URL: target, t: t, node: node, vhost: vhost, suffix: uniqueSuffix()}
	t.Cleanup(b.cleanUp)
	return b
}

// Name makes a name of a queue or exchange that no other test uses: name, a dot, and random letters that stay the same
// for this Broker.
func (b *Broker) Name(name string) string { return name + "." + b.suffix }

// Track deletes these queues when the test ends, which matters only on a server given from outside: a virtual host goes
// as a whole.
func (b *Broker) Track(queues ...string) {
	b.atEnd(func() { b.Delete(queues...) })
}

// TrackExchanges deletes these exchanges when the test ends.
func (b *Broker) TrackExchanges(exchanges ...string) {
	b.atEnd(func() {
		for _, exchange := range exchanges {
			b.on("delete exchange "+exchange, func(ch *amqp.Channel) { must.OK(ch.ExchangeDelete(exchange, false, false)) })
		}
	})
}

func (b *Broker) atEnd(clean func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cleans = append(b.cleans, clean)
}

// DeclareQueue makes a durable queue with these arguments and tracks it. A nil args makes a classic queue.
func (b *Broker) DeclareQueue(name string, args map[string]any) {
	b.t.Helper()
	b.Track(name)
	b.on("declare queue "+name, func(ch *amqp.Channel) {
		must.Get(ch.QueueDeclare(name, true, false, false, false, args))
	})
}

// DeclareExchange makes a durable exchange of this kind (direct, fanout, topic, headers) and tracks it.
func (b *Broker) DeclareExchange(name, kind string) {
	b.t.Helper()
	b.TrackExchanges(name)
	b.on("declare exchange "+name, func(ch *amqp.Channel) {
		must.OK(ch.ExchangeDeclare(name, kind, true, false, false, false, nil))
	})
}

// Bind lets messages with this routing key come from the exchange to the queue.
func (b *Broker) Bind(queue, key, exchange string) {
	b.t.Helper()
	b.on("bind queue "+queue, func(ch *amqp.Channel) { must.OK(ch.QueueBind(queue, key, exchange, false, nil)) })
}

// Unbind takes a binding away.
func (b *Broker) Unbind(queue, key, exchange string) {
	b.t.Helper()
	b.on("unbind queue "+queue, func(ch *amqp.Channel) { must.OK(ch.QueueUnbind(queue, key, exchange, nil)) })
}

// Exists reports whether the queue exists.
func (b *Broker) Exists(queue string) bool {
	b.t.Helper()
	_, _, ok := b.inspect(queue)
	return ok
}

// Depth is the number of messages ready in the queue: neither those given to consumers nor, in RabbitMQ, those still
// being written.
func (b *Broker) Depth(queue string) int {
	b.t.Helper()
	ready, _, ok := b.inspect(queue)
	if !ok {
		b.t.Errorf("ask for the depth of queue %s: there is no such queue", queue)
	}
	return ready
}

// Consumers is how many consumers the queue has; 0 when there is no such queue yet.
func (b *Broker) Consumers(queue string) int {
	b.t.Helper()
	_, consumers, _ := b.inspect(queue)
	return consumers
}

func (b *Broker) inspect(queue string) (ready, consumers int, exists bool) {
	b.t.Helper()
	b.on("inspect queue "+queue, func(ch *amqp.Channel) {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		if e, ok := errors.AsType[*amqp.Error](err); !ok || e.Code != amqp.NotFound {
			must.OK(err)
		}
		ready, consumers, exists = q.Messages, q.Consumers, err == nil
	})
	return ready, consumers, exists
}

// Unacked is the number of messages of all these queues that were given to consumers and not settled. Only a server of
// ours tells: on another the test is skipped. The figure that RabbitMQ shows of a quorum queue is up to five seconds
// old, so the queue's state machine is asked itself.
func (b *Broker) Unacked(queues ...string) int {
	b.t.Helper()
	return b.sum("the unacked messages", `case amqqueue:get_type(Q) of rabbit_quorum_queue -> {ok, {_, N}, _} = `+
		`ra:local_query(amqqueue:get_pid(Q), fun rabbit_fifo:query_messages_checked_out/1), N; _ -> `+
		`proplists:get_value(messages_unacknowledged, rabbit_amqqueue:info(Q, [messages_unacknowledged])) end`, queues)
}

// Quiet reports whether no message is in these quorum queues: ready, in anybody's hands, or expired or given up and not
// taken yet by the queue it goes to. While it is looked at one queue after the other, a message may go from one that
// comes to one that is done: so it must be true three times. Only a server of ours tells: on another the test is
// skipped.
func (b *Broker) Quiet(queues ...string) bool {
	b.t.Helper()
	for _, queue := range queues { // which is cheaper to ask
		if b.Depth(queue) > 0 {
			return false
		}
	}
	return b.sum("the messages", `lists:sum([begin {ok, {_, N}, _} = ra:local_query(amqqueue:get_pid(Q), F), `+
		`if is_tuple(N) -> element(1, N); true -> N end end || F <- [fun rabbit_fifo:query_messages_ready/1, `+
		`fun rabbit_fifo:query_messages_checked_out/1, fun rabbit_fifo:query_stat_dlx/1]])`,
		slices.Repeat(queues, 3)) == 0
}

// sum adds up what an Erlang expression says of each queue, which is Q there. One Eval asks for all: each is the start
// of a program.
func (b *Broker) sum(what, expression string, queues []string) int {
	b.t.Helper()
	names := make([]string, len(queues))
	for i, queue := range queues {
		names[i] = erlangBinary(queue)
	}
	text := b.Eval(fmt.Sprintf(`lists:sum([begin {ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(%s, queue, Name)), %s `+
		`end || Name <- [%s]])`, erlangBinary(b.vhost), expression, strings.Join(names, ", ")))
	n, err := strconv.Atoi(text)
	assert.OK(b.t, err, "ask for ", what, " of ", queues, ":")
	return n
}

// Connections is how many connections to this place there are, of whom ever.
func (b *Broker) Connections() (n int) {
	b.t.Helper()
	return require.Get(strconv.Atoi(b.Eval(fmt.Sprintf(
		"length([1 || [{vhost, %s}] <- rabbit_networking:connection_info_all([vhost])])", erlangBinary(b.vhost)))))(b.t)
}

// Publish sends one message and waits until the broker has confirmed it and not returned it.
func (b *Broker) Publish(exchange, key string, m Message) {
	b.t.Helper()
	b.on(fmt.Sprintf("publish to exchange %q with key %q", exchange, key), func(ch *amqp.Channel) {
		publish(ch, exchange, key, m)
	})
}

// Publish does outside of tests what [Broker.Publish] does.
func Publish(target, exchange, key string, m Message) error {
	return must.Catch(func() {
		conn := must.Get(amqp.Dial(target))
		defer conn.Close() // the message is confirmed
		publish(must.Get(conn.Channel()), exchange, key, m)
	})
}

// publish waits until the broker has taken the message; a return comes before its confirm.
func publish(ch *amqp.Channel, exchange, key string, m Message) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	const mandatory = true
	must.OK(ch.Confirm(false))
	returns := ch.NotifyReturn(make(chan amqp.Return, 1))
	confirm := must.Get(ch.PublishWithDeferredConfirmWithContext(ctx, exchange, key, mandatory, false, m))
	if acked := must.Get(confirm.WaitContext(ctx)); !acked {
		must.OK(errors.New("the broker refused it (nack)"))
	}
	select {
	case r := <-returns:
		must.OK(fmt.Errorf("it came back: %d %s", r.ReplyCode, r.ReplyText))
	default:
	}
}

// Get takes one message from the queue and acks it; ok is false when the queue is empty.
func (b *Broker) Get(queue string) (d Delivery, ok bool) {
	b.t.Helper()
	b.on("get from queue "+queue, func(ch *amqp.Channel) {
		var err error
		d, ok, err = ch.Get(queue, true)
		must.OK(err)
	})
	return d, ok
}

// GetAll takes all messages that are ready in the queue, on one channel: thousands would take Get minutes.
func (b *Broker) GetAll(queue string) (all []Delivery) {
	b.t.Helper()
	b.on("get all from queue "+queue, func(ch *amqp.Channel) {
		d, ok, err := ch.Get(queue, true)
		for ; ok && err == nil; d, ok, err = ch.Get(queue, true) {
			all = append(all, d)
		}
		must.OK(err)
	})
	return all
}

// Reject takes one message from the queue, for which it waits, and rejects it for good: the broker dead-letters it if
// the queue says so.
func (b *Broker) Reject(queue string) { b.t.Helper(); b.reject(queue, 1, false) }

// Fail takes the queue's first message n times and gives it back as failed (basic.reject), which every version of
// RabbitMQ counts towards the delivery limit; from 4.3 it counts no basic.nack.
func (b *Broker) Fail(queue string, n int) { b.t.Helper(); b.reject(queue, n, true) }

func (b *Broker) reject(queue string, n int, requeue bool) {
	b.t.Helper()
	b.on("reject deliveries of queue "+queue, func(ch *amqp.Channel) {
		got, late := consumeOne(ch, queue, false), time.After(time.Minute)
		for i := range n {
			select {
			case d := <-got:
				must.OK(d.Reject(requeue))
			case <-late:
				must.OK(fmt.Errorf("%d of %d deliveries came within a minute", i, n))
			}
		}
	})
}

// consumeOne makes a consumer that is given one message at a time.
func consumeOne(ch *amqp.Channel, queue string, exclusive bool) <-chan amqp.Delivery {
	must.OK(ch.Qos(1, 0, false))
	return must.Get(ch.Consume(queue, "", false, exclusive, false, false, nil))
}

// LimitMessages changes how large a message may be, in bytes. From RabbitMQ 4 the setting is read once, at the start,
// and kept elsewhere.
func (b *Broker) LimitMessages(size int) {
	b.t.Helper()
	b.Eval(fmt.Sprintf("application:set_env(rabbit, max_message_size, %d), persistent_term:put(max_message_size, %[1]d)",
		size))
}

// HoldExclusively makes an exclusive consumer of the queue, which takes one message and acks none, until the test ends.
func (b *Broker) HoldExclusively(queue string) {
	b.t.Helper()
	ch := require.Get(require.Get(b.connection())(b.t).Channel())(b.t)
	require.OK(b.t, must.Catch(func() { consumeOne(ch, queue, true) }))
	b.t.Cleanup(func() { _ = ch.Close() })
}

// Purge empties the queue of its ready messages.
func (b *Broker) Purge(queue string) {
	b.t.Helper()
	b.on("purge queue "+queue, func(ch *amqp.Channel) { must.Get(ch.QueuePurge(queue, false)) })
}

// Delete deletes queues; one that does not exist is no error.
func (b *Broker) Delete(queues ...string) {
	b.t.Helper()
	for _, queue := range queues {
		b.on("delete queue "+queue, func(ch *amqp.Channel) { must.Get(ch.QueueDelete(queue, false, false, false)) })
	}
}

// CloseConnections makes the broker close all connections to this virtual host, as an operator would, and returns when
// it has begun to. The test's own one is ended before: its next question would meet the end half way. Only a server of
// ours can be told: on another the test is skipped.
func (b *Broker) CloseConnections() {
	b.t.Helper()
	b.hangUp()
	b.Eval(fmt.Sprintf(`[rabbit_networking:close_connection(P, "closed by the test") || [{pid, P}, {vhost, V}] <- `+
		`rabbit_networking:connection_info_all([pid, vhost]), V =:= %s], ok`,
		erlangBinary(b.vhost)))
}

// Policy applies a definition to one queue of this virtual host, as an operator would; a nil definition takes the
// policy of this name away. Values are numbers and strings. Only a server of ours can be told: on another the test is
// skipped.
func (b *Broker) Policy(name, queue string, definition map[string]any) {
	b.t.Helper()
	if definition == nil {
		b.Eval(fmt.Sprintf(`rabbit_policy:delete(%s, %s, <<"tests">>)`, erlangBinary(b.vhost), erlangBinary(name)))
		return
	}
	var terms []string
	for key, value := range definition {
		term := fmt.Sprint(value)
		if text, ok := value.(string); ok {
			term = erlangBinary(text)
		}
		terms = append(terms, fmt.Sprintf("{%s, %s}", erlangBinary(key), term))
	}
	b.Eval(fmt.Sprintf(`ok = rabbit_policy:set(%s, %s, %s, [%s], 0, <<"queues">>, <<"tests">>)`,
		erlangBinary(b.vhost), erlangBinary(name), erlangBinary("^"+regexp.QuoteMeta(queue)+"$"), strings.Join(terms, ", ")))
}

// Import loads definitions as `rabbitmqctl import_definitions` does, with this virtual host in the place of the default
// one. Only a server of ours can be told: on another the test is skipped.
func (b *Broker) Import(definitions string) {
	b.t.Helper()
	b.Eval("ok = rabbit_definitions:import_raw(" + erlangBinary(strings.ReplaceAll(definitions, `"vhost": "/"`,
		`"vhost": "`+b.vhost+`"`)) + ")")
}

// Eval runs an Erlang expression inside the broker and returns its value as text. On a server given from outside the
// test is skipped.
func (b *Broker) Eval(expression string) string {
	b.t.Helper()
	if b.node == nil {
		b.t.Skipf("needs a RabbitMQ it may command, and %s names one that is not ours", EnvAMQP)
	}
	return evalForTest(b.t, b.node, expression)
}

func evalForTest(t testing.TB, node *rabbitNode, expression string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	out, err := node.eval(ctx, expression)
	assert.OK(t, err)
	return out
}

// erlangBinary writes s as an Erlang binary, byte by byte, so that no character needs quoting.
func erlangBinary(s string) string {
	return "<<" + strings.ReplaceAll(strings.Trim(fmt.Sprint([]byte(s)), "[]"), " ", ",") + ">>"
}

// on runs do with a channel of its own, because a refusal closes the channel.
func (b *Broker) on(what string, do func(ch *amqp.Channel)) {
	b.t.Helper()
	err := must.Catch(func() {
		ch := must.Get(must.Get(b.connection()).Channel())
		defer ch.Close() // nothing depends on it
		do(ch)
	})
	assert.OK(b.t, err, what+":")
}

func (b *Broker) connection() (*amqp.Connection, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn != nil && !b.conn.IsClosed() {
		return b.conn, nil
	}
	var err error
	b.conn, err = amqp.DialConfig(b.URL, amqp.Config{
		Dial: amqp.DefaultDial(10 * time.Second), Properties: amqp.Table{"connection_name": "test"},
	})
	return b.conn, err
}

// cleanUp deletes what was tracked when the virtual host is not ours to delete.
func (b *Broker) cleanUp() {
	if b.node == nil {
		for _, clean := range b.cleans {
			clean()
		}
	}
	b.hangUp()
}

func (b *Broker) hangUp() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn != nil {
		_ = b.conn.Close() // it may have been closed already
		b.conn = nil
	}
}

// OddHeaders are headers that RabbitMQ takes, and that a client library may write and not read.
type OddHeaders struct {
	Name  string
	Table amqp.Table
}

// UnreadableHeaders are tables that amqp091-go refuses whenever they are delivered, and closes the connection: nested
// over 32 deep, or of over 8,192 entries. Each has the entry x-mark beside that, before or behind it.
func UnreadableHeaders(mark string) []OddHeaders {
	table := func(v any) any { return amqp.Table{"n": v} }
	array := func(v any) any { return []any{v} }
	inTurn := func(v any) any { return array(table(v)) }
	odd := func(name, key string, value any) OddHeaders {
		return OddHeaders{name, amqp.Table{"x-mark": mark, key: value}}
	}
	keyed := odd("a key beside the depth", "x-deep", nested(41, table))
	keyed.Table["x-message-key"] = mark
	return []OddHeaders{
		odd("tables 41 deep", "x-deep", nested(41, table)),
		odd("tables 33 deep", "x-deep", nested(33, table)),
		odd("arrays 41 deep", "x-deep", nested(41, array)),
		odd("arrays and tables in turn", "x-deep", nested(41, inTurn)),
		odd("a forged x-death", "x-death", array(nested(40, table))),
		{"8,193 entries", many(8192, mark)},
		odd("8,193 entries below the top", "x-wide", many(8192, mark)),
		odd("8,193 elements", "x-wide", make([]any, 8193)),
		odd("20,000 elements two arrays down", "x-wide", array(make([]any, 20_000))),
		keyed,
	}
}

// FillingHeaders are tables that fill the header frame of a persistent message with these properties to the last byte,
// or have as many entries as amqp091-go reads, so that what the broker itself adds, x-delivery-count at the second
// delivery, is too much. Each has the entry x-mark.
func FillingHeaders(mark, messageID, typ string) []OddHeaders {
	const (
		frame   = 131_072 - 8 // bytes that RabbitMQ lets a frame hold
		others  = 14 + 4 + 1  // of class, weight, size and flags, the table's length, and the delivery mode
		of      = 1 + 1 + 4   // of an entry besides its name and text
		fills   = "x-fill"    // the entry that takes what is left
		entries = 4000
	)
	fill := func(t amqp.Table) amqp.Table {
		room := frame - others - of - len(fills)
		for _, property := range []string{messageID, typ} {
			if property != "" {
				room -= 1 + len(property)
			}
		}
		for name, text := range t {
			room -= of + len(name) + len(text.(string))
		}
		t[fills] = strings.Repeat("f", room)
		return t
	}
	wide := amqp.Table{"x-mark": mark}
	for i := range entries {
		wide[fmt.Sprintf("x-%04d", i)] = strings.Repeat("w", 20)
	}
	return []OddHeaders{
		{"one entry fills the frame", fill(amqp.Table{"x-mark": mark})},
		{"many entries fill the frame", fill(wide)},
		{"8,192 entries", many(8191, mark)},
	}
}

// nested is what so many wraps make of a text.
func nested(depth int, wrap func(any) any) (value any) {
	value = "the bottom"
	for range depth {
		value = wrap(value)
	}
	return value
}

// many is so many entries without a value, each with a name of its own, and the mark.
func many(n int, mark string) amqp.Table {
	t := amqp.Table{"x-mark": mark}
	for i := range n {
		t[fmt.Sprintf("x-%04d", i)] = nil
	}
	return t
}
