package consumer

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wire"
	"github.com/rollbackd/rollbackd/lock"
)

// Rehearsal is the engine without servers; package consumertest makes one for a test. Its log and its queues are in
// memory, it has no lock and no brake, and works on one batch at a time. All else is the engine's own. It is for one
// goroutine.
type Rehearsal struct {
	cfg     Config
	worker  *worker
	records *dedup.Log
	ahead   time.Duration // how far Advance has come
	waiting []waiting
	letters []rabbit.Delivery
	count   uint64 // deliveries and replays, to name them
}

// waiting is a message that is delivered when its time has come.
type waiting struct {
	due time.Time
	rabbit.Delivery
}

// NewRehearsal makes the engine for h, whose statements are written as db writes them and run in transactions of pool.
// What cfg says of servers, lanes and the brake is not used.
func NewRehearsal(cfg Config, h Handler, db *gorm.DB, pool *sql.DB) (*Rehearsal, error) {
	cfg.AMQPURLs, cfg.MaxDead = []string{"amqp://nobody.invalid"}, Off
	cfg, err := cfg.complete(h)
	if err != nil {
		return nil, err
	}
	r := &Rehearsal{}
	records, memory, err := dedup.NewMemory(cfg.LogOptions(), r.now)
	if err != nil {
		return nil, err
	}
	hook := cfg.Hook
	cfg.Hook = func(p Point) {
		if p == PointCommitted {
			memory.Committed()
		}
		if hook != nil {
			hook(p)
		}
	}
	c, err := newConsumer(cfg, h, Options{DB: db})
	if err != nil {
		return nil, err
	}
	broker := inMemory{r}
	c.records, c.publisher, c.effects.pool = records, broker, pool
	if c.effects.checks != nil {
		c.effects.checks.server = false
	}
	r.cfg, r.records = cfg, records
	r.worker = &worker{
		c: c.engine, name: c.name + "/0", acks: broker, clock: &laneClock{}, locker: schemaLock{Locker: lock.None{}},
		size: cfg.BatchSize, atOnce: firstGroup,
	}
	return r, nil
}

func (r *Rehearsal) now() time.Time { return time.Now().Add(r.ahead) }

// Deliver has messages delivered in one batch, as a producer publishes them, and says how each delivery ended. The key
// stands in the header x-message-key, and in message_id where that is empty; an empty one stands in neither. It panics
// over headers that AMQP has no types for.
func (r *Rehearsal) Deliver(ctx context.Context, msgs ...Message) []Ended {
	batch := make([]rabbit.Delivery, len(msgs))
	for i, m := range msgs {
		headers, _, err := rabbit.Sendable(m.Headers)
		if err != nil {
			panic(fmt.Sprintf("deliver %s/%q: %v", m.Tag, m.Key, err))
		}
		if m.Key != "" {
			headers["x-message-key"] = m.Key
		}
		if !m.PublishedAt.IsZero() {
			headers[wire.HeaderPublishedAt] = m.PublishedAt.UnixMilli()
		}
		batch[i] = rabbit.Delivery{RoutingKey: r.cfg.RoutingKeys[0], Message: rabbit.Message{
			Type: m.Tag, MessageID: cmp.Or(m.MessageID, m.Key), ContentType: m.ContentType, Headers: headers, Body: m.Body,
		}}
	}
	return r.deliver(ctx, batch)
}

// givenBackFor is how long what was given back stays in the queue: about as long as the engine would have waited for
// whatever is away before.
const givenBackFor = time.Minute

// deliver has the worker go through a batch. What it gives back waits to be delivered again; its Cause is why.
func (r *Rehearsal) deliver(ctx context.Context, batch []rabbit.Delivery) []Ended {
	w := r.worker
	for i := range batch {
		r.count++
		batch[i].Tag, batch[i].Came = r.count, time.Now()
	}
	w.intake = ctx
	b := w.newBatch(batch)
	err := w.process(ctx, b)
	if err != nil {
		w.leave(ctx, b)
		_ = w.c.pending.settle(ctx, w.c.records) // memory has no trouble
	}
	ends := make([]Ended, len(batch))
	for i, it := range b.all {
		if it.stage == stageAcked {
			ends[i] = endedOf(it, it.outcome)
			continue
		}
		ends[i] = endedOf(it, Abandoned)
		ends[i].Cause = err.Error()
		batch[i].Redelivered, batch[i].Count = true, batch[i].Count+1
		r.waiting = append(r.waiting, waiting{r.now().Add(givenBackFor), batch[i]})
	}
	clear(w.hand)
	return ends
}

// Advance lets time pass, and returns how the deliveries of all that came back meanwhile have ended, in the order in
// which they came.
func (r *Rehearsal) Advance(ctx context.Context, d time.Duration) (ends []Ended) {
	end := r.now().Add(d)
	for ctx.Err() == nil {
		slices.SortStableFunc(r.waiting, func(a, b waiting) int { return a.due.Compare(b.due) })
		if len(r.waiting) == 0 || r.waiting[0].due.After(end) {
			break
		}
		r.ahead += max(0, r.waiting[0].due.Sub(r.now()))
		now, batch := r.now(), []rabbit.Delivery(nil)
		for len(r.waiting) > 0 && !r.waiting[0].due.After(now) && len(batch) < r.cfg.BatchSize {
			batch, r.waiting = append(batch, r.waiting[0].Delivery), r.waiting[1:]
		}
		ends = append(ends, r.deliver(ctx, batch)...)
	}
	r.ahead += max(0, end.Sub(r.now()))
	return ends
}

// Replay has the dead letter of a message replayed, and returns how its delivery ended.
func (r *Rehearsal) Replay(ctx context.Context, key string) (Ended, error) {
	for i, letter := range slices.Backward(r.letters) {
		id, err := wire.Identify(r.cfg.Group, r.cfg.keyFrom, r.cfg.Queue, letter)
		if err != nil || id.Identity.Key != key {
			continue
		}
		row, err := r.records.Read(ctx, id.Identity)
		if err != nil || row.Status != dedup.Dead {
			return Ended{}, errors.Join(fmt.Errorf("replay %v: it is %v", id.Identity, row.Status), err)
		}
		r.count++
		row, err = r.records.Reopen(ctx, row, dedup.Entry{Identity: id.Identity, BodyHash: id.BodyHash}, dedup.ReplayNote{
			By: "rehearsal", Filter: "key " + key, Token: row.ReplayToken(fmt.Sprintf("rehearsal/%d", r.count)),
		})
		if err != nil {
			return Ended{}, err
		}
		r.letters = slices.Delete(r.letters, i, i+1)
		again := wire.Copy(letter, r.cfg.Queue, wire.CopyOptions{Identity: id, Replays: row.Replays})
		return r.deliver(ctx, []rabbit.Delivery{{RoutingKey: r.cfg.Queue, Message: again}})[0], nil
	}
	return Ended{}, fmt.Errorf("replay %q: there is no dead letter with this key", key)
}

// Row is what the log says of a message; its status is [dedup.Absent] when it says nothing.
func (r *Rehearsal) Row(ctx context.Context, tag, key string) (dedup.Row, error) {
	return r.records.Read(ctx, dedup.Identity{Group: r.cfg.Group, Tag: tag, Key: key})
}

// inMemory takes what RabbitMQ takes of a rehearsal.
type inMemory struct{ r *Rehearsal }

func (m inMemory) Publish(_ context.Context, copies []rabbit.Publishing) []error {
	for _, p := range copies {
		d := rabbit.Delivery{RoutingKey: m.r.cfg.Queue, Message: p.Message}
		if p.Key == rabbit.DeadQueue(m.r.cfg.Queue) {
			m.r.letters = append(m.r.letters, d)
		}
		for _, delay := range m.r.cfg.RetryDelays {
			if p.Key == rabbit.RetryQueue(m.r.cfg.Queue, delay) {
				m.r.waiting = append(m.r.waiting, waiting{m.r.now().Add(delay), d})
			}
		}
	}
	return make([]error, len(copies))
}

func (inMemory) Renew()                      {}
func (inMemory) Close(context.Context) error { return nil }
func (inMemory) AckAll([]uint64) error       { return nil }
