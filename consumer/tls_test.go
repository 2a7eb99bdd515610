package consumer_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/lock"
)

// Given three servers that want client certificates, when a program gives a configuration of TLS for each, then a
// message is applied and a dead letter can be read; none of them is in plain text.
func TestAProgramGivesItsOwnConfigurationsOfTLS(t *testing.T) {
	t.Parallel()
	ca := stack.NewAuthority(t, "CA")
	client := ca.Issue(stack.Certificate{Name: "program"})
	servers := stack.OwnEncrypted(t, stack.Encryption{
		Pair:      ca.Issue(stack.Certificate{Name: "servers", Hosts: []string{"127.0.0.1"}}),
		ClientsCA: ca.File, ClientsNeeded: true,
	})
	dsn := servers.MySQL.Database(t)
	account, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	account.User, account.Passwd = "x509", "secret"
	admin, _, err := dedup.Open(t.Context(), dsn, dedup.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeDB(t, admin) })
	for _, statement := range []string{
		"CREATE USER 'x509'@'%' IDENTIFIED BY 'secret' REQUIRE X509", "GRANT ALL ON " + account.DBName + ".* TO 'x509'@'%'",
		"CREATE TABLE effect (k VARBINARY(255) NOT NULL)",
	} {
		if err := admin.Exec(statement).Error; err != nil {
			t.Fatal(err)
		}
	}
	logs := &strings.Builder{}
	ended := make(chan consumer.Ended, 2)
	cfg := consumer.Config{
		MySQLDSN: account.FormatDSN(), AMQPURLs: []string{servers.RabbitMQ.TLSURL()}, RedisURL: servers.Redis.TLSURL(),
		MySQLTLS: ca.Client(&client), AMQPTLS: ca.Client(&client), RedisTLS: ca.Client(&client), LockOnError: lock.Pause,
		Queue: "q", Migrate: true, Observe: func(e consumer.Ended) { ended <- e },
		Logger: slog.New(slog.NewTextHandler(logs, nil)),
	}
	c, err := consumer.Open(t.Context(), cfg, consumer.Each(
		func(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
			if m.Key == "bad" {
				return consumer.Permanent(context.DeadlineExceeded)
			}
			return tx.WithContext(ctx).Exec("INSERT INTO effect VALUES (?)", m.Key).Error
		}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	broker := servers.RabbitMQ.Broker(t)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for late := time.Now().Add(time.Minute); broker.Consumers("q") == 0; <-tick.C {
		if time.Now().After(late) {
			t.Fatal("still nobody consumes after a minute")
		}
	}
	outcomes := map[string]consumer.Outcome{}
	for _, key := range []string{"good", "bad"} {
		broker.Publish("", "q", stack.Message{MessageId: key, Body: []byte("{}"), DeliveryMode: 2})
	}
	for range 2 {
		select {
		case e := <-ended:
			outcomes[e.Key] = e.Outcome
		case <-time.After(time.Minute):
			t.Fatalf("only %v ended in a minute", outcomes)
		}
	}
	if outcomes["good"] != consumer.Applied || outcomes["bad"] != consumer.DeadLettered {
		t.Errorf("they ended as %v", outcomes)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if text := logs.String(); strings.Contains(text, "redis failed") || strings.Contains(text, "secret") {
		t.Errorf("the log says\n%s", text)
	}
	pool, _, err := dedup.Open(t.Context(), cfg.MySQLDSN, dedup.OpenOptions{TLS: cfg.MySQLTLS})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeDB(t, pool) })
	letters, err := cfg.Letters(pool)
	if err != nil {
		t.Fatal(err)
	}
	var seen []string
	_, err = letters.Survey(t.Context(), deadletter.SurveyOptions{
		Each: func(l deadletter.Surveyed) error { seen = append(seen, l.Row.Key); return nil },
	})
	if err != nil || len(seen) != 1 || seen[0] != "bad" {
		t.Errorf("the letters are %q, %v; want the one of bad", seen, err)
	}
}

func closeDB(t *testing.T, db *gorm.DB) {
	t.Helper()
	pool, err := db.DB()
	if err == nil {
		err = pool.Close()
	}
	if err != nil {
		t.Error(err)
	}
}

func TestAConfigurationForAPlainURLIsRefused(t *testing.T) {
	t.Parallel()
	ca := stack.NewAuthority(t, "CA")
	cfg := consumer.Config{MySQLDSN: "u:p@tcp(h)/d", AMQPURLs: []string{"amqp://h/"}, Queue: "q", AMQPTLS: ca.Client(nil)}
	_, err := consumer.Open(t.Context(), cfg, consumer.Each(
		func(context.Context, *gorm.DB, consumer.Message) error { return nil }))
	if err == nil || !strings.Contains(err.Error(), "write amqps://") {
		t.Errorf("Open = %v, want that amqp:// is not encrypted", err)
	}
}
