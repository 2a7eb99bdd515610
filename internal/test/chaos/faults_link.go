package chaos

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wait"
)

func linkFaults() []fault {
	all := []fault{
		{name: "mysql lost COMMIT reply", unit: "replies lost", targets: on(onMySQL), strike: lostCommit},
		{name: "mysql lost COMMIT", unit: "requests lost", targets: on(onMySQL), strike: lostCommitRequest},
		{name: "redis lost SET reply", unit: "replies lost", targets: on(onRedis), strike: lostSet},
		{name: "rabbitmq lost ack", unit: "acks lost", targets: on(onRabbit), strike: lostAck},
		{name: "rabbitmq lost confirm", unit: "confirms lost", targets: on(onRabbit), strike: lostConfirm},
	}
	for _, to := range []string{onRabbit, onMySQL, onRedis} {
		all = append(all,
			fault{name: to + " link slow", unit: "bytes carried", targets: on(to), least: 4 * time.Second,
				most: 10 * time.Second, strike: slow(to)},
			fault{name: to + " link narrow", unit: "bytes carried", targets: on(to), least: 4 * time.Second,
				most: 10 * time.Second, strike: narrow(to)},
			fault{name: to + " link resets", unit: "connections cut", targets: on(to), least: 3 * time.Second,
				most: 8 * time.Second, strike: resets(to)},
			fault{name: to + " link silent", unit: "links held", targets: on(to), least: 8 * time.Second, most: 20 * time.Second,
				strike: silent(to)},
		)
	}
	return all
}

// strike is what a fault does; see [fault].
type strike = func(context.Context, *world, planned) (int, error)

// links are those to one of the three servers; of a cluster, to all nodes.
func (w *world) links(to string) []*stack.TCPProxy {
	return map[string][]*stack.TCPProxy{onRabbit: w.amqp, onMySQL: {w.mysql}, onRedis: {w.redis}}[to]
}

// carried runs do on each link, waits, undoes it, and counts the bytes that went the hard way meanwhile.
func carried(to string, do, undo func(*stack.TCPProxy)) strike {
	return func(ctx context.Context, w *world, p planned) (int, error) {
		var bytes int64
		for _, l := range w.links(to) {
			bytes -= l.Carried()
			do(l)
		}
		_ = wait.For(ctx, p.lasts)
		for _, l := range w.links(to) {
			undo(l)
			bytes += l.Carried()
		}
		return int(bytes), nil
	}
}

func slow(to string) strike {
	return carried(to, func(l *stack.TCPProxy) { l.Delay(100 * time.Millisecond) }, func(l *stack.TCPProxy) { l.Delay(0) })
}

func narrow(to string) strike {
	return carried(to, func(l *stack.TCPProxy) { l.Rate(32 << 10) }, func(l *stack.TCPProxy) { l.Rate(0) })
}

func resets(to string) strike {
	return func(ctx context.Context, w *world, p planned) (cut int, err error) {
		for end := time.Now().Add(p.lasts); time.Now().Before(end) && ctx.Err() == nil; {
			for _, l := range w.links(to) {
				cut += l.Cut()
			}
			_ = wait.For(ctx, 700*time.Millisecond)
		}
		return cut, nil
	}
}

// silent is a network that drops every packet: nobody gets an error, everybody must notice by a timeout of their own.
func silent(to string) strike {
	return func(ctx context.Context, w *world, p planned) (held int, err error) {
		w.charge(daemons)
		for _, l := range w.links(to) {
			l.Hold(true)
			held += l.Links()
		}
		_ = wait.For(ctx, p.lasts)
		for _, l := range w.links(to) {
			l.Hold(false)
		}
		return held, nil
	}
}

func hasCommit(piece []byte) bool { return bytes.Contains(piece, []byte("COMMIT")) }

func lostCommit(ctx context.Context, w *world, _ planned) (int, error) {
	return lost(ctx, w.mysql.DropReply(hasCommit))
}

func lostCommitRequest(ctx context.Context, w *world, _ planned) (int, error) {
	return lost(ctx, w.mysql.DropRequest(hasCommit))
}

// AMQP's methods begin with the numbers of their class and their own.
var (
	basicAck     = []byte{0, 60, 0, 80}
	basicPublish = []byte{0, 60, 0, 40}
)

// onOne sets a trap on all links to RabbitMQ; the first that springs is the only one.
func (w *world) onOne(
	ctx context.Context, set func(*stack.TCPProxy, func([]byte) bool) <-chan struct{}, method []byte,
) (int, error) {
	var done atomic.Bool
	defer done.Store(true)
	match := func(piece []byte) bool { return bytes.Contains(piece, method) && done.CompareAndSwap(false, true) }
	first, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	var hits atomic.Int32
	for _, l := range w.amqp {
		sprung := set(l, match)
		wg.Go(func() {
			if n, _ := lost(first, sprung); n > 0 {
				hits.Add(1)
				cancel()
			}
		})
	}
	wg.Wait()
	return int(hits.Load()), nil
}

// lostAck cuts the connection before the broker gets an ack: everything the connection held comes again.
func lostAck(ctx context.Context, w *world, _ planned) (int, error) {
	return w.onOne(ctx, (*stack.TCPProxy).DropRequest, basicAck)
}

// lostConfirm cuts the connection that publishes copies when the broker answers: it has the copy and the daemon does
// not know.
func lostConfirm(ctx context.Context, w *world, _ planned) (int, error) {
	return w.onOne(ctx, (*stack.TCPProxy).DropReply, basicPublish)
}
