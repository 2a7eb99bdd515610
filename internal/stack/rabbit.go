package stack

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// rabbitScripts are the real scripts. The ones Debian puts into /usr/sbin change the user and the folder, and refuse normal users.
var rabbitScripts = []string{
	"/usr/lib/rabbitmq/bin/", "/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/", "/opt/rabbitmq/sbin/",
}

// rabbitNode is what a control command must know to reach a private RabbitMQ.
type rabbitNode struct {
	Dir      string // holds the Erlang cookie, thus the commands' home
	Name     string
	Cookie   string
	EpmdPort int
}

// prepareRabbit makes a RabbitMQ with an epmd of its own: epmd, which tells Erlang nodes each other's ports, is otherwise shared by all nodes
// of a machine, started in the background by the first of them, and outlives them all.
func prepareRabbit(sp *spawner, dir string, o Options) (*Server, error) {
	script, err := findRabbitScript("rabbitmq-server")
	if err != nil {
		return nil, err
	}
	epmd, err := findProgram("epmd", "/usr/lib/erlang/erts-*/bin/epmd")
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	amqpPort, distPort := ports[0], ports[1]
	node := &rabbitNode{Dir: dir, EpmdPort: ports[2], Name: fmt.Sprintf("rollbackd-%d@localhost", amqpPort), Cookie: rand.Text()}
	user, password := "rollbackd", rand.Text()
	if err := writeRabbitFiles(node, amqpPort, user, password, o); err != nil {
		return nil, err
	}
	if err := node.save(); err != nil {
		return nil, err
	}
	env := node.environment(
		"RABBITMQ_DIST_PORT="+strconv.Itoa(distPort),
		"RABBITMQ_CONFIG_FILE="+filepath.Join(dir, "rabbitmq.conf"),
		"RABBITMQ_ADVANCED_CONFIG_FILE="+filepath.Join(dir, "advanced.config"),
		"RABBITMQ_ENABLED_PLUGINS_FILE="+filepath.Join(dir, "enabled_plugins"),
		"RABBITMQ_MNESIA_BASE="+filepath.Join(dir, "data"), "RABBITMQ_LOG_BASE="+filepath.Join(dir, "log"),
		"RABBITMQ_PID_FILE="+filepath.Join(dir, "pid"),
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-start_epmd false -kernel inet_dist_use_interface {127,0,0,1}",
		"detached=true", // the script becomes the server (exec) instead of waiting for it as its parent
	)
	addr := loopback(amqpPort)
	target := (&url.URL{Scheme: "amqp", User: url.UserPassword(user, password), Host: addr, Path: "/"}).String()
	return &Server{
		kind: KindRabbitMQ, dir: dir, addr: addr, url: target,
		helper: &process{
			name: "epmd", spawner: sp, logPath: filepath.Join(dir, "epmd.log"),
			command: func() *exec.Cmd {
				cmd := exec.Command(epmd, "-port", strconv.Itoa(node.EpmdPort), "-address", "127.0.0.1") // in the foreground
				cmd.Dir, cmd.Env = dir, environment(dir)
				return cmd
			},
		},
		main: &process{
			name: "rabbitmq", spawner: sp, logPath: filepath.Join(dir, "rabbitmq.log"),
			command: func() *exec.Cmd {
				cmd := exec.Command(script)
				cmd.Dir, cmd.Env = dir, env
				return cmd
			},
		},
		ask:     func(ctx context.Context) error { return askRabbit(target) },
		control: node.ctl,
		node:    node,
	}, nil
}

func findRabbitScript(name string) (string, error) {
	var patterns []string
	for _, dir := range rabbitScripts {
		patterns = append(patterns, dir+name)
	}
	return findProgram(append(patterns, name)...)
}

func writeRabbitFiles(n *rabbitNode, port int, user, password string, o Options) error {
	config := strings.Join([]string{
		"listeners.tcp.1 = " + loopback(port),
		"num_acceptors.tcp = 2",
		"default_user = " + user,
		"default_pass = " + password,
		"vm_memory_high_watermark.absolute = 1GB",
		"disk_free_limit.absolute = 50MB",
		"log.file = false",
		"log.console = true",
		o.RabbitMQConfig, "",
	}, "\n")
	files := map[string]string{
		".erlang.cookie":    n.Cookie,
		"rabbitmq.conf":     config,
		"advanced.config":   "[].\n",
		"enabled_plugins":   "[" + strings.Join(o.RabbitMQPlugins, ",") + "].\n",
		"rabbitmq-env.conf": "", // so that the machine's own, if any, is not read
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(n.Dir, name), []byte(text), 0o400); err != nil {
			return fmt.Errorf("write rabbitmq's files: %w", err)
		}
	}
	return nil
}

func (n *rabbitNode) environment(more ...string) []string {
	return environment(n.Dir, append([]string{
		"RABBITMQ_NODENAME=" + n.Name,
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
	cmd := exec.CommandContext(ctx, script, append([]string{"-q"}, args...)...)
	cmd.Dir, cmd.Env = n.Dir, n.environment()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("rabbitmqctl %s: %w: %s", strings.Join(args, " "), errors.Join(err, context.Cause(ctx)), out)
	}
	return string(out), nil
}

// eval runs an Erlang expression inside the node and returns its value as text. It uses erl_call, a small C program that comes with Erlang
// and answers in some milliseconds, and rabbitmqctl where that is missing. The expression must not end in a full stop.
func (n *rabbitNode) eval(ctx context.Context, expression string) (string, error) {
	program, err := findProgram("erl_call", "/usr/lib/erlang/erts-*/bin/erl_call", "/usr/lib/erlang/lib/erl_interface-*/bin/erl_call")
	if err != nil {
		out, err := n.ctl(ctx, "eval", expression+".")
		return strings.TrimSpace(out), err
	}
	// The node evaluates in a catch, so that a failure is told apart from a value whose text looks like one.
	cmd := exec.CommandContext(ctx, program, "-n", n.Name, "-c", n.Cookie, "-e")
	cmd.Dir, cmd.Env = n.Dir, n.environment()
	cmd.Stdin = strings.NewReader(expression + ".\n")
	out, err := cmd.CombinedOutput()
	text := strings.TrimSpace(string(out))
	value, ok := strings.CutPrefix(text, "{ok, ")
	if err != nil || !ok {
		return "", fmt.Errorf("run %q inside rabbitmq: %w: %s", expression, errors.Join(err, context.Cause(ctx)), text)
	}
	return strings.TrimSuffix(value, "}"), nil
}

// askRabbit opens and closes a connection: the port is open some time before vhosts are up.
func askRabbit(target string) error {
	conn, err := amqp.DialConfig(target, amqp.Config{Dial: amqp.DefaultDial(askTimeout), Properties: amqp.Table{"connection_name": "stack: ready?"}})
	if err != nil {
		return fmt.Errorf("ask rabbitmq: %w", err)
	}
	return conn.Close()
}

const nodeFile = "node.json"

// save lets other processes of the same run command the node: see [EnvPrivate].
func (n *rabbitNode) save() error {
	text, err := json.Marshal(n)
	if err != nil {
		return fmt.Errorf("write down the rabbitmq node: %w", err)
	}
	if err := os.WriteFile(filepath.Join(n.Dir, nodeFile), text, 0o600); err != nil {
		return fmt.Errorf("write down the rabbitmq node: %w", err)
	}
	return nil
}

func readRabbitNode(dir string) (*rabbitNode, error) {
	text, err := os.ReadFile(filepath.Join(dir, nodeFile))
	if err != nil {
		return nil, fmt.Errorf("%s names a folder without a node: %w", EnvPrivate, err)
	}
	n := new(rabbitNode)
	if err := json.Unmarshal(text, n); err != nil {
		return nil, fmt.Errorf("read %s in %s: %w", nodeFile, dir, err)
	}
	return n, nil
}
