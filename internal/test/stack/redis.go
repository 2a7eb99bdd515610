package stack

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// prepareRedis makes a Redis that keeps nothing on disk: after a kill it comes back empty, which is the worst a lock
// can meet.
func prepareRedis(sp *spawner, dir string, o Options) (*Server, error) {
	programs := []string{"redis-server", "valkey-server"}
	if o.RedisProgram != "" {
		programs = []string{o.RedisProgram}
	}
	program, err := findProgram(programs...)
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(2)
	if err != nil {
		return nil, err
	}
	addr := loopback(ports[0])
	args := append([]string{
		"--port", strconv.Itoa(ports[0]), "--bind", "127.0.0.1", "--dir", dir,
		"--save", "", "--appendonly", "no", "--daemonize", "no",
	}, o.RedisArgs...)
	if o.Encryption != nil {
		args = append(args, o.Encryption.redis(ports[1])...)
	}
	if o.inRedisSet {
		if args, err = redisFile(dir, append(args, redisSetArgs(ports[1])...)); err != nil {
			return nil, err
		}
	}
	return &Server{
		kind: KindRedis, dir: dir, addr: addr, url: "redis://" + addr + "/0", tlsAddr: loopback(ports[1]),
		encryption: o.Encryption, bus: ports[1],
		main: &process{
			name: "redis", spawner: sp, logPath: filepath.Join(dir, "redis.log"),
			command: func() *exec.Cmd { return program.server(dir, environment(dir), args...) },
		},
		ask: func(ctx context.Context) error { return pingRedis(ctx, addr) },
	}, nil
}

// pingRedis speaks the protocol by hand: one inline command, one line back.
func pingRedis(ctx context.Context, addr string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("ping redis: %w", err)
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline) // cannot fail on an open TCP connection
	} else {
		_ = conn.SetDeadline(time.Now().Add(askTimeout))
	}
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return fmt.Errorf("ping redis: %w", err)
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return fmt.Errorf("ping redis: %w", err)
	}
	if !strings.HasPrefix(line, "+PONG") {
		return fmt.Errorf("ping redis: it answered %q", line)
	}
	return nil
}
