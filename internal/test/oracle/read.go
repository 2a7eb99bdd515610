package oracle

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// Stock is what there is of each sku.
type Stock map[int64]Goods

// Goods is one sku's stock and what orders hold of it.
type Goods struct{ Amount, Reserved, Released, Deducted int64 }

// Total is what must not change by any rollback: released goods are in the amount again.
func (g Goods) Total() int64 { return g.Amount + g.Reserved + g.Deducted }

// Sum adds all skus up.
func (s Stock) Sum() (sum Goods) {
	for _, g := range s {
		sum.Amount += g.Amount
		sum.Reserved += g.Reserved
		sum.Released += g.Released
		sum.Deducted += g.Deducted
	}
	return sum
}

// ReadStock reads the tables of package stock, in one snapshot.
func ReadStock(ctx context.Context, db *sql.DB) (s Stock, err error) {
	s = Stock{}
	err = must.Catch(func() {
		must.Rows(ctx, db, `SELECT sku_id, SUM(amount), SUM(IF(status = 1, quantity, 0)), SUM(IF(status = 2, quantity, 0)),
			SUM(IF(status = 3, quantity, 0)) FROM (SELECT sku_id, amount, 0 AS status, 0 AS quantity FROM stock
			UNION ALL SELECT sku_id, 0, status, quantity FROM stock_reservation) AS goods GROUP BY sku_id`,
			func(scan func(...any)) {
				var sku int64
				var g Goods
				scan(&sku, &g.Amount, &g.Reserved, &g.Released, &g.Deducted)
				s[sku] = g
			})
	})
	return s, err
}

// The statuses of a row, as stored.
const (
	success   = 1
	dead      = 3
	discarded = 4
)

// rowKey is an identity within the group.
type rowKey struct{ tag, name string }

// row is what the oracle wants of a row of the consumer log.
type row struct {
	status   int
	attempts int
	hash     []byte // nil when the row does not know it
	reason   dedup.Reason
}

func (w World) readRows(ctx context.Context) map[rowKey]row {
	all := map[rowKey]row{}
	must.Rows(ctx, w.DB, "SELECT msg_tag, msg_key, consumer_status, consumer_times, body_hash, COALESCE(reason, '') "+
		"FROM `"+w.LogTable+"` WHERE group_name = ?", func(scan func(...any)) {
		var k rowKey
		var r row
		scan(&k.tag, &k.name, &r.status, &r.attempts, &r.hash, &r.reason)
		all[k] = r
	}, []byte(w.Group))
	return all
}

// queues is what lies in the broker.
type queues struct {
	waiting map[name]int   // copies in the main, retry and backstop queues
	bodies  map[name]int   // the same by their bodies alone
	letters map[rowKey]int // by the row they belong to
	unacked map[string]int // by queue, where it can be asked
}

const (
	// mostRead bounds what is read of one queue: it is held unacked meanwhile, and AMQP counts that in 16 bits.
	mostRead    = 65_535
	readTimeout = 2 * time.Minute
)

// readQueues takes everything out of the queues, without acknowledging, and gives it back.
func (w World) readQueues(ctx context.Context) *queues {
	sources := must.Get(wire.ParseKeySources(w.KeyFrom))
	conn := must.Get(rabbit.Dial(ctx, rabbit.Config{URLs: []string{w.AMQPURL}, Name: "oracle"}))
	defer conn.Close()
	q := &queues{waiting: map[name]int{}, bodies: map[name]int{}, letters: map[rowKey]int{}, unacked: map[string]int{}}
	topology := rabbit.TopologyConfig{Exchange: "unused", Queue: w.Queue, Delays: w.Delays}
	for _, queue := range topology.Queues() {
		if w.Unacked != nil {
			q.unacked[queue] = must.Get(w.Unacked(queue))
		}
		for _, d := range readQueue(ctx, conn, queue) {
			id, _ := wire.Identify(w.Group, sources, w.Queue, d) // an unidentified message has a name too
			if queue != rabbit.DeadQueue(w.Queue) {
				q.waiting[name{id.Identity, id.BodyHash}]++
				q.bodies[name{hash: id.BodyHash}]++
				continue
			}
			if wire.ReadCopy(d.Headers).Reason == dedup.ReasonConflict { // filed under a name that its own key is part of
				id, _ = wire.Conflict(id, d.Body)
			}
			q.letters[rowKey{id.Identity.Tag, id.Identity.Key}]++
		}
	}
	return q
}

// readQueue takes everything out of a queue, without acknowledging, and gives it back.
func readQueue(ctx context.Context, conn *rabbit.Conn, queue string) (found []rabbit.Delivery) {
	n, _, err := conn.Depth(ctx, queue)
	if err == nil && n > mostRead {
		err = fmt.Errorf("it holds %d messages, more than the %d that can be read", n, mostRead)
	}
	must.OK(err, "read "+queue)
	if n == 0 {
		return nil
	}
	late := fmt.Errorf("%d messages of %s were not all there after %v", n, queue, readTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, readTimeout, late)
	defer cancel()
	sub := must.Get(conn.Consume(ctx, queue, "oracle", n))
	for len(found) < n {
		found = append(found, must.Get(sub.Collect(ctx, n-len(found), time.Millisecond, nil))...)
	}
	must.OK(sub.Close())
	return found
}
