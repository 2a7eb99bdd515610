package stack

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rollbackd/rollbackd/internal/test/must"
)

// prepareRabbit makes a RabbitMQ with an epmd of its own: epmd, which tells Erlang nodes each other's ports, is
// otherwise shared by all nodes of a machine, started in the background by the first of them, and outlives them all.
// With first, the new node shares that one's epmd, cookie and account and joins its cluster when it starts for the
// first time.
func prepareRabbit(dir string, o Options, first *Server) *Server {
	script, ports := findRabbitScript("rabbitmq-server"), must.Get(freePorts(5))
	epmd := findProgram("epmd", "/usr/lib/erlang/erts-*/bin/epmd")
	addr, management, tls := loopback(ports[0]), "", loopback(ports[4])
	node := &rabbitNode{
		Dir: dir, EpmdPort: ports[2], Name: fmt.Sprintf("rollbackd-%d@localhost", ports[0]), Cookie: rand.Text(),
	}
	login, password := "rollbackd", rand.Text()
	config := map[string]any{"Addr": addr, "Login": login, "TLS": o.Encryption, "TLSAddr": tls, "More": o.RabbitMQConfig}
	if first != nil {
		node.Cookie, node.EpmdPort = first.node.Cookie, first.node.EpmdPort
		password, _ = must.Get(url.Parse(first.url)).User.Password()
		config["First"], config["Name"] = first.name, node.Name
	}
	if slices.Contains(o.RabbitMQPlugins, "rabbitmq_management") {
		config["Management"] = ports[3]
		management = fmt.Sprintf("http://%s:%s@%s", login, password, loopback(ports[3]))
	}
	config["Password"] = password
	writeFile(dir, ".erlang.cookie", node.Cookie)
	writeConfig(dir, "rabbitmq.conf", config)
	writeFile(dir, "advanced.config", "[].\n")
	// The exchange that hashes costs nothing, and so needs no server of its own.
	writeFile(dir, "enabled_plugins", "["+strings.Join(append(o.RabbitMQPlugins, "rabbitmq_consistent_hash_exchange"),
		",")+"].\n")
	writeFile(dir, "rabbitmq-env.conf", "") // so that the machine's own, if any, is not read

	s := newServer(KindRabbitMQ, dir, addr, script, append(node.environ(),
		"RABBITMQ_DIST_PORT="+strconv.Itoa(ports[1]),
		"RABBITMQ_CONFIG_FILE="+filepath.Join(dir, "rabbitmq.conf"),
		"RABBITMQ_ADVANCED_CONFIG_FILE="+filepath.Join(dir, "advanced.config"),
		"RABBITMQ_MNESIA_BASE="+filepath.Join(dir, "data"), "RABBITMQ_LOG_BASE="+filepath.Join(dir, "log"),
		"RABBITMQ_PID_FILE="+filepath.Join(dir, "pid"),
		// Idle schedulers sleep at once instead of turning for a while: the processors are others'.
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=+sbwt none +sbwtdcpu none +sbwtdio none -start_epmd false "+
			"-kernel inet_dist_use_interface {127,0,0,1} "+o.RabbitMQErl,
		"detached=true", // the script becomes the server (exec) instead of waiting for it as its parent
	))
	s.url = fmt.Sprintf("amqp://%s:%s@%s/", login, password, addr)
	s.node, s.name, s.http, s.tlsAddr, s.encryption = node, node.Name, management, tls, o.Encryption
	s.ask = func(ctx context.Context) error {
		if err := askRabbit(s.url); err != nil {
			return err
		}
		return node.booted(ctx)
	}
	if first == nil { // in the foreground
		s.helper = newProcess("epmd", dir, epmd, nil, "-port", strconv.Itoa(node.EpmdPort), "-address", "127.0.0.1")
	}
	return s
}

// findRabbitScript finds a real script. The ones Debian puts into /usr/sbin change the user and the folder, and refuse
// normal users.
func findRabbitScript(name string) executable {
	return findProgram("/usr/lib/rabbitmq/bin/"+name, "/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/"+name,
		"/opt/rabbitmq/sbin/"+name, name)
}

// askRabbit opens and closes a connection: the port is open some time before vhosts are up.
func askRabbit(target string) error {
	conn, err := amqp.DialConfig(target, amqp.Config{
		Dial: amqp.DefaultDial(askTimeout), Properties: amqp.Table{"connection_name": "stack: ready?"},
	})
	if err != nil {
		return err
	}
	return conn.Close()
}

// rabbitNode is what a control command must know to reach a private RabbitMQ.
type rabbitNode struct {
	Dir      string // holds the Erlang cookie, thus the commands' home
	Name     string
	Cookie   string
	EpmdPort int
}

func (n *rabbitNode) environ() []string {
	return []string{
		"RABBITMQ_NODENAME=" + n.Name,
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + filepath.Join(n.Dir, "enabled_plugins"), // plugins bring commands of their own
		"RABBITMQ_CONF_ENV_FILE=" + filepath.Join(n.Dir, "rabbitmq-env.conf"),
		"ERL_EPMD_PORT=" + strconv.Itoa(n.EpmdPort), "ERL_EPMD_ADDRESS=127.0.0.1",
		// Commands talk Erlang too and listen for it; any free port does.
		"RABBITMQ_CTL_DIST_PORT_MIN=0", "RABBITMQ_CTL_DIST_PORT_MAX=0",
	}
}

// say runs a program that speaks with the node, and returns what it prints.
func (n *rabbitNode) say(ctx context.Context, p executable, in string, args ...string) (string, error) {
	cmd := p.command(ctx, n.Dir, n.environ(), args...)
	if in != "" {
		cmd.Stdin = strings.NewReader(in)
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s %q: %w: %s", p.name(), append(args, in), errors.Join(err, context.Cause(ctx)), out)
	}
	return string(out), err
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
// that comes with Erlang and answers in some milliseconds. The expression must not end in a full stop.
func (n *rabbitNode) eval(ctx context.Context, expression string) (string, error) {
	// The node evaluates in a catch, so that a failure is told apart from a value whose text looks like one. Each call has
	// a name of its own: by default it is one per user, and a node refuses the second of two calls at once.
	out, err := n.say(ctx, findProgram("erl_call", "/usr/lib/erlang/erts-*/bin/erl_call"), expression+".\n",
		"-n", n.Name, "-c", n.Cookie, "-h", "eval-"+uniqueSuffix(), "-e")
	value, ok := strings.CutPrefix(strings.TrimSpace(out), "{ok, ")
	if err == nil && !ok {
		err = fmt.Errorf("run %q inside rabbitmq: it answered %s", expression, out)
	}
	return strings.TrimSuffix(value, "}"), err
}
