package rabbit

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
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
	} {
		f.Add(header(1<<13|1<<7, append(table(entries), "\x02id"...)...))
	}
	for _, entries := range [][]byte{
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
		if read := deliver(t, message, 1, false); len(read) == 1 {
			alone = &read[0]
		}
		read := deliver(t, append(message, next...), 2, true)
		if len(read) != 2 || string(read[0].Body) != "x" || string(read[1].Body) != "y" {
			t.Fatalf("the client did not read what the walker handed on: %v", read)
		}
		got := read[0]
		mark, marked := ReadUnreadable(got.Headers)
		whole := frame(frameOfHeader, 1, payload)
		light, aside := setAside(whole, largestFrame)
		switch {
		case light != nil && (len(light) >= len(whole) || len(aside) == 0):
			t.Fatalf("nothing was set aside: %v", aside)
		case light != nil && alone != nil:
			// What the client reads is the same as what it reads of the light one and what was set aside.
			rest := append(append(delivery(1), light...), frame(3, 1, []byte("x"))...)
			beside := deliver(t, rest, 1, false)
			if len(beside) != 1 {
				t.Fatal("the client does not read what is left")
			}
			maps.Copy(beside[0].Headers, aside)
			want, have := fmt.Sprintf("%#v", alone.Headers), fmt.Sprintf("%#v", beside[0].Headers)
			if want != have {
				t.Fatalf("%s became %s", want, have)
			}
		case alone == nil && !marked && light == nil:
			t.Fatal("the client reads it now, and nothing says that it did not before")
		case alone != nil && !marked && (alone.MessageId != got.MessageId || len(alone.Headers) != len(got.Headers)):
			t.Fatalf("%+v became %+v", alone, got)
		case alone == nil && !mark.Lost && wholeMessageID(payload) != got.MessageId:
			t.Fatalf("message_id %q became %q", wholeMessageID(payload), got.MessageId)
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
		var got []byte
		for p := make([]byte, 4096); ; {
			n, err := w.Read(p)
			got = append(got, p[:n]...)
			if err != nil {
				break
			}
		}
		if !bytes.Equal(got, stream) {
			t.Fatalf("cut at %d: the client reads %x, want %x", cut, got, stream)
		}
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

// Given a header with as many entries as the client reads and those of the broker, then these are set aside with the
// values that the client would have read; and without them, or with one too many of the others, nothing is.
func TestWhatTheBrokerAddsIsSetAside(t *testing.T) {
	t.Parallel()
	of := func(entries []byte) []byte {
		h := binary.BigEndian.AppendUint16([]byte{0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, 1<<15|1<<13|1<<7)
		h = binary.BigEndian.AppendUint32(append(h, "\x04text"...), uint32(len(entries)))
		return frame(frameOfHeader, 1, append(append(h, entries...), "\x02id"...))
	}
	light, aside := setAside(of(append(many(8192), count+died...)), largestFrame)
	if !bytes.Equal(light, of(many(8192))) {
		t.Error("the rest is not what it was")
	}
	want := Table{
		"x-delivery-count": int64(7),
		"x-death": []any{
			true, byte(2), int8(-1), int16(-1), uint16(math.MaxUint16), int32(1), uint32(math.MaxUint32), float32(1),
			nil, "",
		},
		"x-last-death-time":  time.Unix(9, 0),
		"x-last-death-queue": Table{"x": []byte("ab"), "d": 1.0, "D": Decimal{Scale: 2, Value: 3}},
	}
	if !reflect.DeepEqual(aside, want) {
		t.Errorf("%#v was set aside, want %#v", aside, want)
	}
	for _, entries := range [][]byte{
		many(8192), append(many(8193), count...), append(many(8192), "\x07x-deathA\x00\x00\x00\x01q"...),
	} {
		if light, aside := setAside(of(entries), largestFrame); light != nil || aside != nil {
			t.Errorf("%v was set aside", aside)
		}
	}
	if light, _ := setAside(of(append(many(100), count...)), 200); light != nil {
		t.Errorf("a frame of %d bytes is handed on, want at most 200", len(light))
	}
}

// wholeMessageID reads the property behind the table, without looking into it.
func wholeMessageID(payload []byte) string {
	flags, rest := binary.BigEndian.Uint16(payload[headerFixedBytes-2:]), payload[headerFixedBytes:]
	for _, p := range contentProperties {
		n := 0
		switch {
		case flags&p.flag == 0:
		case p.kind == 'F':
			n = 4 + length(rest)
		case p.kind == 's':
			n = 1 + int(rest[0])
		case p.kind == 'B':
			n = 1
		case p.kind == 'T':
			n = 8
		}
		if p.flag == 1<<7 && n > 0 {
			return string(rest[1:n])
		}
		rest = rest[n:]
	}
	return ""
}

func frame(typ byte, channel uint16, payload []byte) []byte {
	f := binary.BigEndian.AppendUint16([]byte{typ}, channel)
	f = binary.BigEndian.AppendUint32(f, uint32(len(payload)))
	return append(append(f, payload...), 0xCE)
}

func method(channel uint16, args string) []byte { return frame(1, channel, []byte(args)) }

func delivery(tag byte) []byte {
	return method(1, "\x00\x3c\x00\x3c\x01c\x00\x00\x00\x00\x00\x00\x00"+string(rune(tag))+"\x00\x00\x01q")
}

// deliver gives the bytes to a client, through a walker or not, and returns the messages that it reads, at most so
// many.
func deliver(t *testing.T, messages []byte, most int, walked bool) (read []amqp.Delivery) {
	return deliverWatched(t, messages, most, walked, nil)
}

// deliverWatched does so with what comes for the client's consumer weighed, if l is not nil.
func deliverWatched(t *testing.T, messages []byte, most int, walked bool, l *ledger) (read []amqp.Delivery) {
	t.Helper()
	b := &scriptedBroker{messages: messages, more: sync.NewCond(&sync.Mutex{})}
	var rwc io.ReadWriteCloser = b
	if walked {
		w := newWalker(b)
		w.agreed(largestFrame)
		if l != nil && !w.watch("c", l) {
			t.Fatal("the consumer tag is taken")
		}
		rwc = struct {
			io.Reader
			io.WriteCloser
		}{w, b}
	}
	login := []amqp.Authentication{&amqp.PlainAuth{}}
	conn, err := amqp.Open(rwc, amqp.Config{SASL: login, Vhost: "/", FrameSize: largestFrame})
	if err != nil {
		t.Fatal(err)
	}
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	in, err := ch.Consume("q", "c", true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	for d := range in { // ends when the client gives the connection up
		if read = append(read, d); len(read) == most {
			break
		}
	}
	_ = b.Close()
	return read
}

// scriptedBroker answers what a client asks until it consumes; then come the messages, and the connection ends.
type scriptedBroker struct {
	messages []byte
	asked    bytes.Buffer

	more *sync.Cond // guards what is below
	said bytes.Buffer
	over bool
}

var answers = map[string][]byte{
	"\x00\x0a\x00\x0b": method(0, "\x00\x0a\x00\x1e\x00\x00\x00\x02\x00\x00\x00\x00"), // start-ok: tune, 131072 bytes
	"\x00\x0a\x00\x28": method(0, "\x00\x0a\x00\x29\x00"),                             // open: open-ok
	"\x00\x14\x00\x0a": method(1, "\x00\x14\x00\x0b\x00\x00\x00\x00"),                 // channel.open: open-ok
	"\x00\x3c\x00\x14": method(1, "\x00\x3c\x00\x15\x01c"),                            // consume: consume-ok
}

func (b *scriptedBroker) Write(p []byte) (int, error) {
	b.more.L.Lock()
	defer b.more.L.Unlock()
	b.asked.Write(p)
	if bytes.HasPrefix(b.asked.Bytes(), []byte("AMQP")) && b.asked.Len() >= 8 {
		b.asked.Next(8)
		b.said.Write(method(0, "\x00\x0a\x00\x0a\x00\x09\x00\x00\x00\x00\x00\x00\x00\x05PLAIN\x00\x00\x00\x05en_US"))
	}
	for {
		asked := b.asked.Bytes()
		if len(asked) < frameOverhead || int64(len(asked)) < frameOverhead+payloadBytes(asked) {
			break
		}
		f := b.asked.Next(int(frameOverhead + payloadBytes(asked)))
		if f[0] != 1 {
			continue
		}
		what := string(f[frameHeadBytes : frameHeadBytes+4])
		b.said.Write(answers[what])
		if what == "\x00\x3c\x00\x14" {
			b.said.Write(b.messages)
		}
	}
	b.more.Broadcast()
	return len(p), nil
}

func (b *scriptedBroker) Read(p []byte) (int, error) {
	b.more.L.Lock()
	defer b.more.L.Unlock()
	for b.said.Len() == 0 && !b.over {
		b.more.Wait()
	}
	return b.said.Read(p)
}

func (b *scriptedBroker) Close() error {
	b.more.L.Lock()
	defer b.more.L.Unlock()
	b.over = true
	b.more.Broadcast()
	return nil
}

// BenchmarkWalker measures what the walker adds to a delivery: reading a stream of them as the client does, 4 KiB at a
// time.
func BenchmarkWalker(b *testing.B) {
	for _, body := range []int{120, 4 << 10, 256 << 10} {
		h := binary.BigEndian.AppendUint64([]byte{0, 60, 0, 0}, uint64(body))
		h = binary.BigEndian.AppendUint16(h, 1<<15|1<<13|1<<12|1<<7|1<<5)
		h = append(h, "\x10application/json\x00\x00\x00\x00"...)
		h = append(h, "\x0dx-message-keyS\x00\x00\x00\x07order-1\x11x-published-at-msl12345678"...)
		binary.BigEndian.PutUint32(h[headerFixedBytes+17:], uint32(len(h)-headerFixedBytes-17-4))
		h = append(h, "\x02\x0dorder-1234567\x0estock.rollback"...)
		if flaw := headerFlaw(h); flaw != "" {
			b.Fatal(flaw)
		}
		one := append(delivery(1), frame(frameOfHeader, 1, h)...)
		for left := body; left > 0; {
			n := min(left, largestFrame-frameOverhead)
			one = append(one, frame(3, 1, make([]byte, n))...)
			left -= n
		}
		for _, walked := range []bool{false, true} {
			name := map[bool]string{false: "plain", true: "walked"}[walked]
			b.Run(name+"/"+map[int]string{120: "120B", 4 << 10: "4KiB", 256 << 10: "256KiB"}[body], func(b *testing.B) {
				var in io.Reader = &repeated{one: one, left: b.N}
				if walked {
					w := newWalker(in)
					w.agreed(largestFrame)
					in = w
				}
				b.SetBytes(int64(len(one)))
				b.ReportAllocs()
				buf := make([]byte, 4096)
				for {
					if _, err := in.Read(buf); errors.Is(err, io.EOF) {
						return
					}
				}
			})
		}
	}
}

// repeated is the same bytes again and again.
type repeated struct {
	one  []byte
	at   int
	left int
}

func (r *repeated) Read(p []byte) (n int, err error) {
	for n < len(p) && r.left > 0 {
		took := copy(p[n:], r.one[r.at:])
		n, r.at = n+took, r.at+took
		if r.at == len(r.one) {
			r.at, r.left = 0, r.left-1
		}
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}
