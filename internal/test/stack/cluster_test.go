package stack

import (
	"os"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// Given three nodes, when a quorum queue is declared on one of them, then all three hold it; and when its leader is
// killed, a confirmed message can be had from another node.
func TestNodesFormACluster(t *testing.T) {
	if os.Getenv(EnvClusters) == "" {
		t.Skip("make test-clusters runs this")
	}
	if os.Getenv(EnvAMQP) != "" && os.Getenv(EnvPrivate) == "" {
		t.Skipf("needs a RabbitMQ it may kill, and %s names one that is not ours to kill", EnvAMQP)
	}
	s := require.Get(Start(t.Context(), Options{Only: []Kind{KindRabbitMQ}, RabbitMQNodes: 3}))(t)
	t.Cleanup(func() {
		assert.OK(t, s.Stop())
	})
	if len(s.Nodes) != 3 || s.Nodes[0] != s.RabbitMQ {
		t.Fatalf("%d nodes, want 3, the first of them Stack.RabbitMQ", len(s.Nodes))
	}
	first := s.Nodes[0].Broker(t)
	first.DeclareQueue("q", map[string]any{"x-queue-type": "quorum"})
	first.Publish("", "q", Message{Body: []byte("kept")})
	members := first.Eval(`{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"q">>)), maps:get(nodes, ` +
		`amqqueue:get_type_state(Q))`)
	for _, node := range s.Nodes {
		assert.Has(t, members, node.NodeName(), "the queue's members")
	}
	require.OK(t, s.Nodes[0].Kill())
	poll.Until(t, "the message being had from another node", func() bool {
		conn, err := amqp.Dial(s.Nodes[1].URL())
		if err != nil {
			return false
		}
		defer conn.Close()
		ch, err := conn.Channel()
		if err != nil {
			return false
		}
		d, ok, err := ch.Get("q", true)
		return err == nil && ok && string(d.Body) == "kept"
	})
	require.OK(t, s.Nodes[0].Start())
	poll.Until(t, "all nodes being together again", func() bool {
		others, err := s.Nodes[1].Eval(t.Context(), "length(nodes())")
		return err == nil && others == "2"
	})
}
