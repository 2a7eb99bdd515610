package chaos

import (
	"context"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wait"
)

func rabbitFaults() []fault {
	return []fault{
		{name: "rabbitmq kill -9", unit: "connections cut", nodes: 1, targets: on(onRabbit), most: 5 * time.Second,
			strike: killServer(rabbitOf)},
		{name: "rabbitmq frozen", unit: "times missed by a daemon", nodes: 1, targets: on(onRabbit), least: 20 * time.Second,
			most: 20 * time.Second, short: 9 * time.Second, strike: freezeServer(rabbitOf, missesRabbit)},
		{name: "rabbitmq stop_app", unit: "connections cut", nodes: 1, targets: on(onRabbit), most: 5 * time.Second,
			strike: stopApp},
		{name: "rabbitmq memory alarm", unit: "connections blocked", targets: on(onRabbit), least: 4 * time.Second,
			most: 10 * time.Second, strike: memoryAlarm},
		{name: "rabbitmq disk alarm", unit: "connections blocked", targets: on(onRabbit), least: 4 * time.Second,
			most: 10 * time.Second, strike: diskAlarm},
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
	_ = wait.For(ctx, p.lasts)
	_, err := w.stack.RabbitMQ.Ctl("start_app")
	return cut, err
}

// memoryAlarm is the alarm that RabbitMQ raises when memory runs low: whoever publishes is blocked.
func memoryAlarm(ctx context.Context, w *world, p planned) (int, error) {
	return w.alarm(ctx, p, "rabbit_alarm:set_alarm({{resource_limit, memory, node()}, []})",
		"rabbit_alarm:clear_alarm({resource_limit, memory, node()})")
}

// diskAlarm asks for more free disk than any machine has, so RabbitMQ's own monitor raises the alarm, and lowers the
// limit again.
func diskAlarm(ctx context.Context, w *world, p planned) (int, error) {
	return w.alarm(ctx, p, `rabbit_disk_monitor:set_disk_free_limit("1000000GB")`,
		`rabbit_disk_monitor:set_disk_free_limit("50MB")`)
}

// alarm raises an alarm, waits until it blocks somebody, holds it, and ends it.
func (w *world) alarm(ctx context.Context, p planned, begin, end string) (int, error) {
	do := func(expression string) error {
		ask, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
		defer cancel()
		_, err := w.stack.RabbitMQ.Eval(ask, expression)
		return err
	}
	if err := do(begin); err != nil {
		return 0, err
	}
	_ = wait.For(ctx, p.lasts)
	blocked := 0
	until(ctx, 30*time.Second, func() bool {
		n, err := w.broker.number(ctx, `length([S || [{state, S}] <- rabbit_networking:connection_info_all([state]), S =:= `+
			`blocked])`)
		blocked = n
		return err == nil && n > 0
	})
	return blocked, do(end)
}

// disconnect closes all connections, as an operator does, while the daemons hold deliveries.
func disconnect(ctx context.Context, w *world, _ planned) (int, error) {
	held := 0
	until(ctx, 10*time.Second, func() bool {
		n, err := w.broker.unackedNow(ctx)
		held = n
		return err == nil && n > 0
	})
	_, err := w.broker.eval(ctx, `[rabbit_networking:close_connection(P, "closed by the chaos run") || P <- `+
		`rabbit_networking:connections()], ok`)
	return held, err
}
