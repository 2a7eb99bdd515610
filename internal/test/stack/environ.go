package stack

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// The environment through which tests are given servers.
const (
	EnvAMQP  = "ROLLBACKD_TEST_AMQP_URL"
	EnvMySQL = "ROLLBACKD_TEST_MYSQL_DSN"
	EnvRedis = "ROLLBACKD_TEST_REDIS_URL"

	// EnvPrivate marks servers which we started ourselves for several test processes, as cmd/with-servers does. Tests may
	// then command the RabbitMQ, and start servers of their own to kill. It names a file which says which servers it is
	// about.
	EnvPrivate = "ROLLBACKD_TEST_PRIVATE"
)

// env is the variable which names a server of this kind.
func (k Kind) env() string {
	return map[Kind]string{KindRabbitMQ: EnvAMQP, KindMySQL: EnvMySQL, KindRedis: EnvRedis}[k]
}

// private is the content of the file EnvPrivate names.
type private struct {
	Kinds []Kind      // the servers that are ours
	Node  *rabbitNode // how to command the RabbitMQ; nil when it is not ours
}

// Environ writes down what other processes must know of the servers and returns the variables to give them, as
// NAME=value.
func (s *Stack) Environ() ([]string, error) {
	var (
		vars []string
		p    private
	)
	for _, server := range s.servers() {
		vars = append(vars, server.kind.env()+"="+server.url)
		p.Kinds = append(p.Kinds, server.kind)
		if server.node != nil {
			p.Node = server.node
		}
	}
	text, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("describe the servers: %w", err)
	}
	path := filepath.Join(s.dir, "private.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return nil, fmt.Errorf("describe the servers: %w", err)
	}
	return append(vars, EnvPrivate+"="+path), nil
}

// readPrivate is empty when the environment does not mark any server as ours.
func readPrivate() (p private, err error) {
	path := os.Getenv(EnvPrivate)
	if path == "" {
		return p, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return p, fmt.Errorf("read the file %s names: %w", EnvPrivate, err)
	}
	if err := json.Unmarshal(text, &p); err != nil {
		return p, fmt.Errorf("read the file %s names: %w", EnvPrivate, err)
	}
	return p, nil
}

// Missing lists the servers which the environment does not name.
func Missing() []Kind {
	var kinds []Kind
	for _, kind := range []Kind{KindRabbitMQ, KindMySQL, KindRedis} {
		if os.Getenv(kind.env()) == "" {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}
