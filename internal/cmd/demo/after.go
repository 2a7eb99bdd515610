package main

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/program"
)

// errStock ends the demo with exit code 1.
var errStock = errors.New("the stock is not what it must be")

// report tells what became of the messages, asked of MySQL and not of the daemon.
func (d *demo) report() {
	applied, dead := d.count()
	metrics := must.Get(d.daemon.Metrics(d.ctx))
	first := int(duplicates*orders) + orders + malformed + unknownOrders // published before the clock was stopped
	d.first = outcome{
		Orders: orders, Published: first + conflicts, Applied: applied, Absorbed: metrics.Deliveries("duplicate"), Dead: dead,
		Stock: compare(d.reserved, d.stock(), d.initial), Took: d.took, PerSecond: int(float64(first) / d.took.Seconds()),
	}
	d.say("")
	d.first.write(d.out)
	d.first.Stock.mustBeRight()
}

func (b balance) mustBeRight() {
	if b.Wrong > 0 {
		must.OK(errStock)
	}
}

// mend makes the unknown orders known: their reservations had only been late.
func (d *demo) mend() {
	d.reserveAll(d.unknown)
	d.mended = d.stock()
	d.say("\nthe %d unknown orders become known: they reserve %s pieces; now `rollbackd dlq replay --reason exhausted`",
		len(d.unknown), number(d.mended.Sum().Reserved))
}

// replay runs rollbackd dlq replay, and waits for what it brings back.
func (d *demo) replay() {
	text := must.Get(program.Run(d.ctx, d.binary, d.env, "dlq", "replay", "--reason", string(dedup.ReasonExhausted),
		"--output", "json"))
	var result struct{ Replayed int }
	must.OK(json.Unmarshal([]byte(text), &result), "read what the replay says: ", text)
	if result.Replayed != len(d.unknown) {
		must.OK(fmt.Errorf("%d letters replayed, want %d:\n%s", result.Replayed, len(d.unknown), text))
	}
	var keys []dedup.Identity
	for _, o := range d.unknown {
		keys = append(keys, dedup.Identity{Group: d.cfg.Group, Tag: d.route.Key, Key: o.Key()})
	}
	d.ledger.Expect(oracle.ToBeApplied(), keys...)
	d.ended(orders+unknownOrders, malformed+conflicts)
}

// reportReplay tells what the replay changed.
func (d *demo) reportReplay() {
	applied, dead := d.count()
	r := replayed{
		Reserved: d.mended.Sum().Reserved, Letters: len(d.unknown), Applied: d.first.Applied, AppliedAfter: applied,
		Dead: d.first.Dead, DeadAfter: dead, Stock: compare(d.mended, d.stock(), d.initial),
	}
	d.say("")
	r.write(d.out)
	r.Stock.mustBeRight()
}

// judge drains the daemon and asks the oracle, which also reads the queues: nothing may be lost, doubled or left
// behind.
func (d *demo) judge() {
	d.stopDaemon()
	verdict := must.Get(d.oracle.Check(d.ctx, d.initial, d.ledger, oracle.Allowance{}))
	d.say("\noracle: %v", verdict.Counters)
	must.OK(verdict.Err())
}
