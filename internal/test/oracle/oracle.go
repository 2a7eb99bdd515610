package oracle

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// World says where to look. Every daemon that works in it must have stopped before it is judged: what a daemon has in
// hand is in no queue.
type World struct {
	DB       *sql.DB // parseTime is not needed; nothing is written
	LogTable string  // of the consumer log
	Group    string
	KeyFrom  string // in the form of ROLLBACKD_KEY_FROM
	AMQPURL  string
	Queue    string // the main queue
	Delays   []time.Duration

	// Unacked, if set, counts a queue's deliveries that are given out and not settled. AMQP itself does not tell.
	Unacked func(queue string) (int, error)
}

// Allowance is what a run was allowed to leave behind. The zero value allows nothing.
type Allowance struct {
	// Queued: messages may still be in the main, retry and backstop queues (a run that was cut short).
	Queued bool
	// Attempts is how many attempts a message that must be applied may have cost, 0 means 1. A process killed during an
	// attempt costs one; a dependency's failure never does.
	Attempts int
}

// Check judges. The error says that it could not; what was found wrong is in the report.
func (w World) Check(ctx context.Context, before Stock, l *Ledger, allow Allowance) (*Report, error) {
	if allow.Attempts == 0 {
		allow.Attempts = 1
	}
	queues, err := w.readQueues(ctx)
	if err != nil {
		return nil, fmt.Errorf("oracle: %w", err)
	}
	rows, err := w.readRows(ctx)
	if err != nil {
		return nil, fmt.Errorf("oracle: %w", err)
	}
	after, err := ReadStock(ctx, w.DB)
	if err != nil {
		return nil, fmt.Errorf("oracle: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	r := &Report{Before: before, After: after, DeadByReason: map[dedup.Reason]int{}}
	r.checkSums(before, after, l.restocked)
	r.nameAll(l, rows)
	r.checkMessages(l, rows, queues, allow)
	r.checkRows(l, rows)
	r.checkQueues(rows, queues, allow)
	if err := errors.Join(w.checkHalves(ctx, r, l, rows), w.checkAudit(ctx, r)); err != nil {
		return nil, fmt.Errorf("oracle: %w", err)
	}
	return r, nil
}

// topology names the queues.
func (w World) topology() rabbit.TopologyConfig {
	return rabbit.TopologyConfig{Exchange: "unused", Queue: w.Queue, Delays: w.Delays}
}
