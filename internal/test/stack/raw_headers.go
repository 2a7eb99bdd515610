package stack

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// OddHeaders is a header table that RabbitMQ takes and a client library may refuse.
type OddHeaders struct {
	Name    string
	Entries []byte // for [RawMessage.Headers]
}

// UnreadableHeaders are tables that amqp091-go refuses whenever they are delivered, and closes the connection: nested
// over 32 deep, or of over 8,192 entries. Each begins with the entry x-mark, text.
func UnreadableHeaders(mark string) []OddHeaders {
	const depth, entries = 41, 8193
	tables := func(int) bool { return true }
	arrays := func(int) bool { return false }
	inTurn := func(level int) bool { return level%2 == 0 }
	first := entry(nil, "x-mark", text(mark))
	odd := func(name string, more []byte) OddHeaders {
		return OddHeaders{name, append(slices.Clip(first), more...)}
	}
	deep := entry(nil, "x-deep", nested(depth, tables))
	return []OddHeaders{
		odd("tables 41 deep", deep),
		odd("tables 33 deep", entry(nil, "x-deep", nested(33, tables))),
		odd("arrays 41 deep", entry(nil, "x-deep", nested(depth, arrays))),
		odd("arrays and tables in turn", entry(nil, "x-deep", nested(2*depth, inTurn))),
		odd("a forged x-death", entry(nil, "x-death", nested(depth, func(level int) bool { return level != depth-1 }))),
		odd("8,193 entries", many(entries-1)), // x-mark is one
		odd("8,193 entries below the top", entry(nil, "x-wide", table(many(entries)))),
		odd("8,193 elements", entry(nil, "x-wide", array(voids(entries)))),
		odd("20,000 elements two arrays down", entry(nil, "x-wide", array(array(voids(20_000))))),
		odd("the key after the depth", entry(deep, "x-message-key", text(mark))),
	}
}

// FillingHeaders are tables that fill the header frame of a message with these properties to the last byte, or have as
// many entries as amqp091-go reads, so that what the broker itself adds, x-delivery-count at the second delivery, is
// too much. frame is [RawPublisher.FrameMax]. Each begins with the entry x-mark, text.
func FillingHeaders(frame int, mark, messageID, typ string) []OddHeaders {
	used := 19 // bytes of the frame: class, weight, size, flags, the table's length, the delivery mode
	for _, property := range []string{messageID, typ} {
		if property != "" {
			used += 1 + len(property)
		}
	}
	first := entry(nil, "x-mark", text(mark))
	fill := func(entries []byte, name string) []byte {
		room := frame - used - len(entries) - len(entry(nil, name, text("")))
		return entry(entries, name, text(strings.Repeat("f", room)))
	}
	const entries, each = 4000, 20
	wide := slices.Clip(first)
	for i := range entries {
		wide = entry(wide, fmt.Sprintf("x-%04d", i), text(strings.Repeat("w", each)))
	}
	return []OddHeaders{
		{"one entry fills the frame", fill(slices.Clip(first), "x-fill")},
		{"many entries fill the frame", fill(wide, "x-fill")},
		{"8,192 entries", append(slices.Clip(first), many(8191)...)}, // x-mark is one
	}
}

// entry appends a name and its value, type and all.
func entry(out []byte, name string, value []byte) []byte {
	return append(shortText(out, name), value...)
}

func text(s string) []byte         { return longText([]byte{'S'}, s) }
func table(entries []byte) []byte  { return longText([]byte{'F'}, string(entries)) }
func array(elements []byte) []byte { return longText([]byte{'A'}, string(elements)) }
func voids(n int) []byte           { return bytes.Repeat([]byte{'V'}, n) }

// nested is so many tables or arrays in each other.
func nested(depth int, isTable func(level int) bool) []byte {
	value := text("the bottom")
	for level := range depth {
		if isTable(level) {
			value = table(entry(nil, "n", value))
		} else {
			value = array(value)
		}
	}
	return value
}

// many is so many entries without a value, each with a name of its own.
func many(n int) (entries []byte) {
	for i := range n {
		entries = entry(entries, fmt.Sprintf("x-%04d", i), []byte{'V'})
	}
	return entries
}
