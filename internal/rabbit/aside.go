package rabbit

import (
	"encoding/binary"
	"math"
	"slices"
	"time"
)

// asideRoom is what the broker may add to headers that fill a frame: a count at each delivery, and on the way to
// another queue the entry x-death, which names the queue it came from and its route, with what belongs to it.
const asideRoom = 8 << 10

// setAside takes out of the frame of a content header what RabbitMQ itself adds to the headers, if that alone makes it
// more than the client reads: a frame of at most frameMax bytes, and what was taken out, to be put back when the client
// has read the rest. So a message that is readable the first time is readable each time, and keeps its identity.
// Otherwise both are nil.
func setAside(frame []byte, frameMax int) ([]byte, Table) {
	at := tableAt(frame[frameHeadBytes:])
	if at < 0 {
		return nil, nil
	}
	at += frameHeadBytes
	rest := frame[at+4:]
	entries := rest[:length(frame[at:])]
	instead := slices.Clone(frame[:at+4])
	var aside Table
	for len(entries) > 0 {
		if len(entries) < 1+int(entries[0])+1 {
			return nil, nil
		}
		name, value := string(entries[1:1+int(entries[0])]), entries[1+int(entries[0]):]
		size, flaw := valueBytes(value)
		if flaw == "" && brokerAdds(name) {
			_, flaw = valueFlaw(value, 0)
		}
		if flaw != "" {
			return nil, nil
		}
		if brokerAdds(name) {
			if aside == nil {
				aside = Table{}
			}
			aside[name] = readValue(value[:size])
		} else {
			instead = append(instead, entries[:1+len(name)+size]...)
		}
		entries = value[size:]
	}
	binary.BigEndian.PutUint32(instead[at:], uint32(len(instead)-at-4))
	instead = append(instead, rest[length(frame[at:]):]...)
	payload := instead[frameHeadBytes : len(instead)-frameEndBytes]
	binary.BigEndian.PutUint32(instead[3:], uint32(len(payload)))
	if aside == nil || len(instead) > frameMax || headerFlaw(payload) != "" {
		return nil, nil
	}
	return instead, aside
}

// tableAt is where the headers begin in the payload of a content header, whole as far as their size says; or -1.
func tableAt(payload []byte) int {
	flags := binary.BigEndian.Uint16(payload[headerFixedBytes-2:])
	at := headerFixedBytes
	for _, p := range contentProperties {
		if p.flag == flagHeaders {
			break
		}
		if flags&p.flag != 0 && at < len(payload) {
			at += 1 + int(payload[at]) // all before the headers are short strings
		}
	}
	if flags&flagHeaders == 0 || len(payload)-at < 4 || len(payload)-at-4 < length(payload[at:]) {
		return -1
	}
	return at
}

// readValue is what the client would make of a value, which begins with its type and is without a flaw.
func readValue(b []byte) any {
	typ, b := b[0], b[1:]
	switch typ {
	case 't':
		return b[0] != 0
	case 'B':
		return b[0]
	case 'b':
		return int8(b[0])
	case 's':
		return int16(binary.BigEndian.Uint16(b))
	case 'u':
		return binary.BigEndian.Uint16(b)
	case 'I':
		return int32(binary.BigEndian.Uint32(b))
	case 'i':
		return binary.BigEndian.Uint32(b)
	case 'f':
		return math.Float32frombits(binary.BigEndian.Uint32(b))
	case 'D':
		return Decimal{Scale: b[0], Value: int32(binary.BigEndian.Uint32(b[1:]))}
	case 'l':
		return int64(binary.BigEndian.Uint64(b))
	case 'd':
		return math.Float64frombits(binary.BigEndian.Uint64(b))
	case 'T':
		return time.Unix(int64(binary.BigEndian.Uint64(b)), 0)
	case 'S':
		return string(b[4:])
	case 'x':
		return slices.Clone(b[4:])
	case 'A':
		return readArray(b[4:])
	case 'F':
		return readTable(b[4:])
	}
	return nil // 'V'
}

func readArray(b []byte) (all []any) {
	for len(b) > 0 {
		size, _ := valueBytes(b)
		all, b = append(all, readValue(b[:size])), b[size:]
	}
	return all
}

func readTable(b []byte) Table {
	table := Table{}
	for len(b) > 0 {
		name, value := string(b[1:1+int(b[0])]), b[1+int(b[0]):]
		size, _ := valueBytes(value)
		table[name], b = readValue(value[:size]), value[size:]
	}
	return table
}
