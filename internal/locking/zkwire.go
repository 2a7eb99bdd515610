package locking

import (
	"encoding/binary"
	"errors"
	"net"
)

// framed refuses what no ZooKeeper sends. The client makes room for as many bytes as the first four of an answer say,
// whoever answers: "HTTP" is a gibibyte, and an answer that is shorter than its head ends the process.
type framed struct {
	net.Conn
	head [4]byte
	have int // bytes of head
	body int // bytes of the answer that are to come
}

const (
	shortestAnswer = 16      // its number, the transaction and the error
	longestAnswer  = 4 << 20 // four times what a server sends by default (jute.maxbuffer)
)

var errNoZooKeeper = errors.New("what answers at this address is no ZooKeeper")

// Read counts along. The client is its only reader.
func (f *framed) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	for rest := p[:n]; len(rest) > 0; {
		if f.body > 0 {
			seen := min(f.body, len(rest))
			f.body, rest = f.body-seen, rest[seen:]
			continue
		}
		seen := copy(f.head[f.have:], rest)
		f.have, rest = f.have+seen, rest[seen:]
		if f.have < len(f.head) {
			break
		}
		length := binary.BigEndian.Uint32(f.head[:])
		if length < shortestAnswer || length > longestAnswer {
			return 0, errNoZooKeeper
		}
		f.have, f.body = 0, int(length)
	}
	return n, err
}
