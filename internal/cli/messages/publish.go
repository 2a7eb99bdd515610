// Package messages has the commands that send messages or try one: publish, move, handler try. It must not know rows.
package messages

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/internal/cli/command"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/screen"
	"github.com/rollbackd/rollbackd/internal/strictjson"
	"github.com/rollbackd/rollbackd/internal/wire"
)

const (
	// publishWindow is how many messages wait for their confirmation together.
	publishWindow = 500
	// maxLetterLine is the longest line of an export.
	maxLetterLine = 2 << 20
	// maxBadLines is how many bad lines are shown one by one.
	maxBadLines = 20
)

// Commands are those of this folder.
var Commands = []command.Command{
	publishCommand, moveCommand,
	{Use: "handler", Short: "Try the statements of ROLLBACKD_SQL_FILE", Of: []command.Command{handlerTryCommand}},
}

var publishCommand = command.Command{
	Use:   "publish [FILE|-]",
	Short: "Publish messages from a file or stdin, a JSON body per line",
	Long: `Publish each line of FILE, or of the standard input, as the body of one message: to the exchange
ROLLBACKD_EXCHANGE with the first of ROLLBACKD_ROUTING_KEYS, persistent, confirmed, and only if a queue takes it. Empty
lines are left out. If that routing key is a pattern, --tag must say what tag the producers' messages have.

A line that the daemon could not read as JSON, that is too large, or lacks the field that --key-field names is reported
with its number and left out; the exit code is then 1. So it is when RabbitMQ does not take a message: the lines from
there on are not published, and publishing the file again is safe, because the daemon knows the messages by their
keys.`,
	Example: `  echo '{"order_sn":"20261121-0001"}' | PROGRAM publish --key-field order_sn`,
	Args:    cobra.MaximumNArgs(1),
	Forms:   command.NoForm,
	Flags: func(f *command.Flags) command.Work {
		field := f.String("key-field", "", "field of the body whose value becomes the message_id, by default the "+
			"message's key (default: none, so that the key is the body's hash)")
		letters := f.Bool("letters", false, "FILE is an export of dead letters: put each on the main queue "+
			"ROLLBACKD_QUEUE with its headers, as if it were moved by hand")
		tag := f.Tag("the message's tag, as its AMQP type (default: none, so that the tag is the routing key)")
		return func(ctx context.Context, c *command.Call) error {
			from, err := c.Input(f.Arg(0), "the messages")
			if err != nil {
				return err
			}
			if *letters && (*field != "" || *tag != "") {
				return command.Usagef("--letters says key and tag: without --key-field and --tag")
			}
			cfg := c.Config
			p := &publishing{c: c, tag: *tag, to: rabbit.NewPublisher(c.Rabbit()), longest: strictjson.MaxBytes}
			p.make, p.where = p.message, fmt.Sprintf("to exchange %q with routing key %q", cfg.Exchange, cfg.RoutingKeys[0])
			switch {
			case *letters:
				p.make, p.where, p.longest = p.letter, fmt.Sprintf("to queue %q", cfg.Queue), maxLetterLine
			case cfg.RoutingKey() == "" && *tag == "":
				return command.Usagef("the first of ROLLBACKD_ROUTING_KEYS is a pattern, which would be the messages' tag: " +
					"say --tag, or put the key first that producers publish with")
			case *field != "":
				pointer := strings.NewReplacer("~", "~0", "/", "~1").Replace(*field)
				if p.field, err = wire.ParseKeySources("json:/" + pointer); err != nil {
					return command.Usagef("--key-field %q: %w", *field, err)
				}
			}
			return p.run(ctx, from)
		}
	},
}

// publishing is one run of the command.
type publishing struct {
	c     *command.Call
	field []wire.KeySource // where the key stands; none: no key
	tag   string
	to    *rabbit.Publisher

	make    func(line []byte) (rabbit.Publishing, error)
	where   string // they go, in words
	longest int    // bytes of a line

	batch     []rabbit.Publishing
	lines     []int // of the batch
	published int
	bad       int
}

// run publishes window by window, and says in the end how many.
func (p *publishing) run(ctx context.Context, from io.Reader) (err error) {
	defer func() {
		p.c.Progress.End()
		err = errors.Join(err, p.to.Close(context.WithoutCancel(ctx)))
		_, printErr := fmt.Fprintf(p.c.Stdout, "published %s %s\n", screen.Plural(p.published, "message"), p.where)
		if printErr != nil {
			err = errors.Join(err, fmt.Errorf("write the output: %w", printErr))
		}
	}()
	lines := bufio.NewReaderSize(from, p.longest+2)
	for number := 1; ; number++ {
		line, whole, err := readLine(lines)
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read line %d: %w", number, err)
		}
		line = bytes.TrimSpace(line)
		if !whole || len(line) > p.longest {
			p.reject(number, fmt.Errorf("is larger than %d bytes", p.longest))
		} else if len(line) > 0 {
			if msg, flaw := p.make(line); flaw != nil {
				p.reject(number, flaw)
			} else {
				p.batch, p.lines = append(p.batch, msg), append(p.lines, number)
			}
		}
		if len(p.batch) == publishWindow || err != nil {
			if err := p.flush(ctx); err != nil {
				return err
			}
		}
		if err != nil {
			break
		}
	}
	if p.bad > 0 {
		return fmt.Errorf("lines that were not published: %d", p.bad)
	}
	return nil
}

// readLine reads one line; whole is false when it is larger than any body may be. io.EOF comes with the
// last line.
func readLine(r *bufio.Reader) (line []byte, whole bool, err error) {
	part, err := r.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return bytes.Clone(part), true, err
	}
	for errors.Is(err, bufio.ErrBufferFull) {
		_, err = r.ReadSlice('\n')
	}
	return nil, false, err
}

// message makes a message of a body, or says what is wrong with it.
func (p *publishing) message(body []byte) (to rabbit.Publishing, err error) {
	cfg := p.c.Config
	if err := strictjson.Check(body); err != nil {
		return to, fmt.Errorf("is not JSON: %w", err)
	}
	to = rabbit.Publishing{Exchange: cfg.Exchange, Key: cfg.RoutingKeys[0], Message: rabbit.Message{
		Body: body, ContentType: "application/json", Type: p.tag, DeliveryMode: rabbit.Persistent,
		Headers: rabbit.Table{wire.HeaderPublishedAt: time.Now().UnixMilli()},
	}}
	if p.field == nil {
		return to, nil
	}
	id, err := wire.Identify(cfg.Group, p.field, cfg.Queue,
		rabbit.Delivery{Message: rabbit.Message{Body: body, Type: "any"}})
	if filed, ok := errors.AsType[*wire.FiledError](err); ok {
		return to, errors.New("has no usable key: " + filed.Why)
	}
	to.Message.MessageID = id.Identity.Key
	return to, nil
}

// letter makes a message of a line of an export, or says what is wrong with it.
func (p *publishing) letter(line []byte) (to rabbit.Publishing, err error) {
	ln, err := deadletter.ParseLine(line)
	if err != nil {
		return to, err
	}
	if ln.BodyCut {
		return to, errors.New("has only a part of the body: the log cut it")
	}
	m, err := wire.Exported(ln.Properties, ln.Headers, ln.Body)
	if err != nil {
		return to, fmt.Errorf("cannot be made a message: %w", err)
	}
	m.DeliveryMode = rabbit.Persistent
	return rabbit.Publishing{Key: p.c.Config.Queue, Message: m.Message}, nil
}

func (p *publishing) reject(line int, why error) {
	p.bad++
	if p.bad <= maxBadLines {
		p.c.Say("line %d %v", line, why)
	}
	if p.bad == maxBadLines {
		p.c.Say("further bad lines are only counted")
	}
}

// flush publishes the window. A message that can never be sent is a bad line; anything else ends the run, as the next
// messages would meet it too.
func (p *publishing) flush(ctx context.Context) error {
	var failure error
	for i, err := range p.to.Publish(ctx, p.batch) {
		switch {
		case err == nil:
			p.published++
		case errors.Is(err, rabbit.ErrUnsendable):
			p.reject(p.lines[i], err)
		case failure == nil:
			failure = fmt.Errorf("line %d was not published, nor was what follows it: %w", p.lines[i], err)
		}
	}
	p.c.Progress.Draw(fmt.Sprintf("published %d messages", p.published), 0, 0)
	p.batch, p.lines = p.batch[:0], p.lines[:0]
	return p.c.OfRabbit(failure)
}
