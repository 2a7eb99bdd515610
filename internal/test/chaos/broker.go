package chaos

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// queue is the main queue.
const queue = "stock.rollback"

// broker asks RabbitMQ what AMQP does not tell, through whichever node answers.
type broker struct{ nodes []*stack.Server }

const askTimeout = 5 * time.Second

// eval runs an Erlang expression in the first node that answers.
func (b *broker) eval(ctx context.Context, expression string) (text string, err error) {
	var errs []error
	for _, node := range b.nodes {
		ask, cancel := context.WithTimeout(ctx, askTimeout)
		text, err = node.Eval(ask, expression)
		cancel()
		if err == nil {
			return text, nil
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}

func (b *broker) number(ctx context.Context, expression string) (int, error) {
	text, err := b.eval(ctx, expression)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("rabbitmq answered %q instead of a number", text)
	}
	return n, nil
}

// inHandsOf counts the deliveries that a process holds.
func (b *broker) inHandsOf(ctx context.Context, pid int) (int, error) {
	return b.number(ctx,
		fmt.Sprintf(`Own = [P || [{pid, P}, {client_properties, Ps}] <- rabbit_networking:connection_info_all([pid,
			client_properties]),
		{<<"connection_name">>, _, Name} <- Ps, lists:suffix("/%d", binary_to_list(Name))],
		lists:sum([N || [{connection, C}, {messages_unacknowledged, N}] <- rabbit_channel:info_all([connection,
			messages_unacknowledged]), lists:member(C, Own)])`, pid))
}

// total adds an item up for all queues of the topology but the dead letters'. Only the node that leads a queue knows
// its counts, so all are asked.
func (b *broker) total(ctx context.Context, item, names string) (int, error) {
	return b.number(ctx, fmt.Sprintf(`lists:sum([lists:max([0 | [N || Node <- [node() | nodes()],
		[{_, N}] <- [rpc:call(Node, rabbit_amqqueue, info, [Q, [%s]], 3000)],
			is_integer(N)]]) || Q <- rabbit_amqqueue:list(<<"/">>),
		begin {resource, _, _, Name} = amqqueue:get_name(Q), %s end])`, item, names))
}

func (b *broker) unacked(ctx context.Context, queue string) (int, error) {
	return b.total(ctx, "messages_unacknowledged", fmt.Sprintf(`Name =:= <<"%s">>`, queue))
}

// idle is nil when all queues but the dead letters' are empty and nobody holds a delivery.
func (b *broker) idle(ctx context.Context) error {
	n, err := b.total(ctx, "messages", fmt.Sprintf(`Name =/= <<"%s">>`, rabbit.DeadQueue(queue)))
	if err != nil {
		return fmt.Errorf("ask for the depth of the queues: %w", err)
	}
	if n > 0 {
		return fmt.Errorf("%d messages are in the main, retry and backstop queues", n)
	}
	return nil
}

// quiet waits until nothing is unacked in any queue; RabbitMQ updates the counts every five seconds.
func (b *broker) quiet(ctx context.Context) error {
	var last error
	until(ctx, 30*time.Second, func() bool {
		n, err := b.total(ctx, "messages_unacknowledged", "true")
		if last = err; err == nil && n > 0 {
			last = fmt.Errorf("%d deliveries are unacked", n)
		}
		return last == nil
	})
	return last
}

// leader is the index of the node that leads the main queue, -1 while nobody knows one. without is a node not to ask.
func (b *broker) leader(ctx context.Context, without int) int {
	for i, node := range b.nodes {
		if i == without {
			continue
		}
		ask, cancel := context.WithTimeout(ctx, askTimeout)
		text, err := node.Eval(ask, fmt.Sprintf(`{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"%s">>)),
			case ra_leaderboard:lookup_leader(element(1, amqqueue:get_pid(Q))) of {_, N} -> N; _ -> none end`, queue))
		cancel()
		if err != nil {
			continue
		}
		for j, node := range b.nodes {
			if strings.Contains(text, node.NodeName()) {
				return j
			}
		}
	}
	return -1
}

// unackedNow counts the deliveries that anybody holds, as the channels themselves say.
func (b *broker) unackedNow(ctx context.Context) (int, error) {
	return b.number(ctx, `lists:sum([N || [{messages_unacknowledged, N}] <- `+
		`rabbit_channel:info_all([messages_unacknowledged])])`)
}
