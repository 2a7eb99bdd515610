package rabbit

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// FuzzWalker holds, for any content header between two whole messages: no panic; what the walker hands on of a message
// the client reads, so that the message behind it arrives; and what the client would have read by itself arrives as it
// was.
func FuzzWalker(f *testing.F) {
	header := func(flags uint16, properties ...byte) []byte {
		h := binary.BigEndian.AppendUint64([]byte{0, 60, 0, 0}, 1) // a body of one byte
		return append(binary.BigEndian.AppendUint16(h, flags), properties...)
	}
	table := func(entries []byte) []byte {
		return append(binary.BigEndian.AppendUint32(nil, uint32(len(entries))), entries...)
	}
	deep := []byte{}
	for range 41 {
		deep = append([]byte("\x01nF"), table(deep)...)
	}
	one := append([]byte{'F'}, table([]byte("\x05countl\x00\x00\x00\x00\x00\x00\x00\x01"))...)
	death := append([]byte("\x07x-deathA"), table(append(append(one, 'F'), table(deep)...))...)
	for _, entries := range [][]byte{
		nil, deep, death, append([]byte("\x10x-delivery-countl\x00\x00\x00\x00\x00\x00\x00\x07"), deep...),
		bytes.Repeat([]byte("\x00V"), 9000), []byte("\x01aA\x00\x00\x00\x03t"), []byte("\x01kL"),
		append(many(8192), count...), append(many(8193), count...), append(many(8190), died...), []byte(count + died),
		append([]byte("\x04fillS\x00\x01\xff\xc6"+strings.Repeat("f", 0x1ffc6)), count+died...),
	} {
		f.Add(header(1<<13|1<<7, append(table(entries), "\x02id"...)...))
	}
	f.Add(header(1<<15|1<<7, []byte("\xffno text")...))
	f.Add(header(1 << 13))
	f.Add([]byte{0, 60})
	f.Fuzz(func(t *testing.T, payload []byte) {
		if len(payload) < headerFixedBytes {
			return // the framing itself is broken: the client's business
		}
		// The body that follows is of one byte, whatever the header says.
		binary.BigEndian.PutUint16(payload, 60)
		binary.BigEndian.PutUint64(payload[4:], 1)
		message := append(delivery(1), frame(frameOfHeader, 1, payload)...)
		message = append(message, frame(3, 1, []byte("x"))...)
		next := append(delivery(2), frame(frameOfHeader, 1, header(0))...)
		next = append(next, frame(3, 1, []byte("y"))...)

		var alone *amqp.Delivery
		if read := deliver(t, message, 1, nil); len(read) == 1 {
			alone = &read[0]
		}
		l := &ledger{}
		read := deliver(t, append(message, next...), 2, l)
		require.That(t, len(read) == 2 && string(read[0].Body) == "x" && string(read[1].Body) == "y",
			"the client did not read what the walker handed on: %v", read)
		got, headers := read[0], l.take(1).headers
		mark, marked := ReadUnreadable(headers)
		id := string(property(payload, 1<<7, 1))
		switch {
		case alone == nil && !marked && addedBytes(property(payload, flagHeaders, 4)) == 0:
			t.Fatal("it is read now, nothing says that the client would not, and RabbitMQ has added nothing")
		case alone != nil && marked && mark.Why != endsEarly && len(payload) < largestFrame-frameOverhead:
			// the client alone reads some arrays that are cut off, which no message from RabbitMQ has
			t.Fatalf("the client would read what is marked: %v", mark)
		case alone != nil && !marked && (alone.MessageId != got.MessageId ||
			fmt.Sprintf("%#v", alone.Headers) != fmt.Sprintf("%#v", headers)):
			t.Fatalf("%+v became %+v, %#v", alone, got, headers)
		case alone == nil && !mark.Lost && id != got.MessageId:
			t.Fatalf("message_id %q became %q", id, got.MessageId)
		}
	})
}

// Given frames that come in two pieces, wherever they are cut, when the client reads all that is there each time, then
// it gets every byte as it was. The name of the consumer is one that looks like the beginning of a content header
// wherever it is read.
func TestFramesThatComeInPiecesGoByAsTheyAre(t *testing.T) {
	t.Parallel()
	name := strings.Repeat("\x02", 60)
	method := append([]byte{0, 60, 0, 60, byte(len(name))}, name...)
	method = append(method, make([]byte, 8+1+2)...) // the tag, not redelivered, no exchange and no route
	var stream []byte
	for beats := range 6 { // so that frames begin in many places
		stream = append(stream, bytes.Repeat(frame(8, 0, nil), beats)...)
		stream = append(stream, frame(frameOfMethod, 1, method)...)
	}
	for cut := range stream {
		w := newWalker(io.MultiReader(bytes.NewReader(stream[:cut]), bytes.NewReader(stream[cut:])))
		full := &ledger{budget: NewBudget(1, 1)}
		full.admit(1, 1<<20)
		w.watch(name, full)
		got := readAll(t, w, 4096)
		require.That(t, bytes.Equal(got, stream), "cut at %d: the client reads %x, want %x", cut, got, stream)
	}
}

// many is so many headers without values.
func many(n int) (entries []byte) {
	for i := range n {
		entries = append(entries, fmt.Sprintf("\x04%04dV", i)...)
	}
	return entries
}

// Headers of the broker, with values of every type.
const (
	count = "\x10x-delivery-countl\x00\x00\x00\x00\x00\x00\x00\x07"
	died  = "\x07x-deathA\x00\x00\x00\x21t\x01B\x02b\xffs\xff\xffu\xff\xffI\x00\x00\x00\x01i\xff\xff\xff\xff" +
		"f\x3f\x80\x00\x00VS\x00\x00\x00\x00" + "\x11x-last-death-timeT\x00\x00\x00\x00\x00\x00\x00\x09" +
		"\x12x-last-death-queueF\x00\x00\x00\x1c\x01xx\x00\x00\x00\x02ab" +
		"\x01dd\x3f\xf0\x00\x00\x00\x00\x00\x00\x01DD\x02\x00\x00\x00\x03"
)

// Given a header with as many entries as the client reads and those of the broker, then all are read, with the values
// that the client would have read; and with one too many of the others, or more bytes of them than a frame has, none.
func TestWhatTheBrokerAddsIsReadBesideWhatFillsAFrame(t *testing.T) {
	t.Parallel()
	of := func(entries []byte) []byte {
		h := binary.BigEndian.AppendUint16([]byte{0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, 1<<15|1<<13|1<<7)
		h = binary.BigEndian.AppendUint32(append(h, "\x04text"...), uint32(len(entries)))
		f := frame(frameOfHeader, 1, append(append(h, entries...), "\x02id"...))
		return f[:len(f)-frameEndBytes]
	}
	const all = maxElements + 4
	want := Table{
		"x-delivery-count": int64(7),
		"x-death": []any{
			true, byte(2), int8(-1), int16(-1), uint16(math.MaxUint16), int32(1), uint32(math.MaxUint32), float32(1), nil, "",
		},
		"x-last-death-time":  time.Unix(9, 0),
		"x-last-death-queue": Table{"x": []byte("ab"), "d": 1.0, "D": Decimal{Scale: 2, Value: 3}},
	}
	light, headers, _ := cutHeaders(of(append(many(maxElements), count+died...)), largestFrame, nil)
	require.That(t, len(headers) == all && bytes.HasSuffix(light, []byte("\x04text\x02id")),
		"%d headers are read, want %d, beside %q", len(headers), all, light)
	for name, v := range want {
		assert.That(t, reflect.DeepEqual(headers[name], v), "%s: %#v, want %#v", name, headers[name], v)
	}
	for why, tt := range map[string]struct {
		entries  []byte
		frameMax int
	}{
		"":       {append(many(20), count+died...), 200},
		tooMany:  {append(many(maxElements+1), count...), largestFrame},
		odd:      {append(many(maxElements), "\x07x-deathA\x00\x00\x00\x01q"...), largestFrame},
		tooLarge: {append(many(100), count...), 200},
	} {
		_, headers, asIs := cutHeaders(of(tt.entries), tt.frameMax, nil)
		if mark, _ := ReadUnreadable(headers); mark.Why != why || asIs {
			t.Errorf("%d bytes are read as %v (as they are: %v), want %q", len(tt.entries), mark, asIs, why)
		}
	}
}

// property is one of a payload that has it and cannot be anything else, without its length of so many bytes.
func property(payload []byte, want uint16, lengthBytes int) []byte {
	flags, rest := binary.BigEndian.Uint16(payload[headerFixedBytes-2:]), payload[headerFixedBytes:]
	for i, kind := range []byte(propertyKinds) {
		flag := uint16(1) << (15 - i)
		if flags&flag == 0 {
			continue
		}
		n := map[byte]int{'B': 1, 'T': 8}[kind]
		if kind == 'F' {
			n = sizedBytes(rest)
		} else if kind == 's' && len(rest) > 0 {
			n = 1 + int(rest[0])
		}
		if n == 0 || n > len(rest) {
			return nil
		}
		if flag == want {
			return rest[lengthBytes:n]
		}
		rest = rest[n:]
	}
	return nil
}

func frame(typ byte, channel uint16, payload []byte) []byte {
	f := binary.BigEndian.AppendUint16([]byte{typ}, channel)
	f = binary.BigEndian.AppendUint32(f, uint32(len(payload)))
	return append(append(f, payload...), 0xCE)
}

func delivery(tag byte) []byte {
	head := "\x00\x3c\x00\x3c\x01c\x00\x00\x00\x00\x00\x00\x00"
	return frame(frameOfMethod, 1, []byte(head+string(rune(tag))+"\x00\x00\x01q"))
}

// deliver gives the bytes to a client, through a walker that watches its consumer if l is not nil, and returns the
// messages that it reads, at most so many.
func deliver(t *testing.T, messages []byte, most int, l *ledger) (read []amqp.Delivery) {
	t.Helper()
	out, said := io.Pipe()
	b := &scriptedBroker{out, said, messages}
	var rwc io.ReadWriteCloser = b
	if l != nil {
		w := newWalker(b)
		w.agreed(largestFrame)
		require.That(t, w.watch("c", l), "the consumer tag is taken")
		rwc = struct {
			io.Reader
			io.WriteCloser
		}{w, b}
	}
	login := []amqp.Authentication{&amqp.PlainAuth{}}
	conn := require.Get(amqp.Open(rwc, amqp.Config{SASL: login, Vhost: "/", FrameSize: largestFrame}))(t)
	ch := require.Get(conn.Channel())(t)
	in := require.Get(ch.Consume("q", "c", true, false, false, false, nil))(t)
	for d := range in { // ends when the client gives the connection up
		if read = append(read, d); len(read) == most {
			break
		}
	}
	_ = b.Close()
	return read
}

// scriptedBroker answers what a client asks until it consumes; then come the messages.
type scriptedBroker struct {
	io.Reader
	said     *io.PipeWriter
	messages []byte
}

var answers = map[string]string{
	"AMQP":             "\x00\x0a\x00\x0a\x00\x09\x00\x00\x00\x00\x00\x00\x00\x05PLAIN\x00\x00\x00\x05en_US",
	"\x00\x0a\x00\x0b": "\x00\x0a\x00\x1e\x00\x00\x00\x02\x00\x00\x00\x00", // start-ok: tune, 131072 bytes
	"\x00\x0a\x00\x28": "\x00\x0a\x00\x29\x00",                             // open: open-ok
	"\x00\x14\x00\x0a": "\x00\x14\x00\x0b\x00\x00\x00\x00",                 // channel.open: open-ok
	"\x00\x3c\x00\x14": "\x00\x3c\x00\x15\x01c",                            // consume: consume-ok
}

// Write takes the protocol's header or one frame, as the client writes them.
func (b *scriptedBroker) Write(p []byte) (int, error) {
	what, channel := string(p[:4]), uint16(0)
	if what != "AMQP" {
		what, channel = string(p[frameHeadBytes:frameHeadBytes+4]), binary.BigEndian.Uint16(p[1:])
	}
	if answer, ok := answers[what]; ok {
		say := frame(frameOfMethod, channel, []byte(answer))
		if what == "\x00\x3c\x00\x14" {
			say = append(say, b.messages...)
		}
		go b.said.Write(say) // the client, which waits for it, reads while it writes nothing
	}
	return len(p), nil
}

func (b *scriptedBroker) Close() error { return b.said.Close() }
