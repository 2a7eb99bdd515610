package stack

import (
	"fmt"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// OddHeaders are headers that RabbitMQ takes, and that a client library may write and not read.
type OddHeaders struct {
	Name  string
	Table amqp.Table
}

// UnreadableHeaders are tables that amqp091-go refuses whenever they are delivered, and closes the connection: nested
// over 32 deep, or of over 8,192 entries. Each has the entry x-mark beside that, before or behind it.
func UnreadableHeaders(mark string) []OddHeaders {
	table := func(v any) any { return amqp.Table{"n": v} }
	array := func(v any) any { return []any{v} }
	inTurn := func(v any) any { return array(table(v)) }
	odd := func(name, key string, value any) OddHeaders {
		return OddHeaders{name, amqp.Table{"x-mark": mark, key: value}}
	}
	keyed := odd("a key beside the depth", "x-deep", nested(41, table))
	keyed.Table["x-message-key"] = mark
	return []OddHeaders{
		odd("tables 41 deep", "x-deep", nested(41, table)),
		odd("tables 33 deep", "x-deep", nested(33, table)),
		odd("arrays 41 deep", "x-deep", nested(41, array)),
		odd("arrays and tables in turn", "x-deep", nested(41, inTurn)),
		odd("a forged x-death", "x-death", array(nested(40, table))),
		{"8,193 entries", many(8192, mark)},
		odd("8,193 entries below the top", "x-wide", many(8192, mark)),
		odd("8,193 elements", "x-wide", make([]any, 8193)),
		odd("20,000 elements two arrays down", "x-wide", array(make([]any, 20_000))),
		keyed,
	}
}

// FillingHeaders are tables that fill the header frame of a persistent message with these properties to the last byte,
// or have as many entries as amqp091-go reads, so that what the broker itself adds, x-delivery-count at the second
// delivery, is too much. Each has the entry x-mark.
func FillingHeaders(mark, messageID, typ string) []OddHeaders {
	const (
		frame   = 131_072 - 8 // bytes that RabbitMQ lets a frame hold
		others  = 14 + 4 + 1  // of class, weight, size and flags, the table's length, and the delivery mode
		of      = 1 + 1 + 4   // of an entry besides its name and text
		fills   = "x-fill"    // the entry that takes what is left
		entries = 4000
	)
	fill := func(t amqp.Table) amqp.Table {
		room := frame - others - of - len(fills)
		for _, property := range []string{messageID, typ} {
			if property != "" {
				room -= 1 + len(property)
			}
		}
		for name, text := range t {
			room -= of + len(name) + len(text.(string))
		}
		t[fills] = strings.Repeat("f", room)
		return t
	}
	wide := amqp.Table{"x-mark": mark}
	for i := range entries {
		wide[fmt.Sprintf("x-%04d", i)] = strings.Repeat("w", 20)
	}
	return []OddHeaders{
		{"one entry fills the frame", fill(amqp.Table{"x-mark": mark})},
		{"many entries fill the frame", fill(wide)},
		{"8,192 entries", many(8191, mark)},
	}
}

// nested is what so many wraps make of a text.
func nested(depth int, wrap func(any) any) (value any) {
	value = "the bottom"
	for range depth {
		value = wrap(value)
	}
	return value
}

// many is so many entries without a value, each with a name of its own, and the mark.
func many(n int, mark string) amqp.Table {
	t := amqp.Table{"x-mark": mark}
	for i := range n {
		t[fmt.Sprintf("x-%04d", i)] = nil
	}
	return t
}
