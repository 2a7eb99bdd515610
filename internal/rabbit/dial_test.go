package rabbit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

const secret = "s3cr3t"

// Given URLs at which nobody listens, nobody answers, or the password is wrong, then a dial tries the next one, says of
// each what is wrong with it, without the password, and ends with its context.
func TestDialTriesTheNextURLAndSaysWhatIsWrongWithEach(t *testing.T) {
	t.Parallel()
	b := stack.AMQP(t)
	dead := "amqp://u:" + secret + "@127.0.0.1:1/vhost"
	l := require.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close() // the kernel's backlog takes the connections, and nobody says anything, as with a frozen broker
	mute := "amqp://u:" + secret + "@" + l.Addr().String() + "/"
	cfg := config(b.URL)
	cfg.URLs = []string{dead, b.URL, mute}
	cfg.DialTimeout = 2 * time.Second
	for range 5 { // the first one is chosen at random
		c := require.Get(rabbit.Dial(t.Context(), cfg))(t)
		assert.That(t, c.Where() == rabbit.Where(b.URL) && c.ServerVersion() != "", "connected to %s, version %q", c.Where(),
			c.ServerVersion())
		require.OK(t, c.Close())
		assert.OK(t, c.Close(), "second Close:")
		assert.Error(t, c.Err(), rabbit.ErrClosed, "Err after Close")
	}
	cfg.URLs = []string{dead, mute}
	_, err := rabbit.Dial(t.Context(), cfg)
	saysWithoutSecret(t, err, "127.0.0.1:1/vhost", "no answer in 2s")
	cause := errors.New("time to stop")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, cause)
	defer cancel()
	_, err = rabbit.Dial(ctx, cfg)
	assert.Error(t, err, cause, "Dial")
	u := require.Get(url.Parse(b.URL))(t)
	u.User = url.UserPassword("nobody", secret+"@/")
	_, err = rabbit.Dial(t.Context(), config(u.String()))
	saysWithoutSecret(t, err, "username or password not allowed")
}

// saysWithoutSecret wants an error that holds these words and no password.
func saysWithoutSecret(t *testing.T, err error, words ...string) {
	t.Helper()
	for _, word := range words {
		assert.Has(t, fmt.Sprint(err), word, "the error")
	}
	assert.That(t, err != nil && !strings.Contains(err.Error(), secret), "%v; want an error without the password", err)
}

func TestConnectionBearsItsName(t *testing.T) {
	t.Parallel()
	b := stack.AMQP(t)
	dial(t, b.URL)
	want := rabbit.ConnectionName("test")
	// Connections of other tests may be closing, and have no properties.
	got := b.Eval(fmt.Sprintf(`[] =/= [P || [{client_properties, P}] <- `+
		`rabbit_networking:connection_info_all([client_properties]), is_list(P), lists:member({<<"connection_name">>, `+
		`longstr, <<%q>>}, P)]`, want))
	assert.Is(t, got, "true", "no connection named %q", want)
}

func TestURLErrorsExplainWithoutQuoting(t *testing.T) {
	t.Parallel()
	for _, form := range []string{
		"", "localhost", "http://u:*@h/", "amqp://u:*%zz@h/", "amqp://u:*/x@h/v", "amqp://u:12/*@h/v", "amqp://u:12?*@h/v",
		"amqp://u:12#*@h/v", "amqp://u:* x@h/v", "amqp://u:*@h:0/v", "amqp://u:*@h:99999/v",
		"amqp://u:*@h/v?heartbeat=often", "amqp://u:*[@h/v",
	} {
		raw := strings.ReplaceAll(form, "*", secret)
		saysWithoutSecret(t, rabbit.CheckURL(raw))
		assert.Is(t, strings.Contains(rabbit.Where(raw), secret), false, "%q: %s shows the password", raw, rabbit.Where(raw))
		_, err := rabbit.Dial(t.Context(), rabbit.Config{URLs: []string{"amqp://h", raw}})
		saysWithoutSecret(t, err, "URL 2 of 2")
	}
	for raw, want := range map[string]string{
		"amqp://": "localhost:5672/", "amqps://u:p%40%2F@h/v%2Fw": "h:5671/v/w", "amqp://h:1/": "h:1/",
		"amqp://u:p@[::1]:7/v?heartbeat=5": "[::1]:7/v",
	} {
		err := rabbit.CheckURL(raw)
		assert.That(t, err == nil && rabbit.Where(raw) == want, "%s: %v, %s; want %s", raw, err, rabbit.Where(raw), want)
	}
	_, err := rabbit.Dial(t.Context(), rabbit.Config{})
	assert.That(t, err != nil, "Dial without a URL")
}

// Given a broker behind TLS, when a message with unreadable headers comes, then it arrives with a mark as it does
// without TLS; and a certificate that nobody vouches for ends the dial.
func theWalkerSeesPlainTextUnderTLS(t *testing.T, server *stack.Server, authority string) {
	b := server.Broker(t)
	u := require.Get(url.Parse(b.URL))(t)
	u.Scheme, u.Host = "amqps", server.TLSAddr()
	_, err := rabbit.Dial(t.Context(), config(u.String()))
	assert.That(t, err != nil && strings.Contains(err.Error(), "certificate"),
		"Dial without the certificate's authority = %v", err)
	u.RawQuery = url.Values{"cacertfile": {authority}, "heartbeat": {"5"}}.Encode()
	c := dial(t, u.String())
	q := b.Name("main")
	b.DeclareQueue(q, quorum(nil))
	b.Publish("", q, stack.Message{MessageId: "id", Headers: stack.UnreadableHeaders("m")[0].Table, Body: []byte("b")})
	publishN(t, publisher(t, config(u.String())), q, 1)
	got := collect(t, consume(t, c, q, 10), 2)
	_, ok := rabbit.ReadUnreadable(got[0].Headers)
	assert.That(t, ok && got[0].MessageID == "id" && got[1].MessageID == "0", "over TLS came %+v", got)
}

// A session that ends on a write must count like one that ends on a read: else the delivery that cuts connections is
// found one connection later, and its neighbours are charged for that one.
func TestTheEndOfAConnectionIsToldWhoeverMeetsIt(t *testing.T) {
	reset := &net.OpError{Op: "write", Net: "tcp", Err: os.NewSyscallError("write", syscall.ECONNRESET)}
	for name, tc := range map[string]struct {
		err    error
		broken bool
	}{
		"the reader saw it":            {amqp.ErrClosed, true},
		"a write met it":               {reset, true},
		"a write after the socket's":   {&net.OpError{Op: "write", Net: "tcp", Err: net.ErrClosed}, true},
		"the end of the stream":        {io.ErrUnexpectedEOF, true},
		"the broker could not read us": {&amqp.Error{Code: amqp.FrameError, Server: true}, true},
		"the operator closed it":       {&amqp.Error{Code: amqp.ConnectionForced, Server: true}, false},
		"the queue is not there":       {&amqp.Error{Code: amqp.NotFound, Server: true}, false},
		"something of ours":            {errors.New("a table that AMQP cannot hold"), false},
	} {
		t.Run(name, func(t *testing.T) {
			err := rabbit.TranslateOpen(tc.err)
			assert.Is(t, rabbit.IsBroken(err), tc.broken, "IsBroken(%v)", err)
			if tc.broken && !errors.Is(err, rabbit.ErrClosed) {
				_, ok := errors.AsType[*rabbit.BrokerError](err)
				assert.That(t, ok, "%v is neither ErrClosed nor the broker's reason", err)
			}
		})
	}
}
