package rabbit_test

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
)

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
				if _, ok := errors.AsType[*rabbit.BrokerError](err); !ok {
					t.Errorf("%v is neither ErrClosed nor the broker's reason", err)
				}
			}
		})
	}
}
