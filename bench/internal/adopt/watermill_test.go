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

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestMain(m *testing.M) { stack.Main(m, program.Remove) }

// world is a shop with Watermill on one side and the program on the other.
type world struct {
	*testing.T
	broker *stack.Broker
	db     *sql.DB
	path   string // of the program
	env    []string
	queue  string // the main queue
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, broker: stack.AMQP(t), path: program.Shared(t)}
	dsn := stack.MySQL(t)
	w.queue = w.broker.Name("stock.rollback")
	w.env = append(os.Environ(),
		"ROLLBACKD_AMQP_URL="+w.broker.URL, "ROLLBACKD_MYSQL_DSN="+dsn, "ROLLBACKD_REDIS_URL=off",
		"ROLLBACKD_QUEUE="+w.queue, "ROLLBACKD_EXCHANGE="+w.broker.Name("stock"), "ROLLBACKD_HTTP_ADDR=off",
		"ROLLBACKD_KEY_FROM=header:_watermill_message_uuid", "ROLLBACKD_HANDLER=sql",
		"ROLLBACKD_SQL_FILE="+require.Get(filepath.Abs("../../../deploy/examples/sql/classic/handler.sql"))(t))
	w.db = require.Get(sql.Open("mysql", dsn))(t)
	t.Cleanup(func() { _ = w.db.Close() })
	stack.Exec(t, w.db, "CREATE TABLE tb_stock (goods_id BIGINT NOT NULL PRIMARY KEY, amount INT UNSIGNED NOT NULL)")
	stack.Exec(t, w.db, "INSERT INTO tb_stock VALUES (1001, 0)")
	return w
}

// consumer runs a command of the program to its end, which must be a good one.
func (w *world) consumer(more []string, args ...string) {
	w.Helper()
	_ = require.Get(program.Run(w.Context(), w.path, append(w.env, more...), args...))(w)
}

// work lets a daemon run until so many rows say success.
func (w *world) work(rows int) {
	w.Helper()
	p := require.Get(program.Start(program.Options{Path: w.path, Args: []string{"run"}, Env: w.env, Log: w.Output()}))(w)
	defer func() { _ = p.Kill() }()
	poll.Until(w, fmt.Sprintf("%d rows say success", rows), func() bool {
		return stack.Number(w, w.db, "SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 1") == rows &&
			w.broker.Depth(w.queue) == 0 && w.broker.Unacked(w.queue) == 0
	})
	code, err := p.Stop(w.Context())
	assert.That(w, err == nil && code == 0, "the daemon ended with %d, %v", code, err)
}

// publish publishes n messages, each twice, and returns them.
func (w *world) publish(config wamqp.Config, topic string, n int) (sent []*message.Message) {
	w.Helper()
	config.Publish.ConfirmDelivery = true
	p := require.Get(wamqp.NewPublisher(config, watermill.NopLogger{}))(w)
	defer p.Close()
	for i := range n {
		m := message.NewMessage(watermill.NewUUID(), []byte(`{"items":[{"sku_id":1001,"quantity":1}]}`))
		m.Metadata.Set("trace", fmt.Sprint(i))
		require.OK(w, p.Publish(topic, m, m))
		sent = append(sent, m)
	}
	return sent
}

// take takes n messages as Watermill's own subscriber and acks them.
func (w *world) take(config wamqp.Config, topic string, n int) map[string]*message.Message {
	w.Helper()
	s := require.Get(wamqp.NewSubscriber(config, watermill.NopLogger{}))(w)
	defer s.Close()
	ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
	defer cancel()
	messages := require.Get(s.Subscribe(ctx, topic))(w)
	got := map[string]*message.Message{}
	for range n {
		m, ok := <-messages
		require.That(w, ok, "Watermill got %d of %d messages", len(got), n)
		got[m.UUID] = m
		m.Ack()
	}
	poll.Until(w, "the last ack has arrived", func() bool { return w.broker.Unacked(topic) == 0 })
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
	n := stack.Number(w, w.db, "SELECT amount FROM tb_stock")
	assert.That(t, n == 100, "%d pieces are back, want 100", n)
	for _, m := range sent {
		if stack.Number(w, w.db, "SELECT COUNT(*) FROM consumer_log WHERE msg_tag = ? AND msg_key = ?", topic, m.UUID) != 1 {
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
	n := stack.Number(w, w.db, "SELECT COUNT(*) FROM consumer_log WHERE msg_tag = 'orders.cancelled'")
	assert.That(t, n == 30, "%d rows have the tag, want 30", n)
	assert.That(t, !strings.Contains(queue, "orders.cancelled"), "the tag is part of another name: this shows nothing")
}
