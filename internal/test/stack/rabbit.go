package stack

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// rabbitScripts are the real scripts. The ones Debian puts into /usr/sbin change the user and the folder, and refuse
// normal users.
var rabbitScripts = []string{
	"/usr/lib/rabbitmq/bin/", "/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/", "/opt/rabbitmq/sbin/",
}

// prepareRabbit makes a RabbitMQ with an epmd of its own: epmd, which tells Erlang nodes each other's ports, is
// otherwise shared by all nodes of a machine, started in the background by the first of them, and outlives them all.
// With first, the new node shares that one's epmd, cookie and account and joins its cluster when it starts for the
// first time.
func prepareRabbit(sp *spawner, dir string, o Options, first *Server) (*Server, error) {
	script, err := findRabbitScript("rabbitmq-server")
	if err != nil {
		return nil, err
	}
	epmd, err := findProgram("epmd", "/usr/lib/erlang/erts-*/bin/epmd")
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(5)
	if err != nil {
		return nil, err
	}
	amqpPort, distPort := ports[0], ports[1]
	node := &rabbitNode{
		Dir: dir, EpmdPort: ports[2], Name: fmt.Sprintf("rollbackd-%d@localhost", amqpPort), Cookie: rand.Text(),
	}
	login := url.UserPassword("rollbackd", rand.Text())
	if first != nil {
		if login, err = join(node, first, &o); err != nil {
			return nil, err
		}
	}
	management := ""
	if slices.Contains(o.RabbitMQPlugins, "rabbitmq_management") {
		management = loopback(ports[3])
		o.RabbitMQConfig += fmt.Sprintf("\nmanagement.tcp.ip = 127.0.0.1\nmanagement.tcp.port = %d", ports[3])
	}
	if o.Encryption != nil {
		o.RabbitMQConfig += o.Encryption.rabbit(ports[4])
	}
	if err := writeRabbitFiles(node, amqpPort, login, o); err != nil {
		return nil, err
	}
	env := node.environment(
		"RABBITMQ_DIST_PORT="+strconv.Itoa(distPort),
		"RABBITMQ_CONFIG_FILE="+filepath.Join(dir, "rabbitmq.conf"),
		"RABBITMQ_ADVANCED_CONFIG_FILE="+filepath.Join(dir, "advanced.config"),
		"RABBITMQ_MNESIA_BASE="+filepath.Join(dir, "data"), "RABBITMQ_LOG_BASE="+filepath.Join(dir, "log"),
		"RABBITMQ_PID_FILE="+filepath.Join(dir, "pid"),
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-start_epmd false -kernel inet_dist_use_interface {127,0,0,1}",
		"detached=true", // the script becomes the server (exec) instead of waiting for it as its parent
	)
	addr := loopback(amqpPort)
	target := (&url.URL{Scheme: "amqp", User: login, Host: addr, Path: "/"}).String()
	server := &Server{
		kind: KindRabbitMQ, dir: dir, addr: addr, url: target, http: management,
		tlsAddr: loopback(ports[4]), encryption: o.Encryption,
		main: &process{
			name: "rabbitmq", spawner: sp, logPath: filepath.Join(dir, "rabbitmq.log"),
			command: func() *exec.Cmd { return script.server(dir, env) },
		},
		ask: func(ctx context.Context) error {
			if err := askRabbit(target); err != nil {
				return err
			}
			return node.booted(ctx)
		},
		control: node.ctl,
		node:    node,
	}
	if first == nil {
		server.helper = epmdProcess(sp, epmd, dir, node.EpmdPort)
	}
	return server, nil
}

func epmdProcess(sp *spawner, epmd program, dir string, port int) *process {
	return &process{
		name: "epmd", spawner: sp, logPath: filepath.Join(dir, "epmd.log"),
		command: func() *exec.Cmd {
			// in the foreground
			return epmd.server(dir, environment(dir), "-port", strconv.Itoa(port), "-address", "127.0.0.1")
		},
	}
}

func findRabbitScript(name string) (program, error) {
	var patterns []string
	for _, dir := range rabbitScripts {
		patterns = append(patterns, dir+name)
	}
	return findProgram(append(patterns, name)...)
}

func writeRabbitFiles(n *rabbitNode, port int, login *url.Userinfo, o Options) error {
	password, _ := login.Password()
	config := strings.Join([]string{
		"listeners.tcp.1 = " + loopback(port),
		"num_acceptors.tcp = 2",
		"default_user = " + login.Username(),
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

// askRabbit opens and closes a connection: the port is open some time before vhosts are up.
func askRabbit(target string) error {
	conn, err := amqp.DialConfig(target, amqp.Config{
		Dial: amqp.DefaultDial(askTimeout), Properties: amqp.Table{"connection_name": "stack: ready?"},
	})
	if err != nil {
		return fmt.Errorf("ask rabbitmq: %w", err)
	}
	return conn.Close()
}
