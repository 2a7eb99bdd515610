package stack

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/require"
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

// given are the ports that this process has got. None is given twice: whoever has it may not listen on it yet, or have
// its server down just now, and two daemons with one address are scraped, asked and killed for each other.
var given sync.Map

// listen takes a port of the loopback address nobody listens on. Whoever can listen by itself uses it and not
// freePorts, which leaves a moment in which the port may be taken.
func listen() (*net.TCPListener, error) {
	for range 1000 {
		port := lowestPort + rand.IntN(highestPort-lowestPort)
		l, err := net.Listen("tcp", loopback(port))
		if err != nil {
			continue
		}
		if _, before := given.LoadOrStore(port, true); !before {
			return l.(*net.TCPListener), nil
		}
		_ = l.Close() // nobody has used it
	}
	return nil, errors.New("find a free loopback port: 1000 tries were in vain")
}

// FreeAddr is an address of the loopback at which nobody listens now, for what a test starts by itself. A port that the
// kernel chooses for ":0" would not do: it is one of those that outgoing connections get, and is soon taken by one.
func FreeAddr(t testing.TB) string {
	t.Helper()
	return loopback(require.Get(freePorts(1))(t)[0])
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
