package rabbit

import (
	"encoding/binary"
	"math"
)

// What the client reads of a table of headers. A further level or entry makes it close the connection.
const (
	maxDepth    = 32
	maxElements = 8192 // of one table or array
)

const headerFixedBytes = 14 // of a content header: class, weight, body size, property flags

// The properties of a message in the order of the wire, each there if its flag is set.
var contentProperties = [...]struct {
	flag uint16
	kind byte // 's' short string, 'F' table, 'B' octet, 'T' timestamp
}{
	{1 << 15, 's'}, // content type
	{1 << 14, 's'}, // content encoding
	{flagHeaders, 'F'},
	{1 << 12, 'B'}, // delivery mode
	{1 << 11, 'B'}, // priority
	{1 << 10, 's'}, // correlation_id
	{1 << 9, 's'},  // reply_to
	{1 << 8, 's'},  // expiration
	{1 << 7, 's'},  // message_id
	{1 << 6, 'T'},  // timestamp
	{1 << 5, 's'},  // type
	{1 << 4, 's'},  // user_id
	{1 << 3, 's'},  // app_id
	{1 << 2, 's'},  // cluster_id
}

const flagHeaders = 1 << 13

const (
	endsEarly = "cut off in the middle"
	tooDeep   = "nested deeper than 32"
	tooMany   = "over 8192 entries in one table"
	odd       = "of an unknown field type"
)

// headerFlaw says why the client would not read the payload of a content header, or "". It is stricter in one way,
// which no message from RabbitMQ meets: the client reads some arrays that are cut off.
func headerFlaw(payload []byte) string {
	flags := binary.BigEndian.Uint16(payload[headerFixedBytes-2:])
	rest := payload[headerFixedBytes:]
	for _, p := range contentProperties {
		if flags&p.flag == 0 {
			continue
		}
		n := 0
		switch {
		case p.kind == 's' && len(rest) > 0:
			n = 1 + int(rest[0])
		case p.kind == 'B':
			n = 1
		case p.kind == 'T':
			n = 8
		case p.kind == 'F' && len(rest) >= 4:
			n = 4 + length(rest)
		}
		if n == 0 || n > len(rest) {
			return endsEarly
		}
		if p.kind == 'F' {
			if flaw := entriesFlaw(rest[4:n], 0, true); flaw != "" {
				return flaw
			}
		}
		rest = rest[n:]
	}
	return ""
}

// entriesFlaw is headerFlaw for the content of a table, whose entries have names, or of an array.
func entriesFlaw(b []byte, depth int, named bool) string {
	if depth > maxDepth {
		return tooDeep
	}
	all := b
	var names map[string]struct{} // that were met, once there are many: the client counts a name once
	for n := 0; len(b) > 0; n++ {
		if n == maxElements && named {
			names = namesOf(all[:len(all)-len(b)])
		}
		if n >= maxElements && (!named || len(names) == maxElements) {
			return tooMany
		}
		if named {
			if len(b) < 1+int(b[0])+1 {
				return endsEarly
			}
			if names != nil {
				names[string(b[1:1+int(b[0])])] = struct{}{}
			}
			b = b[1+int(b[0]):]
		}
		size, flaw := valueFlaw(b, depth)
		if flaw != "" {
			return flaw
		}
		b = b[size:]
	}
	return ""
}

// namesOf are the names in the content of a table without a flaw.
func namesOf(b []byte) map[string]struct{} {
	names := map[string]struct{}{}
	for len(b) > 0 {
		names[string(b[1:1+int(b[0])])] = struct{}{}
		b = b[1+int(b[0]):]
		size, _ := valueBytes(b)
		b = b[size:]
	}
	return names
}

// valueFlaw is headerFlaw for one value, which begins with its type, and says how many bytes it has.
func valueFlaw(b []byte, depth int) (size int, flaw string) {
	size, flaw = valueBytes(b)
	if flaw == "" && (b[0] == 'A' || b[0] == 'F') {
		flaw = entriesFlaw(b[5:size], depth+1, b[0] == 'F')
	}
	return size, flaw
}

// valueBytes is how many bytes the value has that b begins with; it does not look into tables and arrays.
func valueBytes(b []byte) (size int, flaw string) {
	fixed, sized := fieldBytes(b[0])
	if fixed < 0 {
		return 0, odd
	}
	size = 1 + fixed
	if sized && len(b) >= size {
		size += length(b[1:])
	}
	if size > len(b) {
		return 0, endsEarly
	}
	return size, ""
}

// length is a size of four bytes, on every machine an int that may be added to.
func length(b []byte) int { return int(min(binary.BigEndian.Uint32(b), math.MaxInt32/2)) }

// fieldBytes is how many bytes a value has behind its type; sized ones are four bytes that say how many more. -1: the
// client has no such type.
func fieldBytes(typ byte) (n int, sized bool) {
	switch typ {
	case 'V':
		return 0, false
	case 't', 'b', 'B':
		return 1, false
	case 's', 'u':
		return 2, false
	case 'I', 'i', 'f':
		return 4, false
	case 'D':
		return 5, false
	case 'l', 'd', 'T':
		return 8, false
	case 'S', 'x', 'A', 'F':
		return 4, true
	}
	return -1, false
}
