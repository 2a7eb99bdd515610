package rabbit

import (
	"bufio"
	"encoding/binary"
	"io"
	"maps"
	"sync"
	"sync/atomic"
)

// A frame is a type, a channel, the size of the payload, the payload, and an end octet that the client checks.
const (
	frameHeadBytes = 1 + 2 + 4
	frameEndBytes  = 1
	frameOverhead  = frameHeadBytes + frameEndBytes

	frameOfMethod = 1
	frameOfHeader = 2 // a content header: a message's properties
	frameOfBody   = 3

	classBasic    = 60
	methodDeliver = 60

	// largestFrame is the frame_max that the client asks for, so no connection has a larger one.
	largestFrame = 131072
	// smallestFrame is the frame_max before another is agreed on, and the least that can be.
	smallestFrame = 4096
	// mostHeaders are read of a content header, which frame_max does not bound; what is behind them is lost.
	mostHeaders = 16 << 20
)

// walker is what the client reads from: the bytes of the broker, frame after frame.
//
// It takes the headers out of each delivery and gives them to the ledger of its subscription. A message whose headers
// the client would refuse makes it close the connection, with everything in hand on it, and the message comes again: so
// one such message stops everybody. In place of such headers the ledger gets a mark ([HeaderUnreadable]).
//
// It drops the bodies of deliveries for which the ledger has no room: the client gets them empty and without
// properties.
//
// All else goes by as it is, also what breaks the framing itself, for the client to refuse.
type walker struct {
	in       *bufio.Reader
	frameMax atomic.Int64 // as agreed on with the broker; smallestFrame until then
	held     []byte       // made here, to be handed on first
	skip     int64        // bytes that the client does not get; they come behind held
	pass     int64        // bytes that go by unseen; they come behind skip
	room     []byte       // for what is held

	coming []coming // by channel

	mu      sync.Mutex
	ledgers map[string]*ledger // by consumer tag; guarded by mu
}

// coming is what a channel is about to deliver.
type coming struct {
	ledger *ledger // nil: nothing that anybody waits for
	tag    uint64
	header bool  // its content header came
	drop   int64 // bytes of its body that are still to be dropped
}

func newWalker(in io.Reader) *walker {
	w := &walker{in: bufio.NewReaderSize(in, largestFrame), ledgers: map[string]*ledger{}}
	w.frameMax.Store(smallestFrame)
	return w
}

// agreed tells the frame_max of the connection, before the first message can come.
func (w *walker) agreed(frameMax int) {
	if frameMax <= 0 || frameMax > largestFrame {
		frameMax = largestFrame // cannot be: see there
	}
	w.frameMax.Store(int64(frameMax))
}

// watch gives what comes for a consumer to a ledger, from its first delivery on. It reports false when another
// subscription of the connection has that tag.
func (w *walker) watch(consumerTag string, l *ledger) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if of := w.ledgers[consumerTag]; of != nil && of != l {
		return false
	}
	maps.DeleteFunc(w.ledgers, func(_ string, of *ledger) bool { return of == l }) // its former consumer is through
	w.ledgers[consumerTag] = l
	return true
}

// forget ends watch for the consumers of a subscription.
func (w *walker) forget(l *ledger) {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.ledgers, func(_ string, of *ledger) bool { return of == l })
}

// Read gives what is there and waits only for the first byte.
func (w *walker) Read(p []byte) (n int, err error) {
	for n < len(p) {
		switch {
		case len(w.held) > 0:
			took := copy(p[n:], w.held)
			n, w.held = n+took, w.held[took:]
		case n > 0 && !w.ready():
			return n, nil
		case w.skip > 0:
			if _, err := w.in.Peek(1); err != nil {
				return n, err
			}
			took, _ := w.in.Discard(int(min(w.skip, int64(w.in.Buffered())))) // they are there
			w.skip -= int64(took)
		case w.pass > 0:
			took, err := w.in.Read(p[n:min(int64(len(p)), int64(n)+w.pass)])
			n, w.pass = n+took, w.pass-int64(took)
			if err != nil {
				return n, err
			}
		default:
			if err := w.next(); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

// ready says whether Read can go on without waiting for the broker.
func (w *walker) ready() bool {
	have := w.in.Buffered()
	if w.pass > 0 || w.skip > 0 || have < frameHeadBytes {
		return w.pass+w.skip > 0 && have > 0
	}
	head, err := w.in.Peek(frameHeadBytes)
	return err == nil && (head[0] == frameOfBody || int64(have) >= frameOverhead+payloadBytes(head))
}

// next looks at the frame that begins here and decides how it goes by.
func (w *walker) next() error {
	head, err := w.in.Peek(frameHeadBytes)
	if err != nil {
		return w.rest(err)
	}
	// What head shows is somewhere else as soon as more is looked at.
	kind, channel, size := head[0], int(binary.BigEndian.Uint16(head[1:])), payloadBytes(head)
	w.pass = frameOverhead + size
	for len(w.coming) <= channel {
		w.coming = append(w.coming, coming{})
	}
	c := &w.coming[channel]
	switch {
	case kind == frameOfMethod && size <= smallestFrame:
		frame, err := w.in.Peek(int(frameHeadBytes + size))
		if err != nil {
			return w.rest(err)
		}
		*c = w.delivery(frame[frameHeadBytes:])
	case kind == frameOfBody && c.drop > 0:
		c.drop -= size
		w.pass, w.skip = 0, w.pass
	case kind == frameOfHeader && size >= headerFixedBytes:
		return w.header(c, size)
	}
	return nil
}

// delivery is what a method announces.
func (w *walker) delivery(method []byte) (c coming) {
	if len(method) < 5 || binary.BigEndian.Uint16(method) != classBasic ||
		binary.BigEndian.Uint16(method[2:]) != methodDeliver {
		return c
	}
	name := method[5:]
	if len(name) < int(method[4])+8 {
		return c
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return coming{ledger: w.ledgers[string(name[:method[4]])], tag: binary.BigEndian.Uint64(name[method[4]:])}
}

// header looks at a content header. It takes no more memory for one that is shed.
func (w *walker) header(c *coming, size int64) error {
	want := frameHeadBytes + min(size, mostHeaders)
	frame, err := w.in.Peek(int(min(want, int64(w.in.Size()))))
	if err != nil {
		return w.rest(err)
	}
	light, skip := append(w.room[:0], frame[:frameHeadBytes+headerFixedBytes]...), frameHeadBytes+size
	known := c.ledger != nil && !c.header
	c.header = true
	if body := binary.BigEndian.Uint64(frame[frameHeadBytes+4:]); known &&
		!c.ledger.admit(c.tag, weigh(int64(min(body, 1<<40)), headerWeight(frame, size))) {
		c.ledger, c.drop = nil, int64(min(body, 1<<62))
		binary.BigEndian.PutUint32(light[3:], headerFixedBytes)
		clear(light[frameHeadBytes+2:]) // weight, body size, flags
	} else {
		if int64(len(frame)) < want {
			frame = make([]byte, want)
			if _, err := io.ReadFull(w.in, frame); err != nil {
				return err
			}
			skip -= want
		}
		var headers Table
		var asIs bool
		light, headers, asIs = cutHeaders(frame, int(w.frameMax.Load()), w.room[:0])
		w.room = light
		if asIs && (!known || headers == nil) {
			return nil
		}
		if known {
			c.ledger.keep(c.tag, headers)
		}
	}
	w.room, w.held, w.skip, w.pass = light, light, skip, frameEndBytes
	return nil
}

// rest lets the client have the beginning of a frame that never ends.
func (w *walker) rest(err error) error {
	if w.pass = int64(w.in.Buffered()); w.pass > 0 {
		return nil
	}
	return err
}

// payloadBytes is what the first bytes of a frame say.
func payloadBytes(head []byte) int64 { return int64(binary.BigEndian.Uint32(head[3:])) }
