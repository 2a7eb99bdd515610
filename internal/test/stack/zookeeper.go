package stack

import (
	"context"
	"strings"

	"github.com/rollbackd/rollbackd/internal/test/must"
)

// zooKeeperJars are the folders' files of Debian's package that the server alone needs; the first one says whether it
// is installed.
var zooKeeperJars = []string{
	"zookeeper", "zookeeper-jute", "slf4j-api", "slf4j-simple", "log4j-1.2", "netty-all", "commons-cli",
	"jackson-annotations",
}

// prepareZooKeeper makes a single server. It takes sessions from 100 ms on, so that tests need not wait long for the
// end of one. What it was told is in its folder, so a killed one comes back with the sessions and nodes that it had.
func prepareZooKeeper(dir string) *Server {
	java, port := findProgram("java"), must.Get(freePorts(1))[0]
	path := []string{dir}
	for _, jar := range zooKeeperJars {
		path = append(path, "/usr/share/java/"+jar+".jar")
	}
	java.needs(path[1])
	config := writeConfig(dir, "zoo.cfg", map[string]any{"Dir": dir, "Port": port})
	s := newServer(KindZooKeeper, dir, loopback(port), java, nil,
		"-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.log.dir="+dir,
		"-cp", strings.Join(path, ":"), "org.apache.zookeeper.server.quorum.QuorumPeerMain", config)
	s.url = "zookeeper://" + s.addr + "/rollbackd"
	// It answers ruok, "are you ok", before it takes sessions.
	s.ask = func(ctx context.Context) error { return talk(ctx, s.addr, "srvr", "Mode: standalone") }
	return s
}
