package rabbit

import (
	"bufio"
	"encoding/binary"
	"io"
	"sync/atomic"
)

// A frame is a type, a channel, the size of the payload, the payload, and an end octet that the client checks.
const (
	frameHeadBytes = 1 + 2 + 4
	frameEndBytes  = 1
	frameOverhead  = frameHeadBytes + frameEndBytes

	frameOfHeader = 2 // a content header: a message's properties

	// largestFrame is the frame_max that the client asks for, so no connection has a larger one.
	largestFrame = 131072
	// smallestFrame is the frame_max before another is agreed on, and the least that can be.
	smallestFrame = 4096
)

// walker is what the client reads from: the bytes of the broker, frame after frame. A message whose headers the client
// would refuse makes it close the connection, with everything in hand on it, and the message comes again: so one such
// message stops everybody. The walker hands on a mark in place of these headers; see replaceHeader. Those that are too
// many or too large only by what the broker added go by without that, which follows by another way; see setAside.
// Frames of any other type, and content headers that the client takes, go by as they are. What breaks the framing
// itself goes by too, for the client to refuse.
//
// Its buffer has room for the largest frame that the client takes and what the broker adds, so all others are looked at
// where they lie.
type walker struct {
	in       *bufio.Reader
	frameMax atomic.Int64 // as agreed on with the broker; smallestFrame until then
	pass     int64        // bytes of a frame that go by unseen
	held     []byte       // of a frame that was made here; they come before what pass counts
	skip     int64        // bytes that the client does not get; they come behind held
	shed     shedder
}

func newWalker(in io.Reader) *walker {
	w := &walker{in: bufio.NewReaderSize(in, largestFrame+asideRoom)}
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
	switch {
	case kind == frameOfMethod && size <= smallestFrame:
		frame, err := w.in.Peek(int(frameHeadBytes + size))
		if err != nil {
			return w.rest(err)
		}
		w.shed.delivers(channel, frame[frameHeadBytes:])
	case kind == frameOfBody && w.shed.drops(channel, size):
		w.pass, w.skip = 0, w.pass
	}
	if kind != frameOfHeader || size < headerFixedBytes {
		return nil
	}
	whole, known := w.pass <= int64(w.in.Size()), frameHeadBytes+headerFixedBytes
	if whole {
		known = int(w.pass)
	}
	frame, err := w.in.Peek(known)
	if err != nil {
		return w.rest(err)
	}
	if instead := w.shed.weighs(channel, frame, size); instead != nil {
		w.pass, w.skip, w.held = 0, w.pass, instead
		return nil
	}
	flaw, frameMax := "", int(w.frameMax.Load())
	if whole {
		flaw = headerFlaw(frame[frameHeadBytes : frameHeadBytes+size])
		if flaw == "" && len(frame) <= frameMax {
			return nil
		}
		if instead, aside := setAside(frame, frameMax); instead != nil {
			w.shed.keep(channel, aside)
			w.pass, w.skip, w.held = 0, w.pass, instead
			return nil
		}
	}
	if flaw == "" {
		flaw = "larger than a frame"
	}
	w.pass = frameEndBytes
	w.held, err = replaceHeader(w.in, size, flaw, frameMax)
	return err
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
