package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/program"
)

// errStock ends the demo with exit code 1.
var errStock = errors.New("the stock is not what it must be")

// report tells what became of the messages, asked of MySQL and not of the daemon.
func (d *demo) report(ctx context.Context) error {
	after, err := oracle.ReadStock(ctx, d.pool)
	if err != nil {
		return err
	}
	rows, err := d.count(ctx)
	if err != nil {
		return err
	}
	dead, err := d.dead(ctx)
	if err != nil {
		return err
	}
	metrics, err := d.daemon.Metrics(ctx)
	if err != nil {
		return err
	}
	first := int(duplicates*orders) + orders + malformed + unknownOrders // published before the clock was stopped
	d.first = outcome{
		Orders: orders, Published: first + conflicts, Applied: rows.applied, Absorbed: metrics.Deliveries("duplicate"),
		Dead:  dead,
		Stock: compare(d.reserved, after, d.initial), Took: d.took, PerSecond: int(float64(first) / d.took.Seconds()),
	}
	d.say("")
	if err := d.first.write(d.out); err != nil {
		return err
	}
	if d.first.Stock.Wrong > 0 {
		return errStock
	}
	return nil
}

// dead counts the dead rows by reason.
func (d *demo) dead(ctx context.Context) (map[string]int, error) {
	rows, err := d.pool.QueryContext(ctx, "SELECT reason, COUNT(*) FROM "+d.cfg.LogTable+" WHERE consumer_status = ? "+
		"GROUP BY reason", int(dedup.Dead))
	if err != nil {
		return nil, fmt.Errorf("count the dead letters: %w", err)
	}
	defer rows.Close()
	found := map[string]int{}
	for rows.Next() {
		var reason string
		var n int
		if err := rows.Scan(&reason, &n); err != nil {
			return nil, fmt.Errorf("count the dead letters: %w", err)
		}
		found[reason] = n
	}
	return found, rows.Err()
}

// mend makes the unknown orders known: their reservations had only been late.
func (d *demo) mend(ctx context.Context) (err error) {
	if err := d.reserveAll(ctx, d.unknown); err != nil {
		return err
	}
	if d.mended, err = oracle.ReadStock(ctx, d.pool); err != nil {
		return err
	}
	d.say("\nthe %d unknown orders become known: they reserve %s pieces; now `rollbackd dlq replay --reason exhausted`",
		len(d.unknown), number(d.mended.Sum().Reserved))
	return nil
}

// replay runs rollbackd dlq replay, and waits for what it brings back.
func (d *demo) replay(ctx context.Context) error {
	text, err := program.Run(ctx, d.binary, d.env, "dlq", "replay", "--reason", string(dedup.ReasonExhausted), "--output",
		"json")
	if err != nil {
		return err
	}
	var result struct{ Replayed int }
	if err := json.Unmarshal([]byte(text), &result); err != nil {
		return fmt.Errorf("read what the replay says: %w\n%s", err, text)
	}
	if result.Replayed != len(d.unknown) {
		return fmt.Errorf("%d letters replayed, want %d:\n%s", result.Replayed, len(d.unknown), text)
	}
	var keys []dedup.Identity
	for _, o := range d.unknown {
		keys = append(keys, dedup.Identity{Group: d.cfg.Group, Tag: d.cfg.RoutingKeys[0], Key: o.Key()})
	}
	d.ledger.Expect(oracle.ToBeApplied(), keys...)
	if err := d.ended(ctx, orders+unknownOrders, malformed+conflicts); err != nil {
		return fmt.Errorf("wait for the replayed messages: %w", err)
	}
	return nil
}

// reportReplay tells what the replay changed.
func (d *demo) reportReplay(ctx context.Context) error {
	after, err := oracle.ReadStock(ctx, d.pool)
	if err != nil {
		return err
	}
	rows, err := d.count(ctx)
	if err != nil {
		return err
	}
	dead, err := d.dead(ctx)
	if err != nil {
		return err
	}
	r := replayed{
		Reserved: d.mended.Sum().Reserved, Letters: len(d.unknown), Applied: d.first.Applied, AppliedAfter: rows.applied,
		Dead: d.first.Dead, DeadAfter: dead, Stock: compare(d.mended, after, d.initial),
	}
	d.say("")
	if err := r.write(d.out); err != nil {
		return err
	}
	if r.Stock.Wrong > 0 {
		return errStock
	}
	return nil
}

// judge drains the daemon and asks the oracle, which also reads the queues: nothing may be lost, doubled or left
// behind.
func (d *demo) judge(ctx context.Context) error {
	if err := d.stopDaemon(ctx); err != nil {
		return err
	}
	verdict, err := d.oracle.Check(ctx, d.initial, d.ledger, oracle.Allowance{})
	if err != nil {
		return err
	}
	d.say("\noracle: %v", verdict.Counters)
	return verdict.Err()
}
