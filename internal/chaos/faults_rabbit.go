package chaos

import (
	"context"
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/internal/stack"
)

func rabbitFaults() []fault {
	return []fault{
		{name: "rabbitmq kill -9", unit: "connections cut", nodes: 1, targets: on(onRabbit), most: 5 * time.Second, strike: killServer(rabbitOf)},
		{name: "rabbitmq frozen", unit: "times missed by a daemon", nodes: 1, targets: on(onRabbit), least: 20 * time.Second, most: 20 * time.Second, short: 9 * time.Second, strike: freezeServer(rabbitOf, missesRabbit)},
		{name: "rabbitmq stop_app", unit: "connections cut", nodes: 1, targets: on(onRabbit), most: 5 * time.Second, strike: stopApp},
		{name: "rabbitmq memory alarm", unit: "connections blocked", targets: on(onRabbit), least: 4 * time.Second, most: 10 * time.Second, strike: alarm},
		{name: "rabbitmq disconnects", unit: "deliveries in hand", targets: on(onRabbit), strike: disconnect},
	}
}

const missesRabbit = "waiting for rabbitmq"

func rabbitOf(w *world) (*stack.Server, []*stack.TCPProxy) { return w.stack.RabbitMQ, w.amqp }

func stopApp(ctx context.Context, w *world, p planned) (int, error) {
	cut := w.amqp[0].Links()
	if _, err := w.stack.RabbitMQ.Ctl("stop_app"); err != nil {
		return 0, err
	}
	_ = pause(ctx, p.lasts)
	_, err := w.stack.RabbitMQ.Ctl("start_app")
	return cut, err
}

// alarm raises and clears the alarm that RabbitMQ raises when memory runs low: whoever has published is blocked.
func alarm(ctx context.Context, w *world, p planned) (int, error) {
	node := w.stack.RabbitMQ
	what := "{{resource_limit, memory, node()}, []}"
	do := func(verb string) error {
		ask, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
		defer cancel()
		_, err := node.Eval(ask, fmt.Sprintf("rabbit_alarm:%s", verb))
		return err
	}
	if err := do("set_alarm(" + what + ")"); err != nil {
		return 0, err
	}
	_ = pause(ctx, p.lasts)
	blocked, err := w.broker.number(ctx, `length([S || [{state, S}] <- rabbit_networking:connection_info_all([state]), S =:= blocked])`)
	if err != nil {
		blocked = 0
	}
	return blocked, do("clear_alarm({resource_limit, memory, node()})")
}

// disconnect closes all connections, as an operator does, while the daemons hold deliveries.
func disconnect(ctx context.Context, w *world, _ planned) (int, error) {
	held := 0
	until(ctx, 10*time.Second, func() bool {
		n, err := w.broker.unackedNow(ctx)
		held = n
		return err == nil && n > 0
	})
	_, err := w.broker.eval(ctx, `[rabbit_networking:close_connection(P, "closed by the chaos run") || P <- rabbit_networking:connections()], ok`)
	return held, err
}
