package stack

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
)

// Ports are taken from below the range the kernel gives to outgoing connections (32768 and up on Linux), so that no
// client takes the port of a server while a test has it down.
const (
	lowestPort  = 20000
	highestPort = 32000
)

// freePorts finds n different ports of the loopback address nobody listens on. Somebody else may take one before the
// server does; starting then fails and is tried again with others.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := listen()
		if err != nil {
			return nil, err
		}
		defer l.Close() // held until all are found, so that they differ
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// listen takes a port of the loopback address nobody listens on. Whoever can listen by itself uses it and not
// freePorts, which leaves a moment in which the port may be taken.
func listen() (*net.TCPListener, error) {
	for range 1000 {
		l, err := net.Listen("tcp", loopback(lowestPort+rand.IntN(highestPort-lowestPort)))
		if err == nil {
			return l.(*net.TCPListener), nil
		}
	}
	return nil, errors.New("find a free loopback port: 1000 tries were in vain")
}

// FreeAddr is an address of the loopback at which nobody listens now, for what a test starts by itself. A port that the
// kernel chooses for ":0" would not do: it is one of those that outgoing connections get, and is soon taken by one.
func FreeAddr(t testing.TB) string {
	t.Helper()
	ports, err := freePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	return loopback(ports[0])
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
