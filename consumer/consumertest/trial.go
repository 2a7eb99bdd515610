package consumertest

import (
	"cmp"
	"database/sql"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/outbox"
)

// Options are what a [Trial] is told. The zero value has the defaults of [consumer.Config] and no database.
type Options struct {
	// Config is the consumer's. What it says of servers, of the brake and of lanes has no meaning here. GiveBackAfter,
	// which is how long the engine waits for a database or a service that the handler says is away, is a quarter of a
	// second by default.
	Config consumer.Config
	// DB is where the handler's transactions run; it must know savepoints. Nil: no statement is executed.
	DB *gorm.DB
	// Answer says what comes of a statement that is not executed. Nil: it changes one row, and finds none.
	Answer func(Statement) Answer
}

// Trial is a handler that is tried. It is for one goroutine at a time.
type Trial struct {
	t         testing.TB
	o         Options
	engine    *consumer.Rehearsal
	committed state
}

// New makes a trial of a handler. It is looked at as with [consumer.Config].Check, as far as that needs no MySQL;
// warnings are logged and fail no test. In a test inside [testing/synctest] the time that the handler and the engine
// themselves wait, as for HandlerTimeout, passes at once too.
func New(t testing.TB, h consumer.Handler, o Options) *Trial {
	t.Helper()
	w := &Trial{t: t, o: o}
	pool := sql.OpenDB(connector{w})
	t.Cleanup(func() { _ = pool.Close() })
	cfg, db := o.Config, o.DB
	cfg.Check = true
	cfg.GiveBackAfter = cmp.Or(cfg.GiveBackAfter, 250*time.Millisecond)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	var err error
	if db == nil { // for MySQL's dialect: nobody connects
		if db, _, err = dedup.Open(t.Context(), "nobody@tcp(nobody.invalid)/nothing", dedup.OpenOptions{}); err == nil {
			if unused, err := db.DB(); err == nil {
				t.Cleanup(func() { _ = unused.Close() })
			}
		}
	}
	if err == nil {
		w.engine, err = consumer.NewRehearsal(cfg, h, db, pool)
	}
	if err != nil {
		t.Fatalf("consumertest: %v", err)
	}
	return w
}

// Message is a message to deliver. A body that is neither text nor bytes is written as JSON.
func Message(tag, key string, body any) consumer.Message {
	m := consumer.Message{Identity: dedup.Identity{Tag: tag, Key: key}}
	switch body := body.(type) {
	case []byte:
		m.Body = body
	case string:
		m.Body = []byte(body)
	default:
		text, err := json.Marshal(body)
		if err != nil {
			panic(fmt.Sprintf("consumertest: the body of %s/%s: %v", tag, key, err))
		}
		m.Body = text
	}
	return m
}

// Deliver has one message delivered, and says how that delivery ended. A message that was delivered before is a copy of
// it. Of m count what a producer says: Tag, Key, Body, Headers, MessageID, ContentType and PublishedAt. The key stands
// in the header x-message-key, and in message_id where that is empty; leave it empty where Config.KeyFrom finds it
// elsewhere. The handler has Headers in the types in which they come from RabbitMQ, such as int64 for an int.
func (w *Trial) Deliver(m consumer.Message) consumer.Ended { return w.DeliverAll(m)[0] }

// DeliverAll is Deliver for many messages in one batch, which a handler gets in one call. The ends are in their order.
func (w *Trial) DeliverAll(msgs ...consumer.Message) []consumer.Ended {
	return w.engine.Deliver(w.t.Context(), msgs...)
}

// Advance lets time pass, and returns how the deliveries of all that came back meanwhile have ended, in the order in
// which they came: what had failed or was put off, and after a minute what was given back.
func (w *Trial) Advance(d time.Duration) []consumer.Ended { return w.engine.Advance(w.t.Context(), d) }

// Replay has the dead letter of a message replayed, as a person or compensation does, and returns how its delivery
// ended. The test fails when there is none.
func (w *Trial) Replay(key string) consumer.Ended {
	w.t.Helper()
	ended, err := w.engine.Replay(w.t.Context(), key)
	if err != nil {
		w.t.Fatalf("consumertest: %v", err)
	}
	return ended
}

// Row is what the consumer log says of a message; its status is [dedup.Absent] when it says nothing.
func (w *Trial) Row(tag, key string) dedup.Row {
	w.t.Helper()
	row, err := w.engine.Row(w.t.Context(), tag, key)
	if err != nil {
		w.t.Fatalf("consumertest: %v", err)
	}
	return row
}

// Puts are the messages that stand in the outbox: committed, and not taken back.
func (w *Trial) Puts() []outbox.Message { return w.committed.outbox.Messages() }

// Statements are the handler's statements that are committed, but for the outbox's and those of savepoints.
func (w *Trial) Statements() []Statement { return slices.Clone(w.committed.statements) }
