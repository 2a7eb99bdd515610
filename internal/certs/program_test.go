package certs_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/lock"
)

// When a program gives a configuration of TLS for each server, then a message is applied and a dead letter can be read;
// none of them is in plain text.
func aProgramGivesItsOwnConfigurations(t *testing.T, w *world) {
	client := w.trusted.Issue(stack.Certificate{Name: "program"})
	logs := &strings.Builder{}
	ended := make(chan consumer.Ended, 2)
	cfg := consumer.Config{
		AMQPURLs: []string{w.places[0].target}, MySQLDSN: w.places[1].target, RedisURL: w.places[2].target,
		AMQPTLS: w.trusted.Client(&client), MySQLTLS: w.trusted.Client(&client), RedisTLS: w.trusted.Client(&client),
		LockOnError: lock.Pause,
		Queue:       "q", Migrate: true, Observe: func(e consumer.Ended) { ended <- e },
		Logger: slog.New(slog.NewTextHandler(logs, nil)),
	}
	pool := require.First(dedup.Open(t.Context(), cfg.MySQLDSN, dedup.OpenOptions{TLS: cfg.MySQLTLS}))(t)
	db := require.Get(pool.DB())(t)
	defer db.Close()
	require.OK(t, pool.Exec("CREATE TABLE effect (k VARBINARY(255) NOT NULL)").Error)
	c := require.Get(consumer.Open(t.Context(), cfg, consumer.Each(
		func(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
			if m.Key == "bad" {
				return consumer.Permanent(context.DeadlineExceeded)
			}
			return tx.Exec("INSERT INTO effect VALUES (?)", m.Key).Error
		})))(t)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	broker := w.servers.RabbitMQ.Broker(t)
	poll.Until(t, "somebody consumes", func() bool { return broker.Consumers("q") > 0 })
	outcomes := map[string]consumer.Outcome{}
	for _, key := range []string{"good", "bad"} {
		broker.Publish("", "q", stack.Message{MessageId: key, Body: []byte("{}"), DeliveryMode: 2})
		e := <-ended
		outcomes[e.Key] = e.Outcome
	}
	assert.That(t, outcomes["good"] == consumer.Applied && outcomes["bad"] == consumer.DeadLettered, "they ended as %v",
		outcomes)
	stop()
	require.OK(t, <-done)
	text := logs.String()
	assert.That(t, !strings.Contains(text, "redis failed") && !strings.Contains(text, "secret"), "the log says\n%s", text)
	letters := require.Get(cfg.Letters(pool))(t)
	var seen []string
	_, err := letters.Survey(t.Context(), deadletter.SurveyOptions{
		Each: func(l deadletter.Surveyed) error { seen = append(seen, l.Row.Key); return nil },
	})
	assert.That(t, err == nil && len(seen) == 1 && seen[0] == "bad", "the letters are %q, %v; want the one of bad", seen,
		err)
}
