package rival

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"io"
	"net/http"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rollbackd/rollbackd/dedup"
	calls "github.com/rollbackd/rollbackd/internal/handler/http"
)

// pool calls a service for each message, as a worker pool in Go does it whose author has thought of crashes: a row says
// that the call is made, which is committed, then the call, then the row says success, which is committed, then the
// ack. Each worker has a channel of RabbitMQ, a connection to MySQL and one to the service. With one channel for all,
// the broker lost acks that it had not passed on to the queue when the channel was closed: the messages came again.
type pool struct {
	*contest
	db     *sql.DB
	client *http.Client
}

// callPool is a process of them.
func callPool(ctx context.Context, c *contest) error {
	p := pool{contest: c, client: &http.Client{
		Transport: &http.Transport{MaxIdleConns: c.workers, MaxIdleConnsPerHost: c.workers}, Timeout: c.cfg.HTTPTimeout,
	}}
	defer p.client.CloseIdleConnections()
	var err error
	if p.db, err = openPool(ctx, c.cfg.MySQLDSN, c.workers); err != nil {
		return err
	}
	defer p.db.Close()
	conn, err := dial(c.cfg.AMQPURLs[0])
	if err != nil {
		return err
	}
	defer conn.Close()
	return side(c.workers, func() error {
		const prefetch = 4
		return c.consume(ctx, conn, prefetch, func(d amqp.Delivery) error {
			return c.settle(d, p.process(context.WithoutCancel(ctx), d))
		})
	})
}

func (p pool) process(ctx context.Context, d amqp.Delivery) error {
	m, err := read(d.MessageId, d.RoutingKey, d.Body)
	if err != nil {
		return err
	}
	l := rows{p.contest, p.db}
	err = l.insert(ctx, p.db, m, processing)
	if isMySQL(err, errDuplicate) { // the same call again, unless it is known that the service has applied it
		var status int
		if status, _, err = l.lookUp(ctx, m); err == nil && status == success {
			p.duplicate.Add(1)
			return nil
		}
	}
	if err != nil {
		return err
	}
	if err := p.call(ctx, m); err != nil {
		return err
	}
	if err := l.end(ctx, m, 1, success, ""); err != nil {
		return err
	}
	p.applied.Add(1)
	return nil
}

func (p pool) call(ctx context.Context, m *message) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.cfg.HTTPTarget, bytes.NewReader(m.body))
	if err != nil {
		return fmt.Errorf("call for %s: %w", m.key, err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(calls.HeaderKey, calls.KeyOf(dedup.Identity{Group: p.cfg.Group, Tag: m.tag, Key: m.key}))
	resp, err := p.client.Do(req)
	if err != nil {
		return fmt.Errorf("call for %s: %w", m.key, err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode/100 != 2 {
		return fmt.Errorf("call for %s: it answered %s: %w", m.key, resp.Status, err)
	}
	return nil
}
