package adopt

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/go-sql-driver/mysql" // the driver of db

	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestMain(m *testing.M) { stack.Main(m, program.Remove) }

// world is a shop with Watermill on one side and the program on the other.
type world struct {
	t      *testing.T
	broker *stack.Broker
	db     *sql.DB
	path   string // of the program
	env    []string
	queue  string // the main queue
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, broker: stack.AMQP(t), path: program.Shared(t)}
	dsn := stack.MySQL(t)
	handler, err := filepath.Abs("../../../deploy/examples/sql/classic/handler.sql")
	if err != nil {
		t.Fatal(err)
	}
	w.queue = w.broker.Name("stock.rollback")
	w.env = append(os.Environ(),
		"ROLLBACKD_AMQP_URL="+w.broker.URL, "ROLLBACKD_MYSQL_DSN="+dsn, "ROLLBACKD_REDIS_URL=off",
		"ROLLBACKD_QUEUE="+w.queue, "ROLLBACKD_EXCHANGE="+w.broker.Name("stock"), "ROLLBACKD_HTTP_ADDR=off",
		"ROLLBACKD_KEY_FROM=header:_watermill_message_uuid", "ROLLBACKD_HANDLER=sql", "ROLLBACKD_SQL_FILE="+handler)
	if w.db, err = sql.Open("mysql", dsn); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.db.Close() })
	for _, statement := range []string{
		"CREATE TABLE tb_stock (goods_id BIGINT NOT NULL PRIMARY KEY, amount INT UNSIGNED NOT NULL) ENGINE=InnoDB",
		"INSERT INTO tb_stock VALUES (1001, 0)",
	} {
		if _, err := w.db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// consumer runs a command of the program to its end, which must be a good one.
func (w *world) consumer(more []string, args ...string) {
	w.t.Helper()
	if _, err := program.Run(w.t.Context(), w.path, append(w.env, more...), args...); err != nil {
		w.t.Fatal(err)
	}
}

// work lets a daemon run until so many rows say success.
func (w *world) work(rows int) {
	w.t.Helper()
	p, err := program.Start(program.Options{Path: w.path, Args: []string{"run"}, Env: w.env, Log: w.t.Output()})
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = p.Kill() }()
	poll.Until(w.t, fmt.Sprintf("%d rows say success", rows), func() bool {
		return w.count("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 1") == rows &&
			w.broker.Depth(w.queue) == 0 && w.broker.Unacked(w.queue) == 0
	})
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	if code, err := p.Stop(ctx); err != nil || code != 0 {
		w.t.Errorf("the daemon ended with %d, %v", code, err)
	}
}

func (w *world) count(query string, args ...any) (n int) {
	w.t.Helper()
	if err := w.db.QueryRowContext(w.t.Context(), query, args...).Scan(&n); err != nil {
		w.t.Fatalf("%s: %v", query, err)
	}
	return n
}

// publish publishes n messages, each twice, and returns them.
func (w *world) publish(config wamqp.Config, topic string, n int) []*message.Message {
	w.t.Helper()
	config.Publish.ConfirmDelivery = true
	p, err := wamqp.NewPublisher(config, watermill.NopLogger{})
	if err != nil {
		w.t.Fatal(err)
	}
	defer p.Close()
	var sent []*message.Message
	for i := range n {
		m := message.NewMessage(watermill.NewUUID(), []byte(`{"items":[{"sku_id":1001,"quantity":1}]}`))
		m.Metadata.Set("trace", fmt.Sprint(i))
		if err := p.Publish(topic, m, m); err != nil {
			w.t.Fatal(err)
		}
		sent = append(sent, m)
	}
	return sent
}

// take takes n messages as Watermill's own subscriber and acks them.
func (w *world) take(config wamqp.Config, topic string, n int) map[string]*message.Message {
	w.t.Helper()
	s, err := wamqp.NewSubscriber(config, watermill.NopLogger{})
	if err != nil {
		w.t.Fatal(err)
	}
	defer s.Close()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	messages, err := s.Subscribe(ctx, topic)
	if err != nil {
		w.t.Fatal(err)
	}
	got := map[string]*message.Message{}
	for range n {
		select {
		case m := <-messages:
			got[m.UUID] = m
			m.Ack()
		case <-ctx.Done():
			w.t.Fatalf("Watermill got %d of %d messages", len(got), n)
		}
	}
	poll.Until(w.t, "the last ack has arrived", func() bool { return w.broker.Unacked(topic) == 0 })
	return got
}

// Given a service with Watermill and its durable queue, when it is brought over, then each message has one effect,
// named by its UUID and topic; and when it goes back, Watermill reads what is left as it was published.
func TestWatermillIsBroughtOverAndBack(t *testing.T) {
	w := newWorld(t)
	config := wamqp.NewDurableQueueConfig(w.broker.URL)
	topic := w.broker.Name("orders.cancelled")
	w.broker.Track(topic)
	w.broker.DeclareQueue(topic, nil) // as Watermill's subscriber declares it
	w.publish(config, topic, 10)
	w.take(config, topic, 20) // step 1 and 2: the subscriber works, and stops
	sent := w.publish(config, topic, 100)
	w.consumer(nil, "migrate")
	w.consumer(nil, "move", "--from", topic) // step 3
	w.work(100)
	if n := w.count("SELECT amount FROM tb_stock"); n != 100 {
		t.Errorf("%d pieces are back, want 100", n)
	}
	for _, m := range sent {
		if w.count("SELECT COUNT(*) FROM consumer_log WHERE msg_tag = ? AND msg_key = ?", topic, m.UUID) != 1 {
			t.Errorf("message %s has no row under its UUID and topic", m.UUID)
		}
	}

	left := w.publish(config, topic, 20) // the way back
	w.consumer(nil, "move", "--from", topic)
	w.consumer([]string{"ROLLBACKD_QUEUE=" + topic}, "move", "--from", w.queue)
	got := w.take(config, topic, 40)
	for _, m := range left {
		back := got[m.UUID]
		if back == nil || string(back.Payload) != string(m.Payload) || back.Metadata.Get("trace") != m.Metadata.Get("trace") {
			t.Errorf("message %s came back as %+v", m.UUID, back)
		}
	}
}

// Given a service with Watermill and a fanout exchange, whose messages have neither a type nor a routing key, when they
// are moved with a tag, then that is theirs.
func TestWatermillsFanoutIsBroughtOverWithATag(t *testing.T) {
	w := newWorld(t)
	topic := w.broker.Name("orders")
	config := wamqp.NewDurablePubSubConfig(w.broker.URL, wamqp.GenerateQueueNameTopicNameWithSuffix("stock"))
	queue := topic + "_stock"
	w.broker.DeclareExchange(topic, "fanout")
	w.broker.DeclareQueue(queue, nil)
	w.broker.Bind(queue, "", topic)
	w.publish(config, topic, 30)
	w.consumer(nil, "migrate")
	w.consumer(nil, "move", "--from", queue, "--tag", "orders.cancelled")
	w.work(30)
	if n := w.count("SELECT COUNT(*) FROM consumer_log WHERE msg_tag = 'orders.cancelled'"); n != 30 {
		t.Errorf("%d rows have the tag, want 30", n)
	}
	if strings.Contains(queue, "orders.cancelled") {
		t.Error("the tag is part of another name: this shows nothing")
	}
}
