package rabbit

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rollbackd/rollbackd/internal/certs"
)

// Config says how to reach RabbitMQ. A zero duration takes the default named at its field.
type Config struct {
	// URLs are tried one after the other, beginning at a random one. A heartbeat in a URL overrides Heartbeat.
	URLs []string
	// Current, if set, gives the URLs before each connection in place of URLs: their passwords may have changed.
	Current func() []string
	// Name is shown beside the connection on the management page: see ConnectionName.
	Name string
	// Heartbeat, in whole seconds: a broker that is silent for one and a half of it is given up. 10s.
	Heartbeat time.Duration
	// DialTimeout bounds one attempt at one URL, and any single question to the broker (open, declare, consume). 10s.
	DialTimeout time.Duration
	// ConfirmTimeout bounds how long a publish may go without any progress: a confirmation, or bytes taken by the broker.
	// 10s.
	ConfirmTimeout time.Duration
	// Budget, if set, bounds what the subscriptions of this and other connections have in hand.
	Budget *Budget
	// Certs makes what amqps URLs need of their files, and keeps it from one connection to the next; nil reads them each
	// time. TLS is used instead when the URLs name none.
	Certs *certs.Store
	TLS   *tls.Config
	// CloseTimeout bounds an orderly farewell; after it the socket is closed. 3s.
	CloseTimeout time.Duration
	// Opened, if set, is called for each connection that stands.
	Opened func()
}

func (c Config) withDefaults() Config {
	c.Heartbeat = cmp.Or(c.Heartbeat, 10*time.Second)
	c.DialTimeout = cmp.Or(c.DialTimeout, 10*time.Second)
	c.ConfirmTimeout = cmp.Or(c.ConfirmTimeout, 10*time.Second)
	c.CloseTimeout = cmp.Or(c.CloseTimeout, 3*time.Second)
	return c
}

// ConnectionName is "rollbackd COMMAND host/pid", which an operator finds on the management page.
func ConnectionName(command string) string { return "rollbackd " + command + " " + process() }

// ConsumerTag is "host/pid/lane", shown beside the consumer on the management page.
func ConsumerTag(lane int) string { return fmt.Sprintf("%s/%d", process(), lane) }

func process() string {
	host, _ := os.Hostname()
	return fmt.Sprintf("%s/%d", cmp.Or(host, "unknown"), os.Getpid())
}

// Conn is one connection to RabbitMQ. It is safe for many goroutines, dies once, and is never reopened.
type Conn struct {
	amqp   *amqp.Connection
	socket *socket
	cfg    Config
	to     endpoint

	life    context.Context // ends with the connection, and says why
	over    context.CancelCauseFunc
	blocked atomic.Pointer[string] // why the broker does not read what we publish, or nil
}

// Dial connects to the first URL that answers, beginning at a random one so that a fleet spreads over a cluster.
// The error names every address that was tried and why it failed, never a password.
func Dial(ctx context.Context, cfg Config) (*Conn, error) {
	cfg = cfg.withDefaults()
	if cfg.Current != nil {
		cfg.URLs = cfg.Current()
	}
	endpoints, err := cfg.endpoints()
	if err != nil {
		return nil, err
	}
	var errs []error
	first := rand.IntN(len(endpoints))
	for i := range endpoints {
		e := endpoints[(first+i)%len(endpoints)]
		c, err := dialOne(ctx, cfg, e)
		if err == nil {
			if cfg.Opened != nil {
				cfg.Opened()
			}
			return c, nil
		}
		errs = append(errs, fmt.Errorf("connect to RabbitMQ at %s: %w", e.where, err))
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(errs...)
}

// endpoints reads the URLs, and refuses a TLS that is not used, or not alone.
func (c Config) endpoints() (all []endpoint, _ error) {
	if len(c.URLs) == 0 {
		return nil, errors.New("no AMQP URL given; expected " + urlExample)
	}
	for i, raw := range c.URLs {
		e, err := parseURL(raw)
		switch {
		case err != nil:
			return nil, fmt.Errorf("AMQP URL %d of %d %w", i+1, len(c.URLs), err)
		case c.TLS != nil && !e.encrypted():
			return nil, errors.New("a TLS configuration is given, and an AMQP URL begins with amqp://, which is not " +
				"encrypted: write amqps://")
		case c.TLS != nil && e.tls != (certs.TLS{}):
			return nil, errors.New("a TLS configuration is given, and an AMQP URL names certificates or a server name too: " +
				"keep one")
		}
		all = append(all, e)
	}
	return all, nil
}

// CheckTLS reads the certificates that the URLs name, so that what is wrong with them is known before anybody connects.
func (c Config) CheckTLS() error {
	endpoints, err := c.endpoints()
	for _, e := range endpoints {
		if err == nil && e.encrypted() && c.TLS == nil {
			if _, err = c.Certs.Config(e.tls); err != nil {
				err = fmt.Errorf("RabbitMQ at %s: %w", e.where, err)
			}
		}
	}
	return err
}

func dialOne(ctx context.Context, cfg Config, e endpoint) (*Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.DialTimeout, fmt.Errorf("no answer in %v", cfg.DialTimeout))
	defer cancel()
	var sock *socket
	unwatch := func() bool { return true }
	client, err := amqp.DialConfig(e.withoutTLS(), amqp.Config{
		Locale:    "en_US",
		Heartbeat: cfg.Heartbeat,
		Properties: Table{
			"product": "rollbackd", "platform": "Go", "connection_name": cfg.Name,
		},
		Recovery: nil, // in-place recovery restarts delivery tags: a late ack would delete another message
		Dial: func(network, _ string) (net.Conn, error) {
			var err error
			if sock, err = connect(ctx, network, e, cfg); err != nil {
				return nil, err
			}
			unwatch = context.AfterFunc(ctx, sock.abort)
			return sock, nil
		},
	})
	if !unwatch() || err != nil {
		if sock != nil {
			sock.abort() // the client leaves the socket open after some failed handshakes
		}
		if sock != nil && sock.tls != nil && sock.tls.Failed() != nil {
			return nil, sock.tls.Failed() // the broker hung up on the certificates before it said a word
		}
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
		return nil, translate(err)
	}
	sock.frames.agreed(client.Config.FrameSize)
	c := &Conn{amqp: client, socket: sock, cfg: cfg, to: e}
	c.life, c.over = context.WithCancelCause(context.Background())
	closes := client.NotifyClose(make(chan *amqp.Error, 1))
	blocks := client.NotifyBlocked(make(chan amqp.Blocking, 8))
	go c.watchEnd(closes, blocks)
	return c, nil
}

// watchEnd notes why the connection ended and whether the broker blocks publishers. The client closes both channels at
// the end.
func (c *Conn) watchEnd(closes <-chan *amqp.Error, blocks <-chan amqp.Blocking) {
	for {
		select {
		case b, ok := <-blocks:
			if !ok {
				blocks = nil
				continue
			}
			if !b.Active {
				b.Reason = ""
			}
			c.blocked.Store(&b.Reason)
		case e, ok := <-closes:
			if ok {
				c.over(translate(e))
			} else {
				c.over(ErrClosed)
			}
			return
		}
	}
}

// Done is closed when the connection is over, for whatever reason; Err then says why.
func (c *Conn) Done() <-chan struct{} { return c.life.Done() }

// Err says why the connection ended; nil while it lives.
func (c *Conn) Err() error { return context.Cause(c.life) }

// Blocked says why the broker has stopped reading what is published ("low on memory"), or "" if it has not.
func (c *Conn) Blocked() string {
	if why := c.blocked.Load(); why != nil {
		return *why
	}
	return ""
}

// Where names the broker: host:port/vhost.
func (c *Conn) Where() string { return c.to.where }

// ServerVersion is what the broker says of itself, for example "3.10.8"; "" if it does not say.
func (c *Conn) ServerVersion() string {
	version, _ := c.amqp.Properties["version"].(string)
	return version
}

// Close says goodbye, within CloseTimeout, and waits for the connection's goroutines. Everything unacked goes back to
// its queue. Closing twice is harmless.
func (c *Conn) Close() error {
	late := time.AfterFunc(c.cfg.CloseTimeout, c.socket.abort)
	defer late.Stop()
	err := c.amqp.CloseDeadline(time.Now().Add(c.cfg.CloseTimeout))
	c.socket.abort()
	<-c.Done()
	if err == nil || errors.Is(err, amqp.ErrClosed) {
		return nil
	}
	return fmt.Errorf("close the connection to RabbitMQ at %s: %w", c.to.where, translate(err))
}

// ask runs one question to the broker. The client waits for an answer without any bound, so when ctx or DialTimeout
// ends first, the whole connection is given up: its state is unknown then.
func (c *Conn) ask(ctx context.Context, what string, f func() error) error {
	return c.askWithin(ctx, c.cfg.DialTimeout, what, f)
}

func (c *Conn) askWithin(ctx context.Context, bound time.Duration, what string, f func() error) error {
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	silence := fmt.Errorf("RabbitMQ at %s gave no answer in %v", c.to.where, bound)
	ctx, cancel := context.WithTimeoutCause(ctx, bound, silence)
	defer cancel()
	unwatch := context.AfterFunc(ctx, c.socket.abort)
	err := f()
	if !unwatch() {
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, translateOpen(err))
	}
	return nil
}

// openChannel opens a channel for f to set up. One on which f fails is closed.
func (c *Conn) openChannel(ctx context.Context, what string, f func(*amqp.Channel) error) error {
	return c.ask(ctx, what, func() error {
		ch, err := c.amqp.Channel()
		if err != nil {
			return err
		}
		if err := f(ch); err != nil {
			return errors.Join(err, ch.Close())
		}
		return nil
	})
}

// onChannel runs one question on a channel of its own, so that an error, which closes the channel, hurts nobody else.
func (c *Conn) onChannel(ctx context.Context, what string, f func(*amqp.Channel) error) error {
	return c.openChannel(ctx, what, func(ch *amqp.Channel) error {
		if err := f(ch); err != nil {
			return err
		}
		return ch.Close()
	})
}

// Depth counts the messages of a queue that are ready to be delivered (not the unacked ones), and its consumers.
func (c *Conn) Depth(ctx context.Context, queue string) (ready, consumers int, err error) {
	err = c.onChannel(ctx, fmt.Sprintf("look at queue %q", queue), func(ch *amqp.Channel) error {
		q, err := countsOf(queue)(ch)
		ready, consumers = q.Messages, q.Consumers
		return err
	})
	return ready, consumers, err
}

// Names for the client's positional booleans.
const (
	durable    = true
	autoDelete = true
	exclusive  = true
	noWait     = true
	autoAck    = true
	noLocal    = true
	mandatory  = true // an unroutable message must come back; the broker confirms it all the same
	immediate  = true // RabbitMQ refuses it
)

const urlExample = "amqp://USER:PASSWORD@HOST:5672/VHOST; in user, password and vhost write : / ? # [ ] @ % and " +
	"space percent-encoded, for example p%40ss for p@ss"

// TLSSetting begins the names of the settings for certificates.
const TLSSetting = "ROLLBACKD_AMQP_TLS"

// endpoint is one broker address. Only where may be shown: raw and uri hold the password.
type endpoint struct {
	raw   string
	uri   amqp.URI // the same, read
	where string   // host:port/vhost
	tls   certs.TLS
}

// encrypted reports whether TLS is spoken there.
func (e endpoint) encrypted() bool { return e.uri.Scheme == "amqps" }

// CheckURL says why RabbitMQ cannot be reached under this URL by its form alone, without ever quoting it.
func CheckURL(raw string) error {
	_, err := parseURL(raw)
	return err
}

// parseURL never passes on an error of net/url: those quote the URL, and after a wrong split the "port" is half a
// password.
func parseURL(raw string) (endpoint, error) {
	scheme, _, ok := strings.Cut(raw, "://")
	if !ok || scheme != "amqp" && scheme != "amqps" {
		return endpoint{}, errors.New("must start with amqp:// or amqps://, for example " + urlExample)
	}
	u, err := url.Parse(raw)
	if err != nil {
		return endpoint{}, errors.New("is not a valid URL; expected " + urlExample)
	}
	// A raw @ behind the host means that an unencoded / ? or # ended the password too early: what looks like a vhost is a
	// secret.
	if strings.Contains(u.EscapedPath()+u.RawQuery+u.EscapedFragment(), "@") || u.Fragment != "" {
		return endpoint{}, errors.New("has an unencoded character in its password or vhost; expected " + urlExample)
	}
	parsed, err := amqp.ParseURI(raw)
	if err != nil {
		return endpoint{}, errors.New("is not a valid AMQP URL (query parameters are heartbeat and connection_timeout " +
			"numbers, and certificate files); expected " + urlExample)
	}
	if parsed.Port < 1 || parsed.Port > 65535 {
		return endpoint{}, errors.New("has a port outside 1 to 65535")
	}
	where := net.JoinHostPort(parsed.Host, strconv.Itoa(parsed.Port)) + "/" + strings.TrimPrefix(parsed.Vhost, "/")
	e := endpoint{raw: raw, uri: parsed, where: where, tls: certs.TLS{
		CA: parsed.CACertFile, Cert: parsed.CertFile, Key: parsed.KeyFile, ServerName: parsed.ServerName,
	}}
	if e.tls != (certs.TLS{}) && !e.encrypted() {
		return endpoint{}, errors.New("names certificates, and what begins with amqp:// is not encrypted: write amqps://, " +
			"and the port for it, which is 5671 unless it is named")
	}
	if err := e.tls.Check(); err != nil {
		return endpoint{}, fmt.Errorf("names only one of certfile and keyfile: %w", err)
	}
	return e, nil
}

// tlsParameters are what RabbitMQ's clients call the parts of a [certs.TLS] in a URL.
var tlsParameters = certs.Names{"cacertfile", "certfile", "keyfile", "server_name_indication"}

// WithTLS writes certificates into a URL, where everybody who connects finds them. What the URL says already must be
// the same. The error completes a sentence about the settings, and quotes no secret.
func WithTLS(raw string, t certs.TLS) (string, error) {
	e, err := parseURL(raw)
	if err != nil || t == (certs.TLS{}) {
		return raw, err
	}
	if !e.encrypted() {
		return raw, errors.New("has no effect on a URL that begins with amqp://, which is not encrypted: write amqps:// in " +
			"ROLLBACKD_AMQP_URL, and the port for it")
	}
	return tlsParameters.Join(raw, certs.Query(raw), e.tls, t, TLSSetting, "ROLLBACKD_AMQP_URL")
}

// TLSOf is what the URL says of certificates; nothing if it is malformed.
func TLSOf(raw string) certs.TLS {
	e, _ := parseURL(raw)
	return e.tls
}

// Host is the URL's; empty if the URL is malformed.
func Host(raw string) string {
	e, _ := parseURL(raw)
	return e.uri.Host
}
