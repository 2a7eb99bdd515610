package stack

import (
	"testing"
)

func TestMain(m *testing.M) { Main(m) }

func TestFreshWorld(t *testing.T) {
	dsn := MySQL(t)
	execMySQL(t, dsn, "CREATE TABLE t (a INT)")
	b := AMQP(t)
	q := b.Name("q")
	b.DeclareQueue(q, nil)
	b.Publish("", q, Message{Body: []byte("hello")})
	if n := b.Depth(q); n != 1 {
		t.Errorf("depth = %d", n)
	}
	if n := b.Unacked(q); n != 0 {
		t.Errorf("unacked = %d", n)
	}
	b.CloseConnections()
	d, ok := b.Get(q)
	if !ok || string(d.Body) != "hello" {
		t.Errorf("got %v %v", d, ok)
	}
	_ = Redis(t)
}
