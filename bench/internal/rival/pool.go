package rival

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rollbackd/rollbackd/dedup"
	calls "github.com/rollbackd/rollbackd/internal/handler/http"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/test/must"
)

// pool calls a service for each message, as a worker pool in Go does it whose author has thought of crashes: a row says
// that the call is made, which is committed, then the call, then the row says success, which is committed, then the
// ack. Each worker has a channel of RabbitMQ, a connection to MySQL and one to the service. With one channel for all,
// the broker lost acks that it had not passed on to the queue when the channel was closed: the messages came again.
type pool struct {
	rows
	client *http.Client
}

// callPool is a process of them.
func callPool(ctx context.Context, c *contest) {
	p := pool{rows{c, openPool(ctx, c.cfg.MySQLDSN, c.workers)}, &http.Client{
		Transport: &http.Transport{MaxIdleConns: c.workers, MaxIdleConnsPerHost: c.workers}, Timeout: c.cfg.HTTPTimeout,
	}}
	defer p.client.CloseIdleConnections()
	defer p.db.Close()
	const prefetch = 4
	c.side(ctx, c.workers, prefetch, func() func(amqp.Delivery) error {
		return c.settling(func(d amqp.Delivery) { p.process(context.WithoutCancel(ctx), d) })
	})
}

func (p pool) process(ctx context.Context, d amqp.Delivery) {
	m := read(d.MessageId, d.RoutingKey, d.Body)
	err := p.insert(ctx, p.db, m, processing)
	if mysqldb.Duplicate(err) { // the same call again, unless it is known that the service has applied it
		if status, _, _ := p.lookUp(ctx, m); status == success {
			p.duplicate.Add(1)
			return
		}
		err = nil
	}
	must.OK(err)
	p.call(ctx, m)
	p.end(ctx, m, 1, success, "")
	p.applied.Add(1)
}

func (p pool) call(ctx context.Context, m *message) {
	req := must.Get(http.NewRequestWithContext(ctx, http.MethodPost, p.cfg.HTTPTarget, bytes.NewReader(m.body)))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(calls.HeaderKey, calls.KeyOf(dedup.Identity{Group: p.cfg.Group, Tag: m.tag, Key: m.key}))
	resp := must.Get(p.client.Do(req))
	defer resp.Body.Close()
	must.Get(io.Copy(io.Discard, resp.Body))
	if resp.StatusCode/100 != 2 {
		must.OK(fmt.Errorf("the call for %s was answered with %s", m.key, resp.Status))
	}
}
