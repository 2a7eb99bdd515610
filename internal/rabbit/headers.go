package rabbit

import (
	"encoding/binary"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// What is read of headers, as the client would: it closes the connection over a further level or entry.
const (
	maxDepth    = 32
	maxElements = 8192 // of one table or array
)

const (
	endsEarly = "cut off in the middle"
	tooDeep   = "nested deeper than 32"
	tooMany   = "over 8192 entries in one table"
	tooLarge  = "larger than a frame"
	odd       = "of an unknown field type"
)

const (
	headerFixedBytes = 14 // of a content header: class, weight, body size, property flags
	flagHeaders      = 1 << 13
	// propertyKinds are the properties of a message in the order of the wire. Each is there if its flag is set, the first
	// one's being the highest bit: s is a short string, F a table, B an octet, T a timestamp.
	propertyKinds = "ssFBBssssTssss"
)

// cutHeaders takes the headers out of a content header, whose frame is given without its end octet: it returns the
// frame without them, appended to light, and what the client would have read of them, or a mark in their place.
// asIs: the client reads the whole frame. What RabbitMQ adds counts for no bound: so a message that is readable the
// first time is readable each time, and keeps its identity.
func cutHeaders(frame []byte, frameMax int, light []byte) (_ []byte, headers Table, asIs bool) {
	const fixed = frameHeadBytes + headerFixedBytes
	light, rest := append(light, frame[:fixed]...), frame[fixed:]
	flags := binary.BigEndian.Uint16(light[fixed-2:])
	var mark Unreadable
	var table []byte
	for i, kind := range []byte(propertyKinds) {
		flag := uint16(1) << (15 - i)
		if flags&flag == 0 {
			continue
		}
		n := 1
		switch {
		case kind == 'T':
			n = 8
		case kind == 's' && len(rest) > 0:
			n = 1 + int(rest[0])
		case kind == 'F':
			n = sizedBytes(rest)
		}
		if mark.Lost = n > len(rest); mark.Lost {
			flags &^= flag<<1 - 1 // this one, and all behind it
			break
		}
		if kind == 'F' {
			table, headers = rest[4:n], Table{}
		} else {
			light = append(light, rest[:n]...)
		}
		rest = rest[n:]
	}
	binary.BigEndian.PutUint16(light[fixed-2:], flags&^flagHeaders)
	binary.BigEndian.PutUint32(light[3:], uint32(len(light)-frameHeadBytes))
	if headers != nil {
		headers, mark.Why = readTable(table, 0)
	}
	fits := len(frame)+frameEndBytes <= frameMax
	switch {
	case mark.Why == "" && mark.Lost:
		mark.Why = endsEarly
	case mark.Why == "" && !fits && len(frame)+frameEndBytes-addedBytes(table) > frameMax:
		mark.Why = tooLarge
	}
	if mark.Why != "" {
		return light, salvage(table, rest, mark), false
	}
	return light, headers, headers == nil || fits && len(headers) <= maxElements
}

// addedBytes is how many bytes of a table without a flaw are RabbitMQ's.
func addedBytes(table []byte) (n int) {
	for len(table) > 0 {
		name, _, rest, _ := cutEntry(table)
		if brokerAdds(name) {
			n += len(table) - len(rest)
		}
		table = rest
	}
	return n
}

// readTable reads the content of a table as the client does, or says why it would not.
func readTable(b []byte, depth int) (_ Table, flaw string) {
	table, added := Table{}, Table{}
	for len(b) > 0 && flaw == "" {
		var name string
		var value []byte
		name, value, b, flaw = cutEntry(b)
		to := table
		if depth == 0 && brokerAdds(name) {
			to = added
		}
		if flaw == "" {
			to[name], flaw = readOneMore(value, depth, len(to))
		}
	}
	maps.Copy(table, added)
	return table, flaw
}

func readArray(b []byte, depth int) (all []any, flaw string) {
	for len(b) > 0 && flaw == "" {
		var value []byte
		var v any
		if value, b, flaw = cutValue(b); flaw == "" {
			v, flaw = readOneMore(value, depth, len(all))
			all = append(all, v)
		}
	}
	return all, flaw
}

// readOneMore is readValue for what stands in a table or array beside so many others.
func readOneMore(value []byte, depth, others int) (any, string) {
	if others == maxElements {
		return nil, tooMany
	}
	return readValue(value, depth)
}

// cutEntry cuts the first entry off the content of a table.
func cutEntry(b []byte) (name string, value, rest []byte, flaw string) {
	n := 1 + int(b[0])
	if n > len(b) {
		return "", nil, nil, endsEarly
	}
	value, rest, flaw = cutValue(b[n:])
	return string(b[1:n]), value, rest, flaw
}

// valueBytes is how many bytes a value has with its type before it; of the sized ones, with the size of the rest.
var valueBytes = [...]uint8{
	'V': 1, 't': 2, 'b': 2, 'B': 2, 's': 3, 'u': 3, 'I': 5, 'i': 5, 'f': 5, 'D': 6, 'l': 9, 'd': 9, 'T': 9,
	'S': 5, 'x': 5, 'A': 5, 'F': 5,
}

// cutValue cuts the first value off, with its type, without looking into tables and arrays.
func cutValue(b []byte) (value, rest []byte, flaw string) {
	if len(b) == 0 {
		return nil, nil, endsEarly
	}
	if int(b[0]) >= len(valueBytes) || valueBytes[b[0]] == 0 {
		return nil, nil, odd
	}
	n := int(valueBytes[b[0]])
	if strings.IndexByte("SxAF", b[0]) >= 0 {
		n = 1 + sizedBytes(b[1:])
	}
	if n > len(b) {
		return nil, nil, endsEarly
	}
	return b[:n], b[n:], ""
}

// sizedBytes is how long something is that begins with its size, on every machine an int that may be added to.
func sizedBytes(b []byte) int {
	if len(b) < 4 {
		return 4
	}
	return 4 + int(min(binary.BigEndian.Uint32(b), math.MaxInt32/2))
}

// readValue is what the client makes of a value that cutValue has cut.
func readValue(b []byte, depth int) (v any, flaw string) {
	typ, b := b[0], b[1:]
	switch typ {
	case 't':
		v = b[0] != 0
	case 'B':
		v = b[0]
	case 'b':
		v = int8(b[0])
	case 's':
		v = int16(binary.BigEndian.Uint16(b))
	case 'u':
		v = binary.BigEndian.Uint16(b)
	case 'I':
		v = int32(binary.BigEndian.Uint32(b))
	case 'i':
		v = binary.BigEndian.Uint32(b)
	case 'f':
		v = math.Float32frombits(binary.BigEndian.Uint32(b))
	case 'D':
		v = Decimal{Scale: b[0], Value: int32(binary.BigEndian.Uint32(b[1:]))}
	case 'l':
		v = int64(binary.BigEndian.Uint64(b))
	case 'd':
		v = math.Float64frombits(binary.BigEndian.Uint64(b))
	case 'T':
		v = time.Unix(int64(binary.BigEndian.Uint64(b)), 0)
	case 'S':
		v = string(b[4:])
	case 'x':
		v = slices.Clone(b[4:])
	case 'A', 'F':
		if depth == maxDepth {
			return nil, tooDeep
		}
		if typ == 'A' {
			return readArray(b[4:], depth+1)
		}
		return readTable(b[4:], depth+1)
	}
	return v, ""
}
