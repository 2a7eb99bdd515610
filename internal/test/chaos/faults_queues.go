package chaos

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/shop"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// queueFaults are queues that take no copies. Only the messages that need them may wait.
func queueFaults() []fault {
	return []fault{
		lonely("dead-letter queue full", "letters refused", 3, 4, 8, fullDead),
		lonely("retry queue full", "copies refused", 3, 4, 8, fullRetry),
		lonely(retryDeleted, "copies refused", 2, 3, 6, goneRetry),
	}
}

const retryDeleted = "retry queue deleted"

// crowd is how many messages are planted at once: more than RabbitMQ still takes when a queue is full.
const crowd = 60

func malformed(w *world) func(string) oracle.Sent {
	return func(name string) oracle.Sent {
		cut := w.load.route.Message(name, []byte(`{"order_sn":`))
		return oracle.Sent{Publishing: cut, Fate: oracle.ToDie(dedup.ReasonMalformed)}
	}
}

// unknown is a message of an order that nobody knows: it fails until its attempts are used up.
func unknown(w *world) func(string) oracle.Sent {
	return func(name string) oracle.Sent {
		body := fmt.Appendf(nil, `{"order_sn":"unknown-%s"}`, name)
		return oracle.Sent{Publishing: w.load.route.Message("unknown-"+name, body)}
	}
}

// fullDead is a policy that lets the dead-letter queue take a few letters more and then refuse.
func fullDead(ctx context.Context, w *world, p planned) (int, error) {
	depth, err := w.depth(ctx, rabbit.DeadQueue(queue))
	if err != nil {
		return 0, err
	}
	const room = 5
	do, undo := w.policy(ctx, rabbit.DeadQueue(queue), depth+room)
	return w.refusing(ctx, p, "letter", malformed(w), do, undo)
}

func fullRetry(ctx context.Context, w *world, p planned) (int, error) {
	do, undo := w.policy(ctx, rabbit.RetryQueue(queue, retryDelays[0]), 1)
	return w.refusing(ctx, p, "retry", unknown(w), do, undo)
}

// goneRetry deletes the shortest retry queue while nothing is in it, and lets the program declare it again. That no row
// is open is not enough: a message that was given back before it had an attempt has no row, and its copy waits there.
func goneRetry(ctx context.Context, w *world, p planned) (int, error) {
	w.load.pure.Store(true)
	defer w.load.pure.Store(false)
	shortest := rabbit.RetryQueue(queue, retryDelays[0])
	empty := func() bool {
		depth, err := w.depth(ctx, shortest)
		return err == nil && depth == 0 && w.noOpenRow(ctx) == nil
	}
	if !until(ctx, time.Minute, empty) && ctx.Err() == nil {
		return 0, errors.New("the retry queues did not become empty")
	}
	do := func() error {
		ask, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		_, err := w.broker.eval(ask, fmt.Sprintf(`{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"%s">>)),
			{ok, 0} = rabbit_amqqueue:delete(Q, false, false, <<"chaos">>)`, shortest))
		return err
	}
	undo := func() error {
		_, err := program.Run(context.WithoutCancel(ctx), w.o.Binary, w.asRoot, "migrate")
		return err
	}
	return w.refusing(ctx, p, "retry", unknown(w), do, undo)
}

// policy bounds the length of a queue, which then refuses what is published to it.
func (w *world) policy(ctx context.Context, queue string, length int) (do, undo func() error) {
	ask := func(expression string) error {
		ask, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
		defer cancel()
		_, err := w.broker.eval(ask, expression)
		return err
	}
	do = func() error {
		return ask(fmt.Sprintf(`ok = rabbit_policy:set(<<"/">>, <<"full">>, <<"^%s$">>,
			[{<<"max-length">>, %d}, {<<"overflow">>, <<"reject-publish">>}], 0, <<"queues">>, <<"chaos">>)`,
			strings.ReplaceAll(queue, ".", "[.]"), length))
	}
	return do, func() error { return ask(`ok = rabbit_policy:delete(<<"/">>, <<"full">>, <<"chaos">>)`) }
}

// plant publishes n messages that cannot be applied beside the load, at once.
func (w *world) plant(ctx context.Context, n int, message func(name string) oracle.Sent) (keys []any, err error) {
	p := rabbit.NewPublisher(rabbit.Config{URLs: w.load.urls, Name: "chaos planter"})
	defer func() { _ = p.Close(context.WithoutCancel(ctx)) }() // everything is confirmed, or the run fails
	sent := []oracle.Sent{}
	for range n {
		sent = append(sent, message(w.plantName()))
	}
	for _, s := range sent {
		keys = append(keys, []byte(s.MessageID))
	}
	return keys, shop.Publish(ctx, p, w.load.ledger, sent, nil)
}

// refusing lets a queue refuse copies while messages need it and the load goes on, which must not notice.
func (w *world) refusing(
	ctx context.Context, p planned, copies string, message func(string) oracle.Sent, do, undo func() error,
) (int, error) {
	before := w.fleet.published(ctx, copies, "failed")
	if err := do(); err != nil {
		return 0, errors.Join(err, undo())
	}
	keys, err := w.plant(ctx, crowd, message)
	applied, began := w.applied(ctx), time.Now()
	_ = wait.For(ctx, p.lasts)
	most := int(time.Since(began).Seconds() * float64(w.o.Rate))
	if n := w.applied(ctx) - applied; n < most/4 && ctx.Err() == nil {
		w.violation("%s: %d messages were applied in %v, at least %d were published", p.fault.name, n, p.lasts, most)
	}
	hits := w.fleet.published(ctx, copies, "failed") - before
	if err := errors.Join(err, undo()); err != nil {
		return hits, err
	}
	w.die(ctx, "waited for a queue", "msg_key", keys)
	return hits, nil
}

// published counts the copies of a kind that ended with a result at the daemons that run now.
func (f *fleet) published(ctx context.Context, kind, result string) (n int) {
	for _, s := range f.slots {
		m, err := s.present().Metrics(ctx)
		if err != nil {
			f.w.say("cannot ask %s for its metrics: %v", s.name, err)
		}
		n += int(m[fmt.Sprintf(`rollbackd_publishes_total{kind=%q,result=%q}`, kind, result)])
	}
	return n
}
