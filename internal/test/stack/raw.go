package stack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rollbackd/rollbackd/internal/test/must"
)

// RawMessage is a message whose headers are written as they are. It is persistent and mandatory.
type RawMessage struct {
	Exchange, Key   string
	MessageID, Type string // not sent when empty
	CorrelationID   string // likewise
	Headers         []byte // the entries of the table as they stand on the wire, without the table's length
	Body            []byte
}

// RawPublisher publishes what no client library would write: it puts the headers in the place of those that one has
// written. It is for one goroutine.
type RawPublisher struct {
	conn    *amqp.Connection
	channel *amqp.Channel
	returns chan amqp.Return
	headers atomic.Pointer[[]byte] // of the message that is written next; nil: nothing is replaced
}

const frameExtra = 8 // bytes of a frame besides its payload: seven before it

// DialRaw connects to an amqp URL. Whoever called it must call [RawPublisher.Close].
func DialRaw(ctx context.Context, target string) (p *RawPublisher, err error) {
	p = &RawPublisher{}
	p.conn, err = amqp.DialConfig(target, amqp.Config{Dial: func(network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return &rawConn{conn, p}, err
	}})
	if err != nil {
		return nil, fmt.Errorf("dial raw: %w", err)
	}
	if p.channel, err = p.conn.Channel(); err == nil {
		err = p.channel.Confirm(false)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("dial raw: %w", err), p.conn.Close())
	}
	p.returns = p.channel.NotifyReturn(make(chan amqp.Return, 1))
	return p, nil
}

// rawConn replaces headers on their way.
type rawConn struct {
	net.Conn
	p *RawPublisher
}

// Write gets the frames of a message's method and header in one piece.
func (c *rawConn) Write(piece []byte) (int, error) {
	headers := c.p.headers.Swap(nil)
	if headers == nil {
		return c.Conn.Write(piece)
	}
	size := func(frame []byte) int { return int(binary.BigEndian.Uint32(frame[3:])) }
	method, rest := piece[:frameExtra+size(piece)], piece[frameExtra+size(piece):]
	const beforeTable = 14 // bytes of a header's payload: class, weight, size and flags; there are no properties before
	payload, rest := rest[frameExtra-1:frameExtra-1+size(rest)], rest[frameExtra-1+size(rest):]
	table := 4 + int(binary.BigEndian.Uint32(payload[beforeTable:]))
	payload = slices.Concat(payload[:beforeTable], longText(nil, string(*headers)), payload[beforeTable+table:])
	header := binary.BigEndian.AppendUint32(slices.Clone(piece[len(method):len(method)+3]), uint32(len(payload)))
	if _, err := c.Conn.Write(slices.Concat(method, header, payload, rest)); err != nil {
		return 0, err
	}
	return len(piece), nil
}

// FrameMax is how many bytes of headers and other properties a frame holds.
func (p *RawPublisher) FrameMax() int { return p.conn.Config.FrameSize - frameExtra }

// Publish publishes m and waits until the broker has confirmed that it is in a queue.
func (p *RawPublisher) Publish(m RawMessage) error {
	p.headers.Store(&m.Headers)
	return publishConfirmed(p.channel, p.returns, m.Exchange, m.Key, amqp.Publishing{
		Headers: amqp.Table{"replaced": nil}, DeliveryMode: amqp.Persistent, CorrelationId: m.CorrelationID,
		MessageId: m.MessageID, Type: m.Type, Body: m.Body,
	})
}

// publishConfirmed publishes on a channel that confirms, and waits until the broker has taken the message; a return
// comes before its confirm.
func publishConfirmed(ch *amqp.Channel, returns <-chan amqp.Return, exchange, key string, m amqp.Publishing) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return must.Catch(func() {
		const mandatory = true
		confirm := must.Get(ch.PublishWithDeferredConfirmWithContext(ctx, exchange, key, mandatory, false, m))
		if acked := must.Get(confirm.WaitContext(ctx)); !acked {
			must.OK(errors.New("the broker refused it (nack)"))
		}
		select {
		case r := <-returns:
			must.OK(fmt.Errorf("it came back: %d %s", r.ReplyCode, r.ReplyText))
		default:
		}
	})
}

// Close hangs up: everything that was published is confirmed.
func (p *RawPublisher) Close() error { return p.conn.Close() }

func shortText(out []byte, text string) []byte {
	return append(append(out, byte(len(text))), text...)
}

func longText(out []byte, text string) []byte {
	return append(binary.BigEndian.AppendUint32(out, uint32(len(text))), text...)
}
