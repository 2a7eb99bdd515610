// Package example is what stands behind the examples of the public packages: servers for one example alone, and a
// producer, so that what an example shows is what a user would write. Where a test fails, it panics.
package example

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// patience bounds what an example may wait for.
const patience = time.Minute

// Servers are a fresh schema and, made by [All], a fresh virtual host.
type Servers struct {
	MySQLDSN, AMQPURL string

	t  *rig
	db *sql.DB
	// Of the broker:
	broker    *stack.Broker
	publisher *rabbit.Publisher
	declared  map[string]bool // queues
}

// MySQL starts nothing but MySQL.
func MySQL() *Servers {
	t := &rig{}
	s := &Servers{t: t, MySQLDSN: stack.MySQL(t), declared: map[string]bool{}}
	db := must.Get(sql.Open("mysql", s.MySQLDSN))
	s.db = db
	t.Cleanup(func() { _ = db.Close() })
	return s
}

// All starts RabbitMQ too.
func All() *Servers {
	s := MySQL()
	s.broker = stack.AMQP(s.t)
	s.AMQPURL = s.broker.URL
	s.publisher = rabbit.NewPublisher(rabbit.Config{URLs: []string{s.AMQPURL}, Name: "example"})
	s.t.Cleanup(func() { _ = s.publisher.Close(context.Background()) })
	return s
}

// Closes has db closed at the end.
func (s *Servers) Closes(db *gorm.DB) {
	pool := must.Get(db.DB())
	s.t.Cleanup(func() { _ = pool.Close() })
}

// Redis starts a Redis alone.
func Redis() (url string, end func()) {
	t := &rig{}
	return stack.Redis(t), t.end
}

// Close ends what the example had.
func (s *Servers) Close() { s.t.end() }

// Exec runs a statement.
func (s *Servers) Exec(statement string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	must.Exec(ctx, s.db, statement)
}

// Show prints what a query finds, one line a row.
func (s *Servers) Show(query string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	rows, err := s.db.QueryContext(ctx, query)
	must.OK(err, query)
	defer func() { _ = rows.Close() }()
	columns := must.Get(rows.Columns())
	for rows.Next() {
		values, into := make([]string, len(columns)), make([]any, len(columns))
		for i := range values {
			into[i] = &values[i]
		}
		must.OK(rows.Scan(into...))
		fmt.Println(strings.Join(values, " "))
	}
	must.OK(rows.Err())
}

// Publish is the producer: it publishes a message of this key for a queue whose consumer leaves everything else at its
// default. The exchange and the queues are made first, as a consumer that has run before has made them.
func (s *Servers) Publish(queue, key, body string) { s.PublishAs(queue, "", key, body, nil) }

// PublishAs is Publish of a message that has a tag, or headers.
func (s *Servers) PublishAs(queue, tag, key, body string, headers map[string]any) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	d := consumer.Defaults()
	s.declare(ctx, rabbit.TopologyConfig{
		Exchange: d.Exchange, Queue: queue, RoutingKeys: []string{queue}, Delays: d.RetryDelays,
	})
	m := rabbit.Message{Type: tag, MessageID: key, Body: []byte(body), Headers: headers, DeliveryMode: rabbit.Persistent}
	for _, err := range s.publisher.Publish(ctx, []rabbit.Publishing{{Exchange: d.Exchange, Key: queue, Message: m}}) {
		if err != nil {
			s.t.Fatalf("publish %s: %v", key, err)
		}
	}
}

func (s *Servers) declare(ctx context.Context, topology rabbit.TopologyConfig) {
	if s.declared[topology.Queue] {
		return
	}
	s.declared[topology.Queue] = true
	s.broker.Track(topology.Queues()...)
	conn := must.Get(rabbit.Dial(ctx, rabbit.Config{URLs: []string{s.AMQPURL}, Name: "example"}))
	defer func() { _ = conn.Close() }()
	must.Get(rabbit.Declare(ctx, conn, topology))
}

// rig is a testing.TB as far as package stack needs one.
type rig struct {
	testing.TB // nil

	cleanups []func()
}

func (r *rig) Helper()                        {}
func (r *rig) Cleanup(f func())               { r.cleanups = append(r.cleanups, f) }
func (r *rig) Error(args ...any)              { panic(fmt.Sprint(args...)) }
func (r *rig) Errorf(text string, arg ...any) { panic(fmt.Sprintf(text, arg...)) }
func (r *rig) Fatal(args ...any)              { panic(fmt.Sprint(args...)) }
func (r *rig) Fatalf(text string, arg ...any) { panic(fmt.Sprintf(text, arg...)) }

func (r *rig) end() {
	for i := len(r.cleanups) - 1; i >= 0; i-- {
		r.cleanups[i]()
	}
}
