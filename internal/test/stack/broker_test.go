package stack

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
)

func TestEachBrokerHasNamesOfItsOwn(t *testing.T) {
	a, b := AMQP(t), AMQP(t)
	a.DeclareQueue(a.Name("q"), nil)
	if b.Exists(b.Name("q")) {
		t.Error("a queue of one Broker has the name of another's")
	}
	if !a.Exists(a.Name("q")) {
		t.Error("a declared queue does not exist")
	}
	if a.node != nil && b.Exists(a.Name("q")) {
		t.Error("two tests share a virtual host of ours")
	}
}

func TestVirtualHostGoesWithItsTest(t *testing.T) {
	var vhost string
	t.Run("inner", func(t *testing.T) {
		b := AMQP(t)
		b.DeclareQueue("q", nil)
		vhost = b.vhost
	})
	if all := AMQP(t).Eval("rabbit_vhost:list_names()"); vhost == "" || strings.Contains(all, vhost) {
		t.Errorf("virtual hosts after the test: %s, want none %q", all, vhost)
	}
}

// recorder takes what would fail the test.
type recorder struct {
	testing.TB
	errors []string
}

func (r *recorder) Helper()                           {}
func (r *recorder) Error(args ...any)                 { r.errors = append(r.errors, fmt.Sprint(args...)) }
func (r *recorder) Errorf(format string, args ...any) { r.errors = append(r.errors, format) }

func TestPublishFailsTheTestWhenTheMessageReachesNoQueue(t *testing.T) {
	b := AMQP(t)
	r := &recorder{TB: t}
	b.t = r
	b.Publish("", "nowhere", Message{})
	assert.Is(t, len(r.errors), 1, "errors")
	b.t = t
}

func TestGivenBrokerIsLeftAsItWas(t *testing.T) {
	ours := AMQP(t)
	var queue, exchange string
	t.Run("inner", func(t *testing.T) {
		given := newBroker(t, nil, ours.URL)
		queue, exchange = given.Name("q"), given.Name("x")
		given.DeclareQueue(queue, nil)
		given.DeclareExchange(exchange, "fanout")
		given.Bind(queue, "", exchange)
		given.Unbind(queue, "", exchange)
	})
	if ours.Exists(queue) {
		t.Error("the queue outlived its test on a given server")
	}
	if all := ours.Eval("[N || {resource, _, exchange, N} <- rabbit_exchange:list_names()]"); strings.Contains(all,
		exchange) {
		t.Error("the exchange outlived its test on a given server")
	}
	t.Run("commands", func(t *testing.T) {
		newBroker(t, nil, ours.URL).CloseConnections()
		t.Error("a command for a given server did not skip the test")
	})
}
