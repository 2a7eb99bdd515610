package stack

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
)

// startPeers starts the other nodes of the cluster, one after the other: each joins the first, which must be up.
func (s *Stack) startPeers(ctx context.Context, o Options) error {
	for i := 1; i < o.RabbitMQNodes; i++ {
		node, err := startWith(ctx, KindRabbitMQ, filepath.Join(s.dir, fmt.Sprintf("%s-node%d", KindRabbitMQ, i+1)),
			func(_ context.Context, dir string) (*Server, error) {
				return prepareRabbit(s.spawner, dir, o, s.RabbitMQ)
			})
		if err != nil {
			return err
		}
		s.Nodes = append(s.Nodes, node)
		if o.Log != nil {
			fmt.Fprintf(o.Log, "%s node %d listens on %s, process id %d\n", KindRabbitMQ, i+1, node.addr, node.Pid())
		}
	}
	return nil
}

// join makes node a peer of first and returns the cluster's login. A node looks for peers only when it starts without
// data.
func join(node *rabbitNode, first *Server, o *Options) (*url.Userinfo, error) {
	u, err := url.Parse(first.url)
	if err != nil {
		return nil, fmt.Errorf("parse the URL of the first node: %w", err)
	}
	node.Cookie, node.EpmdPort = first.node.Cookie, first.node.EpmdPort
	o.RabbitMQConfig += fmt.Sprintf("\ncluster_formation.peer_discovery_backend = classic_config"+
		"\ncluster_formation.classic_config.nodes.1 = %s\ncluster_formation.classic_config.nodes.2 = %s", first.node.Name,
		node.Name)
	return u.User, nil
}

// Eval runs an Erlang expression inside a RabbitMQ and returns its value as text. Other servers give an error.
func (s *Server) Eval(ctx context.Context, expression string) (string, error) {
	if s.node == nil {
		return "", fmt.Errorf("run %q inside %s: it is no RabbitMQ", expression, s.kind)
	}
	return s.node.eval(ctx, expression)
}

// NodeName is the Erlang name of a RabbitMQ node, or the name of a node of a database cluster (Galera's
// wsrep_node_name); empty for other servers.
func (s *Server) NodeName() string {
	switch {
	case s.node != nil:
		return s.node.Name
	case s.galera != nil:
		return s.galera.name
	case s.replicated != nil:
		return nodeName(s.replicated.at)
	}
	return ""
}
