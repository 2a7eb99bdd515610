package rabbit

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"math/bits"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// HeaderUnreadable is the header that stands in place of all headers of a message which the client would not read.
// Copies of the message carry it on: see [ReadUnreadable].
const HeaderUnreadable = "x-rollbackd-unreadable-headers"

// Unreadable is what is known of headers that the client would not read.
type Unreadable struct {
	Why string // in words
	// Bytes and Digest are of what the producer wrote. What the broker adds is not in them, so they are the same each
	// time the message comes; for a table that cannot be walked from entry to entry they are of all bytes, and may
	// differ.
	Bytes  int64
	Digest string // SHA-256, hexadecimal
	// Lost says that the list of properties itself breaks off: what should follow is absent, though the message may
	// have it.
	Lost bool
}

var markText = regexp.MustCompile(`^([a-z0-9 ]{1,60}); (\d{1,10}) bytes; sha256:([0-9a-f]{64})(; properties lost)?$`)

// String is the value of HeaderUnreadable.
func (u Unreadable) String() string {
	text := fmt.Sprintf("%s; %d bytes; sha256:%s", u.Why, u.Bytes, u.Digest)
	if u.Lost {
		text += "; properties lost"
	}
	return text
}

// ReadUnreadable reads HeaderUnreadable. A value that String does not write is no mark.
func ReadUnreadable(h Table) (Unreadable, bool) {
	text, _ := h[HeaderUnreadable].(string)
	if text == "" {
		return Unreadable{}, false
	}
	m := markText.FindStringSubmatch(text)
	if m == nil {
		return Unreadable{}, false
	}
	n, err := strconv.ParseInt(m[2], 10, 64)
	return Unreadable{Why: m[1], Bytes: n, Digest: m[3], Lost: m[4] != ""}, err == nil
}

// Headers that RabbitMQ, or rollbackd for a copy's sake, writes beside the producer's.
const (
	HeaderDeath         = "x-death"           // an array of tables: which queues the broker moved the message out of
	HeaderDeliveryCount = "x-delivery-count"  // integer: deliveries that failed
	headerAcquiredCount = "x-acquired-count"  // integer: all deliveries, from RabbitMQ 4.3
	HeaderPublishedAt   = "x-published-at-ms" // integer: when it was first published, in milliseconds since 1970
	HeaderInterceptor   = "timestamp_in_ms"   // likewise, by RabbitMQ's timestamp interceptor, on a copy too
)

// BrokerWrites reports whether RabbitMQ acts on a header or writes it while the message waits: a copy must not carry
// it. CC and BCC would send further copies, a count or death of the original would be taken for the copy's.
func BrokerWrites(name string) bool {
	return name == "CC" || name == "BCC" || brokerAdds(name)
}

// brokerAdds reports whether RabbitMQ writes a header beside the producer's while the message waits.
func brokerAdds(name string) bool {
	if name == HeaderDeliveryCount || name == headerAcquiredCount {
		return true
	}
	return slices.ContainsFunc([]string{HeaderDeath, "x-first-death", "x-last-death"}, func(prefix string) bool {
		return strings.HasPrefix(name, prefix)
	})
}

// salvage reads a content header once, whatever its size, and keeps what the client can be given of it.
type salvage struct {
	in   *bufio.Reader
	left int64 // bytes of the payload that are not read yet
	err  error // of the connection

	flags         uint16
	before, after []byte   // the properties on either side of the headers
	kept          []byte   // entries of the table that are worth having
	names         []string // theirs
	room          int      // for the entry of x-death

	mark    Unreadable
	entries [4]uint64 // the sum of the hashes of all entries: RabbitMQ sorts them when it adds one
	raw     hash.Hash // of what cannot be told apart
}

// replaceHeader takes the frame of a content header from in, all but its end octet, and makes one of at most frameMax
// bytes that the client reads: with the same properties as far as the list can be read, and with a table that holds
// HeaderUnreadable and what the broker says of this delivery. It takes no more memory for a larger header. The error is
// that of reading.
func replaceHeader(in *bufio.Reader, size int64, why string, frameMax int) ([]byte, error) {
	s := &salvage{in: in, left: frameHeadBytes + size, mark: Unreadable{Why: why}, raw: sha256.New()}
	s.room = min(8<<10, frameMax-3<<10) // the other properties have at most 2.6 KB, the mark and four integers 0.4 KB
	frame := slices.Clone(s.take(frameHeadBytes + headerFixedBytes))
	if s.err != nil {
		return nil, s.err
	}
	flags := frame[len(frame)-2:]
	s.flags = binary.BigEndian.Uint16(flags)
	s.properties()
	s.digestRaw(s.left)
	if s.err != nil {
		return nil, s.err
	}
	binary.BigEndian.PutUint16(flags, s.flags|flagHeaders)
	table := appendText(nil, HeaderUnreadable, s.digested().String())
	table = append(table, s.kept...)
	frame = append(frame, s.before...)
	frame = append(binary.BigEndian.AppendUint32(frame, uint32(len(table))), table...)
	frame = append(frame, s.after...)
	binary.BigEndian.PutUint32(frame[3:], uint32(len(frame)-frameHeadBytes))
	return frame, nil
}

func appendText(table []byte, name, value string) []byte {
	table = append(append(table, byte(len(name))), name...)
	return append(binary.BigEndian.AppendUint32(append(table, 'S'), uint32(len(value))), value...)
}

// properties reads the list up to its end or to where it breaks off, and clears the flags of what is not there.
func (s *salvage) properties() {
	to := &s.before
	for i, p := range contentProperties {
		if p.flag == flagHeaders {
			to = &s.after
		}
		if s.flags&p.flag == 0 || s.property(p.kind, to) {
			continue
		}
		s.mark.Lost = true
		for _, gone := range contentProperties[i:] {
			s.flags &^= gone.flag
		}
		return
	}
}

// property reads one property, and says whether it was whole.
func (s *salvage) property(kind byte, to *[]byte) bool {
	n := int64(1)
	switch kind {
	case 'F':
		return s.table()
	case 'T':
		n = 8
	case 's':
		if size := s.peek(1); len(size) == 1 {
			n += int64(size[0])
		}
	}
	b := s.take(n)
	*to = append(*to, b...)
	return b != nil
}

// table reads the headers, entry by entry: a nested table says how large it is, however deep it nests.
func (s *salvage) table() bool {
	size := s.peek(4)
	if len(size) < 4 || int64(length(size)) > s.left-4 {
		return false
	}
	end := s.left - 4 - int64(length(size))
	s.take(4)
	for s.left > end && s.err == nil {
		if !s.entry(s.left - end) {
			s.digestRaw(s.left - end)
		}
	}
	return s.err == nil
}

// entry reads one entry of the headers, of which at most this many bytes are left. It takes nothing when it cannot tell
// where it ends.
func (s *salvage) entry(left int64) bool {
	b := s.peek(min(left, 1+255+1+4)) // the longest name, a type and a size
	if len(b) < 2 || len(b) < 1+int(b[0])+1 {
		return false
	}
	name, value := string(b[1:1+int(b[0])]), b[1+int(b[0]):]
	typ := value[0]
	fixed, sized := fieldBytes(typ)
	size := int64(1 + len(name) + 1 + fixed)
	if sized && len(value) >= 5 {
		size += int64(length(value[1:]))
	}
	if fixed < 0 || size > left {
		return false
	}
	if !slices.Contains(s.names, name) {
		if kept := s.worthKeeping(name, typ, size); kept != nil {
			s.kept, s.names = append(s.kept, kept...), append(s.names, name)
		}
	}
	if BrokerWrites(name) || name == HeaderInterceptor {
		s.each(size, func([]byte) {})
		return true
	}
	h := sha256.New()
	s.each(size, func(b []byte) { h.Write(b) })
	s.mark.Bytes += size
	var sum [sha256.Size]byte
	h.Sum(sum[:0])
	var carry uint64
	for i := range s.entries {
		s.entries[i], carry = bits.Add64(s.entries[i], binary.LittleEndian.Uint64(sum[8*i:]), carry)
	}
	return true
}

// worthKeeping is the entry, if it helps to handle the message: to know that it came before, where it was published
// first, and when.
func (s *salvage) worthKeeping(name string, typ byte, size int64) []byte {
	switch name {
	case HeaderDeliveryCount, headerAcquiredCount, HeaderPublishedAt, HeaderInterceptor:
		if strings.IndexByte("bBsuIil", typ) >= 0 {
			return s.peek(size)
		}
	case HeaderDeath:
		if typ == 'A' {
			return deaths(s.peek(min(size, int64(s.room))))
		}
	}
	return nil
}

// deaths is what can be read of the beginning of an entry x-death. RabbitMQ puts the latest death before the others,
// and those before what a producer has forged.
func deaths(entry []byte) []byte {
	value := 1 + len(HeaderDeath)
	if len(entry) < value+5 {
		return nil
	}
	var kept []byte
	for b := entry[value+5:]; len(b) > 0; {
		size, flaw := valueBytes(b)
		if flaw != "" {
			break
		}
		if _, flaw = valueFlaw(b[:size], 1); flaw == "" {
			kept = append(kept, b[:size]...)
		}
		b = b[size:]
	}
	return append(binary.BigEndian.AppendUint32(slices.Clone(entry[:value+1]), uint32(len(kept))), kept...)
}

// digestRaw takes n bytes that nobody understands.
func (s *salvage) digestRaw(n int64) {
	s.mark.Bytes += n
	s.each(n, func(b []byte) { s.raw.Write(b) })
}

func (s *salvage) digested() Unreadable {
	h := sha256.New()
	for _, part := range s.entries {
		_ = binary.Write(h, binary.LittleEndian, part) // a hash takes everything
	}
	h.Write(s.raw.Sum(nil))
	s.mark.Digest = hex.EncodeToString(h.Sum(nil))
	return s.mark
}

// peek shows the next n bytes of the payload, at most as many as the buffer holds, or nil if there are fewer.
func (s *salvage) peek(n int64) []byte {
	if n > s.left || s.err != nil {
		return nil
	}
	b, err := s.in.Peek(int(n))
	if err != nil {
		s.err = err
		return nil
	}
	return b
}

// take is peek, and goes on behind them.
func (s *salvage) take(n int64) []byte {
	b := s.peek(n)
	if b != nil {
		s.left -= n
		_, _ = s.in.Discard(int(n)) // they are buffered
	}
	return b
}

// each takes n bytes, which must be there, piece by piece.
func (s *salvage) each(n int64, use func([]byte)) {
	for n > 0 && s.err == nil {
		b := s.take(min(n, int64(max(1, s.in.Buffered()))))
		use(b)
		n -= int64(len(b))
	}
}
