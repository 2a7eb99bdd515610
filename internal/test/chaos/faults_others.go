package chaos

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// otherFaults are what a producer, an operator and a colleague do without meaning harm. None of it may cost an attempt
// or a letter too many, or stop the messages that have nothing to do with it.
func otherFaults() []fault {
	return []fault{
		lonely(unreadableHeaders, "letters", 0, 0, 0, unreadable),
		lonely("mysql LOCK TABLES", "daemons' connections waiting", 10, 12, 20, lockTables),
		lonely("mysql ALTER waits", "daemons' connections waiting", 6, 12, 20, alterTable),
		lonely("mysql row locks in turn", "daemons' connections waiting", 9, 18, 25, rowLocks),
	}
}

const unreadableHeaders = "unreadable headers"

// unreadable is a producer whose headers no daemon's library can read, among the load: of ten kinds that can never be
// read, and of three whose frame is full until RabbitMQ adds x-delivery-count: these are read each time, and are
// rollbacks of orders that nobody has reserved.
func unreadable(ctx context.Context, w *world, _ planned) (int, error) {
	raw, err := stack.DialRaw(ctx, w.load.urls[0])
	if err != nil {
		return 0, err
	}
	defer raw.Close() // everything it has published is confirmed
	var hashes []any
	publish := func(id string, headers []byte, fate oracle.Fate) error {
		body := fmt.Appendf(nil, `{"order_sn":"%s"}`, id)
		err := raw.Publish(stack.RawMessage{
			Exchange: w.load.route.Exchange, Key: w.load.route.Key, MessageID: id, Headers: headers, Body: body,
		})
		w.load.ledger.RecordNameless(body, fate, err)
		hash := sha256.Sum256(body)
		hashes = append(hashes, hash[:])
		return err
	}
	for _, odd := range stack.UnreadableHeaders("chaos") {
		if err := publish("unreadable-"+w.plantName(), odd.Entries, oracle.ToDie(dedup.ReasonUnidentified)); err != nil {
			return 0, err
		}
	}
	fill := func() error {
		for i := range len(stack.FillingHeaders(raw.FrameMax(), "chaos", "", "")) {
			id := "unreadable-" + w.plantName()
			odd := stack.FillingHeaders(raw.FrameMax(), "chaos", id, "")[i]
			if err := publish(id, odd.Entries, oracle.ToDie(dedup.ReasonExhausted)); err != nil {
				return err
			}
		}
		return nil
	}
	if err := w.redelivered(ctx, fill); err != nil {
		return 0, err
	}
	return w.die(ctx, "have unreadable headers", "body_hash", hashes), nil
}

// redelivered publishes while no daemon can settle anything, and cuts their connections when they hold it all.
func (w *world) redelivered(ctx context.Context, publish func() error) error {
	unlock, err := w.lock(ctx, "LOCK TABLES consumer_log WRITE", "UNLOCK TABLES")
	if err != nil {
		return err
	}
	err = publish()
	until(ctx, 10*time.Second, func() bool { n, err := w.depth(ctx, queue); return err == nil && n == 0 })
	for _, l := range w.amqp {
		l.Cut()
	}
	return errors.Join(err, unlock())
}

// die waits until all messages with these values of a column are dead, and counts them.
func (w *world) die(ctx context.Context, what, column string, values []any) (dead int) {
	const patience = time.Minute
	all := func() bool { dead = w.dead(ctx, column, values); return dead == len(values) }
	if !until(ctx, patience, all) && ctx.Err() == nil {
		w.violation("only %d of %d messages that %s are dead %v later", dead, len(values), what, patience)
	}
	return dead
}

// dead counts the dead messages with these values of a column. Where people replay, those count that were dead before.
func (w *world) dead(ctx context.Context, column string, values []any) (n int) {
	query := fmt.Sprintf(`SELECT COUNT(DISTINCT %s) FROM consumer_log
		WHERE (consumer_status = 3 OR replays > 0) AND %s IN (%s)`,
		column, column, strings.TrimSuffix(strings.Repeat("?,", len(values)), ","))
	if err := w.db.QueryRowContext(ctx, query, values...).Scan(&n); err != nil {
		w.say("cannot count the dead: %v", err)
	}
	return n
}

// lock runs a statement on a connection of its own, and returns what undoes it.
func (w *world) lock(ctx context.Context, do string, undo string) (func() error, error) {
	conn, err := w.db.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if _, err := conn.ExecContext(ctx, do); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", do, err), conn.Close())
	}
	return func() error {
		_, err := conn.ExecContext(context.WithoutCancel(ctx), undo)
		return errors.Join(err, conn.Close())
	}, nil
}

const (
	waitsForTable = "SELECT COUNT(*) FROM " + stack.Processes + " WHERE user = ? AND state LIKE 'Waiting for table%'"
	waitsForRow   = "SELECT COUNT(*) FROM " + stack.Transactions + " JOIN " + stack.Processes + " p ON p.id = conn " +
		"WHERE p.user = ? AND waits"
)

// waiting looks for so long how many connections of the daemons wait, at most.
func (w *world) waiting(ctx context.Context, query string, lasts time.Duration) (most int) {
	for end := time.Now().Add(lasts); time.Now().Before(end) && ctx.Err() == nil; {
		var n int
		if err := w.db.QueryRowContext(ctx, query, account).Scan(&n); err != nil {
			w.say("cannot ask who waits: %v", err)
		}
		most = max(most, n)
		_ = wait.For(ctx, 200*time.Millisecond)
	}
	return most
}

// lockTables is a colleague's LOCK TABLES, or a dump that takes a table's read lock.
func lockTables(ctx context.Context, w *world, p planned) (int, error) {
	table := []string{"stock", "stock_reservation", "consumer_log"}[p.variant%3]
	mode := []string{"WRITE", "READ"}[p.variant/3%2]
	unlock, err := w.lock(ctx, fmt.Sprintf("LOCK TABLES %s %s", table, mode), "UNLOCK TABLES")
	if err != nil {
		return 0, err
	}
	return w.waiting(ctx, waitsForTable, p.lasts), unlock()
}

// alterTable rebuilds a table by copying it, behind a colleague's transaction that has read from it: MySQL lets nobody
// pass a change of a table that waits.
func alterTable(ctx context.Context, w *world, p planned) (int, error) {
	table := []string{"stock", "stock_reservation", "consumer_log"}[p.variant%3]
	reader, err := w.db.BeginTx(ctx, nil)
	if err != nil {
		return 0, fmt.Errorf("begin: %w", err)
	}
	defer reader.Rollback() // it has read only
	var one int
	if err := reader.QueryRowContext(ctx, "SELECT 1 FROM "+table+" LIMIT 1").Scan(&one); err != nil {
		return 0, fmt.Errorf("read from %s: %w", table, err)
	}
	done := make(chan error, 1)
	go func() { done <- w.exec(ctx, "ALTER TABLE "+table+" FORCE, ALGORITHM=COPY")() }() // joined below
	hits := w.waiting(ctx, waitsForTable, p.lasts)
	err = reader.Commit()
	return hits, errors.Join(err, <-done)
}

// rowLocks is a colleague who locks a third of all goods, and the next, and the next, again and again, each third for a
// few seconds. Who needs goods of all three waits for one after the other, in one call of the handler.
func rowLocks(ctx context.Context, w *world, p planned) (int, error) {
	const thirds, each = 3, 1800 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, p.lasts)
	defer cancel()
	errs := make([]error, thirds)
	var wg sync.WaitGroup
	for third := range thirds {
		wg.Go(func() {
			holds := time.Duration(third+1) * each // the first time: so they take turns
			for ctx.Err() == nil && errs[third] == nil {
				errs[third] = w.holdGoods(ctx, third, thirds, holds)
				holds = thirds * each
			}
		})
	}
	hits := w.waiting(ctx, waitsForRow, p.lasts)
	wg.Wait()
	return hits, errors.Join(errs...)
}

// holdGoods locks every step-th sku from the first on, for so long.
func (w *world) holdGoods(ctx context.Context, first, step int, lasts time.Duration) error {
	began := time.Now()
	tx, err := w.db.BeginTx(context.WithoutCancel(ctx), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback()                         // it has read only
	for sku := first; sku < skus; sku += step { // in the order in which the daemons do
		var amount int64
		if err := tx.QueryRow("SELECT amount FROM stock WHERE sku_id = ? FOR UPDATE", sku+1).Scan(&amount); err != nil {
			return fmt.Errorf("lock sku %d: %w", sku+1, err)
		}
	}
	_ = wait.For(ctx, lasts-time.Since(began))
	return nil
}
