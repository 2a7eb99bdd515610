package stack

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// zooKeeperJars are the folders' files of Debian's package that the server alone needs; the first one says whether it
// is installed.
var zooKeeperJars = []string{
	"zookeeper", "zookeeper-jute", "slf4j-api", "slf4j-simple", "log4j-1.2", "netty-all", "commons-cli",
	"jackson-annotations",
}

// prepareZooKeeper makes a single server. It takes sessions from 100 ms on, so that tests need not wait long for the
// end of one. What it was told is in its folder, so a killed one comes back with the sessions and nodes that it had.
func prepareZooKeeper(sp *spawner, dir string) (*Server, error) {
	java, err := findProgram("java")
	if err != nil {
		return nil, err
	}
	const jars = "/usr/share/java/"
	if _, err := os.Stat(filepath.Join(java.tree, jars+zooKeeperJars[0]+".jar")); err != nil {
		return nil, fmt.Errorf("find zookeeper.jar: %w", errNotInstalled)
	}
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	addr := loopback(ports[0])
	config := filepath.Join(dir, "zoo.cfg")
	settings := fmt.Sprintf("tickTime=50\nminSessionTimeout=100\nmaxSessionTimeout=600000\nforceSync=no\ndataDir=%s\n"+
		"clientPort=%d\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n4lw.commands.whitelist=srvr\n", dir, ports[0])
	if err := os.WriteFile(config, []byte(settings), 0o600); err != nil {
		return nil, fmt.Errorf("write the configuration of zookeeper: %w", err)
	}
	path := []string{dir}
	for _, jar := range zooKeeperJars {
		path = append(path, jars+jar+".jar")
	}
	args := []string{
		"-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.log.dir=" + dir,
		"-cp", strings.Join(path, ":"), "org.apache.zookeeper.server.quorum.QuorumPeerMain", config,
	}
	return &Server{
		kind: KindZooKeeper, dir: dir, addr: addr, url: "zookeeper://" + addr + "/rollbackd",
		main: &process{
			name: "zookeeper", spawner: sp, logPath: filepath.Join(dir, "zookeeper.log"),
			command: func() *exec.Cmd { return java.server(dir, environment(dir), args...) },
		},
		ask: func(ctx context.Context) error { return askZooKeeper(ctx, addr) },
	}, nil
}

// askZooKeeper says srvr, which is answered with what the server is, and the server hangs up. It answers ruok, "are you
// ok", before it takes sessions.
func askZooKeeper(ctx context.Context, addr string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("ask zookeeper: %w", err)
	}
	defer conn.Close()
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(askTimeout)
	}
	_ = conn.SetDeadline(deadline) // cannot fail on an open TCP connection
	if _, err := conn.Write([]byte("srvr")); err != nil {
		return fmt.Errorf("ask zookeeper: %w", err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil || !strings.Contains(string(answer), "Mode: standalone") {
		return fmt.Errorf("ask zookeeper: it answered %q (%v)", answer, err)
	}
	return nil
}
