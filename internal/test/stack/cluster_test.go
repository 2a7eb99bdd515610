package stack

import (
	"context"
	"database/sql"
	"os"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/must"
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
	t.Cleanup(func() { assert.OK(t, s.Stop()) })
	require.That(t, len(s.Nodes) == 3 && s.Nodes[0] == s.RabbitMQ, "%d nodes, want 3, first Stack.RabbitMQ", len(s.Nodes))
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

// Given three nodes of a cluster behind a HAProxy, when the one that is written to is killed, then another one takes
// its place and has what was committed; and when it is back, it has what it missed. In Galera it gets its place back;
// of a source somebody promotes a replica, and gives the old one its data.
func TestAGaleraClusterFailsOver(t *testing.T) {
	const name = "@@GLOBAL.wsrep_node_name"
	failsOver(t, OwnCluster(t, Galera), name, func(*Stack) {}, func(s *Stack, written func() string) {
		poll.Until(t, "the first node being written to again", func() bool { return written() == "node1" })
	})
}

// Given three nodes in a group, see [TestAGaleraClusterFailsOver].
func TestAGroupFailsOver(t *testing.T) {
	failsOver(t, OwnCluster(t, Group), ofMySQL, func(*Stack) {}, func(s *Stack, _ func() string) {
		must.OK(s.Join(t.Context(), 0))
	})
}

// Given a source and two semi-synchronous replicas, see [TestAGaleraClusterFailsOver].
func TestAReplicaTakesItsSourcesPlace(t *testing.T) {
	at := 0
	failsOver(t, OwnCluster(t, SemiSync), ofMySQL, func(s *Stack) { at = s.Promote(t.Context(), 0) },
		func(s *Stack, _ func() string) {
			t.Logf("transactions that only the old source had: %q", s.Rebuild(t.Context(), 0, at))
		})
}

const ofMySQL = "CONCAT('node', @@GLOBAL.server_id)"

func failsOver(t *testing.T, s *Stack, name string, promote func(*Stack), back func(*Stack, func() string)) {
	t.Helper()
	dsn := s.MySQL.Database(t)
	database, db := parseDSN(t, dsn).DBName, OpenMySQL(parseDSN(t, dsn))
	defer db.Close()
	exec := func(text string) error {
		ctx, cancel := context.WithTimeout(t.Context(), askTimeout)
		defer cancel()
		_, err := db.ExecContext(ctx, text)
		return err
	}
	written := func() (at string) { // the node that is written to; empty while none answers
		ctx, cancel := context.WithTimeout(t.Context(), askTimeout)
		defer cancel()
		_ = db.QueryRowContext(ctx, "SELECT "+name).Scan(&at)
		return at
	}
	require.OK(t, must.Catch(func() {
		must.OK(exec("CREATE TABLE x (n INT PRIMARY KEY) ENGINE=InnoDB"))
		must.OK(exec("INSERT INTO x VALUES (1)"))
		assert.Is(t, written(), s.Databases[0].NodeName(), "is written to")

		began := time.Now()
		must.OK(s.Databases[0].Kill())
		promote(s)
		poll.Until(t, "another node being written to", func() bool { return exec("REPLACE INTO x VALUES (2)") == nil })
		t.Logf("written to another node %v after the kill", time.Since(began).Round(time.Millisecond))
		assert.That(t, written() != s.Databases[0].NodeName(), "the node that was killed is written to")

		must.OK(s.Databases[0].Start())
		back(s, written)
		poll.Until(t, "the first node having both rows", func() bool {
			n := 0
			err := onMySQL(t.Context(), s.Databases[0].url, func(ctx context.Context, db *sql.DB) {
				n = must.Value[int](ctx, db, "SELECT COUNT(*) FROM "+database+".x")
			})
			return err == nil && n == 2
		})
	}))
}
