package stack

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// rabbitNode is what a control command must know to reach a private RabbitMQ.
type rabbitNode struct {
	Dir      string // holds the Erlang cookie, thus the commands' home
	Name     string
	Cookie   string
	EpmdPort int
}

func (n *rabbitNode) environment(more ...string) []string {
	return environment(n.Dir, append([]string{
		"RABBITMQ_NODENAME=" + n.Name,
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + filepath.Join(n.Dir, "enabled_plugins"), // plugins bring commands of their own
		"RABBITMQ_CONF_ENV_FILE=" + filepath.Join(n.Dir, "rabbitmq-env.conf"),
		"ERL_EPMD_PORT=" + strconv.Itoa(n.EpmdPort), "ERL_EPMD_ADDRESS=127.0.0.1",
		// Commands talk Erlang too and listen for it; any free port does.
		"RABBITMQ_CTL_DIST_PORT_MIN=0", "RABBITMQ_CTL_DIST_PORT_MAX=0",
	}, more...)...)
}

// ctl runs rabbitmqctl, which costs the start of an Erlang machine: about half a second.
func (n *rabbitNode) ctl(ctx context.Context, args ...string) (string, error) {
	script, err := findRabbitScript("rabbitmqctl")
	if err != nil {
		return "", err
	}
	cmd := script.command(ctx, n.Dir, n.environment(), append([]string{"-q"}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("rabbitmqctl %s: %w: %s", strings.Join(args, " "),
			errors.Join(err, context.Cause(ctx)), out)
	}
	return string(out), nil
}

// booted is an error until the node has started as a whole. RabbitMQ 4 takes connections a little earlier, and does not
// list them then.
func (n *rabbitNode) booted(ctx context.Context) error {
	said, err := n.eval(ctx, "rabbit:is_booted(node())")
	if err == nil && said != "true" {
		err = fmt.Errorf("rabbitmq has not started as a whole: is_booted says %s", said)
	}
	return err
}

// eval runs an Erlang expression inside the node and returns its value as text. It uses erl_call, a small C program
// that comes with Erlang and answers in some milliseconds, and rabbitmqctl where that is missing. The expression must
// not end in a full stop.
func (n *rabbitNode) eval(ctx context.Context, expression string) (string, error) {
	program, err := findProgram("erl_call", "/usr/lib/erlang/erts-*/bin/erl_call",
		"/usr/lib/erlang/lib/erl_interface-*/bin/erl_call")
	if err != nil {
		out, err := n.ctl(ctx, "eval", expression+".")
		return strings.TrimSpace(out), err
	}
	// The node evaluates in a catch, so that a failure is told apart from a value whose text looks like one. Each call has
	// a name of its own: by default it is one per user, and a node refuses the second of two calls at once.
	cmd := program.command(ctx, n.Dir, n.environment(), "-n", n.Name, "-c", n.Cookie, "-h", "eval-"+uniqueSuffix(), "-e")
	cmd.Stdin = strings.NewReader(expression + ".\n")
	out, err := cmd.CombinedOutput()
	text := strings.TrimSpace(string(out))
	value, ok := strings.CutPrefix(text, "{ok, ")
	if err != nil {
		return "", fmt.Errorf("run %q inside rabbitmq: %w: %s", expression, errors.Join(err, context.Cause(ctx)), text)
	}
	if !ok {
		return "", fmt.Errorf("run %q inside rabbitmq: it answered %s", expression, text)
	}
	return strings.TrimSuffix(value, "}"), nil
}
