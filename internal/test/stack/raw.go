package stack

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// RawMessage is a message whose headers are written as they are. It is persistent and mandatory.
type RawMessage struct {
	Exchange, Key   string
	MessageID, Type string // not sent when empty
	CorrelationID   string // likewise
	Headers         []byte // the entries of the table as they stand on the wire, without the table's length
	Body            []byte
}

// RawPublisher publishes what no client library would write. It speaks only as much AMQP as that takes, on one
// connection with one channel. It is for one goroutine.
type RawPublisher struct {
	conn     net.Conn
	in       *bufio.Reader
	frameMax int // bytes, as the broker says
}

// Frames and methods of AMQP 0-9-1: class times 1000 and the method's own number.
const (
	frameMethod = 1
	frameHeader = 2
	frameBody   = 3
	frameEnd    = 0xCE
	frameExtra  = 8 // bytes of a frame besides its payload

	connectionStart, connectionStartOk = 10_010, 10_011
	connectionTune, connectionTuneOk   = 10_030, 10_031
	connectionOpen, connectionOpenOk   = 10_040, 10_041
	connectionClose                    = 10_050
	channelOpen, channelOpenOk         = 20_010, 20_011
	channelClose                       = 20_040
	basicPublish, basicReturn          = 60_040, 60_050
	basicAck                           = 60_080
	confirmSelect, confirmSelectOk     = 85_010, 85_011

	rawTimeout = 10 * time.Second // for the handshake, and for each confirm
)

// DialRaw connects to an amqp URL. Whoever called it must call [RawPublisher.Close].
func DialRaw(ctx context.Context, target string) (*RawPublisher, error) {
	uri, err := amqp.ParseURI(target)
	if err != nil {
		return nil, fmt.Errorf("dial raw: %w", err)
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(uri.Host, fmt.Sprint(uri.Port)))
	if err != nil {
		return nil, fmt.Errorf("dial raw: %w", err)
	}
	p := &RawPublisher{conn: conn, in: bufio.NewReader(conn)}
	if err := p.shakeHands(uri); err != nil {
		return nil, errors.Join(fmt.Errorf("dial raw: %w", err), conn.Close())
	}
	return p, nil
}

func (p *RawPublisher) shakeHands(uri amqp.URI) error {
	if err := p.conn.SetDeadline(time.Now().Add(rawTimeout)); err != nil {
		return err
	}
	if _, err := p.conn.Write([]byte("AMQP\x00\x00\x09\x01")); err != nil {
		return err
	}
	if _, err := p.await(connectionStart); err != nil {
		return err
	}
	login := shortText(longText(nil, ""), "PLAIN") // no properties of ours
	login = longText(login, "\x00"+uri.Username+"\x00"+uri.Password)
	tune, err := p.ask(0, connectionStartOk, shortText(login, "en_US"), connectionTune)
	if err != nil {
		return err
	}
	if len(tune) < 8 {
		return fmt.Errorf("the broker's tune has %d bytes", len(tune))
	}
	p.frameMax = int(binary.BigEndian.Uint32(tune[2:]))
	if err := p.method(0, connectionTuneOk, append(tune[:6:6], 0, 0)); err != nil { // no heartbeats
		return err
	}
	if _, err := p.ask(0, connectionOpen, append(shortText(nil, uri.Vhost), 0, 0), connectionOpenOk); err != nil {
		return err
	}
	if _, err := p.ask(1, channelOpen, []byte{0}, channelOpenOk); err != nil {
		return err
	}
	_, err = p.ask(1, confirmSelect, []byte{0}, confirmSelectOk)
	return err
}

// FrameMax is how many bytes of headers and other properties a frame holds.
func (p *RawPublisher) FrameMax() int { return p.frameMax - frameExtra }

// Publish publishes m and waits until the broker has confirmed that it is in a queue.
func (p *RawPublisher) Publish(m RawMessage) error {
	if err := p.conn.SetDeadline(time.Now().Add(rawTimeout)); err != nil {
		return fmt.Errorf("publish raw: %w", err)
	}
	const mandatory = 1
	route := shortText(shortText([]byte{0, 0}, m.Exchange), m.Key)
	if err := p.method(1, basicPublish, append(route, mandatory)); err != nil {
		return fmt.Errorf("publish raw: %w", err)
	}
	if err := p.frame(frameHeader, 1, m.header()); err != nil {
		return fmt.Errorf("publish raw: %w", err)
	}
	for body := m.Body; len(body) > 0; {
		n := min(len(body), p.FrameMax())
		if err := p.frame(frameBody, 1, body[:n]); err != nil {
			return fmt.Errorf("publish raw: %w", err)
		}
		body = body[n:]
	}
	if _, err := p.await(basicAck); err != nil {
		return fmt.Errorf("publish raw: %w", err)
	}
	return nil
}

// header is the payload of the message's header frame.
func (m *RawMessage) header() []byte {
	const headers, deliveryMode, correlationID, messageID, typ = 1 << 13, 1 << 12, 1 << 10, 1 << 7, 1 << 5
	flags := uint16(headers | deliveryMode)
	out := []byte{0, 60, 0, 0}
	out = binary.BigEndian.AppendUint64(out, uint64(len(m.Body)))
	if m.CorrelationID != "" {
		flags |= correlationID
	}
	if m.MessageID != "" {
		flags |= messageID
	}
	if m.Type != "" {
		flags |= typ
	}
	out = binary.BigEndian.AppendUint16(out, flags)
	out = append(longText(out, string(m.Headers)), amqp.Persistent)
	if m.CorrelationID != "" {
		out = shortText(out, m.CorrelationID)
	}
	if m.MessageID != "" {
		out = shortText(out, m.MessageID)
	}
	if m.Type != "" {
		out = shortText(out, m.Type)
	}
	return out
}

// Close hangs up: everything that was published is confirmed.
func (p *RawPublisher) Close() error {
	if err := p.conn.Close(); err != nil {
		return fmt.Errorf("close raw: %w", err)
	}
	return nil
}

// ask sends a method and returns the arguments of the answer.
func (p *RawPublisher) ask(channel uint16, method int, arguments []byte, answer int) ([]byte, error) {
	if err := p.method(channel, method, arguments); err != nil {
		return nil, err
	}
	return p.await(answer)
}

func (p *RawPublisher) method(channel uint16, method int, arguments []byte) error {
	payload := binary.BigEndian.AppendUint16(nil, uint16(method/1000))
	payload = binary.BigEndian.AppendUint16(payload, uint16(method%1000))
	return p.frame(frameMethod, channel, append(payload, arguments...))
}

func (p *RawPublisher) frame(kind byte, channel uint16, payload []byte) error {
	out := binary.BigEndian.AppendUint16([]byte{kind}, channel)
	out = binary.BigEndian.AppendUint32(out, uint32(len(payload)))
	_, err := p.conn.Write(append(append(out, payload...), frameEnd))
	return err
}

// await reads until the broker sends this method, and returns its arguments. Whatever else it says is an error.
func (p *RawPublisher) await(method int) ([]byte, error) {
	var unroutable error
	for {
		var head [7]byte
		if _, err := io.ReadFull(p.in, head[:]); err != nil {
			return nil, fmt.Errorf("wait for method %d: %w", method, err)
		}
		size := binary.BigEndian.Uint32(head[3:])
		const most = 1 << 20 // of frames that are for a publisher
		if size > most {
			return nil, fmt.Errorf("the broker sent a frame of %d bytes", size)
		}
		payload := make([]byte, size+1) // and the frame's end
		if _, err := io.ReadFull(p.in, payload); err != nil {
			return nil, fmt.Errorf("wait for method %d: %w", method, err)
		}
		if head[0] != frameMethod || size < 4 {
			continue // a heartbeat, or the content of a message that was returned
		}
		got := int(binary.BigEndian.Uint16(payload))*1000 + int(binary.BigEndian.Uint16(payload[2:]))
		switch got {
		case method:
			return payload[4:size], unroutable
		case basicReturn: // the confirm follows
			unroutable = fmt.Errorf("the broker sent it back: %q", payload[4:size])
		case channelClose, connectionClose:
			return nil, fmt.Errorf("the broker answers with method %d: %q", got, payload[4:size])
		default:
			return nil, fmt.Errorf("the broker answers with method %d, want %d", got, method)
		}
	}
}

func shortText(out []byte, text string) []byte {
	return append(append(out, byte(len(text))), text...)
}

func longText(out []byte, text string) []byte {
	return append(binary.BigEndian.AppendUint32(out, uint32(len(text))), text...)
}
