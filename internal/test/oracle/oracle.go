package oracle

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/wire"
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

	// Chain, if set, is what lies before and behind the log in a run that begins at an outbox.
	Chain *Chain
}

// Allowance is what a run was allowed to leave behind. The zero value allows nothing.
type Allowance struct {
	// Queued: messages may still be in the main, retry and backstop queues (a run that was cut short).
	Queued bool
	// Attempts is how many attempts a message that must be applied may have cost, 0 means 1. A process killed during an
	// attempt costs one; a dependency's failure never does.
	Attempts int
}

// Counters are those that RabbitMQ's own Jepsen tests print, and what belongs to dead letters.
type Counters struct {
	Attempt            int // publishes tried
	Acknowledged       int // publishes confirmed
	Applied            int // messages whose effect is committed
	Lost               int // confirmed messages that are nowhere
	DuplicatedEffects  int // reservations released more than once
	DeadLettered       int // messages dead, with a letter
	Discarded          int // messages discarded by a person
	Queued             int // messages still in a queue
	DuplicatesAbsorbed int // confirmed further copies of messages that have ended
	Recovered          int // messages applied although no publish of them was confirmed
	Stale              int // copies and letters in queues whose message has ended otherwise
	AttemptsSpent      int // claimed attempts of messages that must be applied, beyond the first of each
}

// Chain says where to look for what lies before and behind the consumer log.
type Chain struct {
	Orders string // the table of the orders: order_sn, and status, which is paid or something else
	Outbox string // the table of the outbox
	Told   string // the table with a row of each effect of an event stock.released: event, its key
}

// Ends are what was counted at the ends of the chain.
type Ends struct {
	Orders, Paid int
	Events       int // releases that had the effect of their event
}

// Report is the verdict on a run.
type Report struct {
	Counters
	DeadByReason  map[dedup.Reason]int
	Before, After Stock
	Ends          *Ends    // of the chain, if there is one
	Findings      []string // what is wrong, each kind with examples; empty when the promise was kept

	more map[string]int // findings of a kind that were left out
}

// examples is how many findings of one kind are told.
const examples = 5

// find notes what is wrong. kind says what, and more of it than examples are only counted.
func (r *Report) find(kind, format string, args ...any) {
	r.more[kind]++
	if n := r.more[kind]; n <= examples {
		r.Findings = append(r.Findings, kind+": "+fmt.Sprintf(format, args...))
	}
}

// Err is nil when the promise was kept.
func (r *Report) Err() error {
	if len(r.Findings) == 0 {
		return nil
	}
	lines := slices.Clone(r.Findings)
	for kind, n := range r.more {
		if n > examples {
			lines = append(lines, fmt.Sprintf("%s: %d in all", kind, n))
		}
	}
	return errors.New("the promise is broken:\n  " + strings.Join(lines, "\n  "))
}

// judgement is a check in the making.
type judgement struct {
	*Report
	w      World
	ctx    context.Context
	allow  Allowance
	ledger *Ledger
	queues *queues
	rows   map[rowKey]row
}

// Check judges. The error says that it could not; what was found wrong is in the report.
func (w World) Check(ctx context.Context, before Stock, l *Ledger, allow Allowance) (*Report, error) {
	allow.Attempts = max(1, allow.Attempts)
	l.mu.Lock()
	defer l.mu.Unlock()
	j := judgement{w: w, ctx: ctx, allow: allow, ledger: l, Report: &Report{
		Before: before, DeadByReason: map[dedup.Reason]int{}, more: map[string]int{},
		Counters: Counters{Attempt: l.attempt, Acknowledged: l.ack},
	}}
	err := must.Catch(func() {
		j.queues, j.rows, j.After = w.readQueues(ctx), w.readRows(ctx), must.Get(ReadStock(ctx, w.DB))
		j.checkSums()
		j.findOwnRows()
		for n, m := range l.messages {
			j.checkMessage(n, m)
		}
		j.checkRows()
		j.checkQueues()
		j.checkHalves()
		j.checkAudit()
		if w.Chain != nil {
			j.checkChain(*w.Chain)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("oracle: %w", err)
	}
	return j.Report, nil
}

// checkSums is rule 1.
func (j judgement) checkSums() {
	skus := maps.Clone(j.After)
	maps.Copy(skus, j.Before)
	for _, sku := range slices.Sorted(maps.Keys(skus)) {
		was, is := j.Before[sku], j.After[sku]
		if is.Total() != was.Total() {
			j.find("stock", "sku %d has %d in all (%+v), want %d (%+v at first)", sku, is.Total(), is, was.Total(), was)
		}
		if min(is.Amount, is.Reserved, is.Released, is.Deducted) < 0 {
			j.find("stock", "sku %d has something negative: %+v", sku, is)
		}
	}
}

// findOwnRows finds the row that speaks of each message: the one under its key, unless that is another body's; then the
// one under which the conflict is filed; that of a nameless one by its body. Two of such a one say that daemons have
// called it by two names, which is wrong unless its fate is open: a message may be readable once and not again.
func (j judgement) findOwnRows() {
	for n, m := range j.ledger.messages {
		m.rows, m.own = nil, rowKey{n.key.Tag, n.key.Key}
		conflict := rowKey{m.conflict.Tag, m.conflict.Key}
		r, exists := j.rows[m.own]
		if _, filed := j.rows[conflict]; exists && len(r.hash) > 0 && !bytes.Equal(r.hash, n.hash[:]) || !exists && filed {
			m.own = conflict
		}
	}
	for k, own := range j.rows {
		if len(own.hash) != sha256.Size {
			continue
		}
		if m := j.ledger.messages[name{hash: [sha256.Size]byte(own.hash)}]; m != nil { // only a nameless one has no key
			m.rows, m.own = append(m.rows, k), k
		}
	}
	for n, m := range j.ledger.messages {
		if len(m.rows) > 1 && m.fate != (Fate{}) {
			j.find("two names", "the message with body %x has the rows %v", n.hash, m.rows)
		}
	}
}

// checkMessage is rule 2 and rule 6: each message by its row.
func (j judgement) checkMessage(n name, m *message) {
	own, exists := j.rows[m.own]
	if !exists {
		own.status = -1
	}
	copies := j.queues.waiting[n]
	if m.nameless {
		copies = j.queues.bodies[n]
	}
	ended := true
	switch {
	case own.status == success:
		j.Applied++
		if m.acked == 0 {
			j.Recovered++
		}
	case own.status == dead:
		j.DeadLettered++
		j.DeadByReason[own.reason]++
		if j.queues.letters[m.own] == 0 {
			j.find("letter missing", "message %v is dead (%s), but the dead-letter queue does not hold it", n.key, own.reason)
		}
	case own.status == discarded:
		j.Discarded++
	case copies > 0:
		ended = false
		j.Queued++
		if !j.allow.Queued {
			j.find("still queued", "message %v, its row is %+v", n.key, own)
		}
	case m.acked > 0:
		ended = false
		j.Lost++
		j.find("lost", "message %v was confirmed %d times and is in no queue; its row is %+v", n.key, m.acked, own)
	default:
		ended = false // never confirmed and never seen: the producer knows
	}
	if ended {
		j.DuplicatesAbsorbed += max(0, m.acked-1)
		j.Stale += copies
	}
	switch {
	case m.fate.applied && ended && own.status != success:
		j.find("innocent", "message %v should be applied, its row is %+v", n.key, own)
	case m.fate.applied && own.status == success:
		j.AttemptsSpent += max(0, own.attempts-1)
		if own.attempts > j.allow.Attempts {
			j.find("attempts", "message %v cost %d attempts, at most %d were to be expected", n.key, own.attempts,
				j.allow.Attempts)
		}
	case m.fate.reason != "" && ended && (own.status != dead || own.reason != m.fate.reason):
		j.find("fate", "message %v should be dead (%s), its row is %+v", n.key, m.fate.reason, own)
	}
}

// checkRows finds rows that nobody's message accounts for.
func (j judgement) checkRows() {
	known := map[rowKey]bool{}
	for n, m := range j.ledger.messages {
		for _, k := range append(m.rows, rowKey{n.key.Tag, n.key.Key}, rowKey{m.conflict.Tag, m.conflict.Key}) {
			known[k] = true
		}
	}
	for k, own := range j.rows {
		if !known[k] {
			j.find("unexpected", "row %s/%s (%+v) is of a message that nobody published", k.tag, k.name, own)
		}
	}
}

// checkQueues is rule 4.
func (j judgement) checkQueues() {
	for queue, n := range j.queues.unacked {
		if n > 0 {
			j.find("unacked", "%d deliveries of %s", n, queue)
		}
	}
	for n, copies := range j.queues.waiting {
		if !j.allow.Queued {
			j.find("left behind", "%d copies of %v are in the main, retry or backstop queues", copies, n.key)
		}
	}
	for k, n := range j.queues.letters {
		if j.rows[k].status == dead {
			n--
		}
		j.Stale += n
	}
}

// checkHalves is rule 5: what a success row stands for is released, and what is released has a success row.
func (j judgement) checkHalves() {
	reserved := map[string]int{}
	must.Rows(j.ctx, j.w.DB, "SELECT order_sn FROM stock_reservation WHERE status = 1", func(scan func(...any)) {
		var order string
		scan(&order)
		reserved[order]++
	})
	for n, m := range j.ledger.messages {
		if left := reserved[m.order]; m.order != "" && left > 0 && j.rows[m.own].status == success {
			j.find("half batch", "message %v is applied, but %d items of order %q are still reserved", n.key, left, m.order)
		}
	}
	must.Rows(j.ctx, j.w.DB, `SELECT order_sn, COALESCE(rollback_tag, ''), COALESCE(rollback_key, ''), COUNT(*)
		FROM stock_reservation WHERE status = 2 GROUP BY 1, 2, 3`, func(scan func(...any)) {
		var order string
		var k rowKey
		var n int
		scan(&order, &k.tag, &k.name, &n)
		if own := j.rows[k]; own.status != success {
			j.find("half batch", "%d items of order %q are released by message %s/%s, whose row does not say success: %+v", n,
				order, k.tag, k.name, own)
		}
	})
}

// auditTable counts releases. A trigger writes it inside the transaction that releases, so what was rolled back is not
// in it. It has no unique key: a second release must show.
const auditTable = "oracle_release"

// Audit lets the database itself write down every release of a reservation from now on. It costs an insert for each, so
// it is for fault tests; the sums are enough elsewhere. On MySQL 8 with a binary log the account needs SUPER or
// log_bin_trust_function_creators.
func Audit(ctx context.Context, db *sql.DB) error {
	return must.Catch(func() {
		must.Exec(ctx, db, "CREATE TABLE "+auditTable+` (
			id BIGINT AUTO_INCREMENT PRIMARY KEY, order_sn VARBINARY(64) NOT NULL, sku_id BIGINT NOT NULL, was TINYINT NOT NULL
		) ENGINE=InnoDB`, `CREATE TRIGGER oracle_release_seen AFTER UPDATE ON stock_reservation FOR EACH ROW
			INSERT INTO `+auditTable+" (order_sn, sku_id, was) "+
			"SELECT NEW.order_sn, NEW.sku_id, OLD.status FROM DUAL WHERE NEW.status = 2")
	})
}

// broken runs a query that finds in words what breaks a rule, and says how often.
func (j judgement) broken(kind, query string) int {
	must.Rows(j.ctx, j.w.DB, query, func(scan func(...any)) {
		var found string
		scan(&found)
		j.find(kind, "%s", found)
	})
	return j.more[kind]
}

// checkAudit is rule 3. Without an audit there is nothing to check.
func (j judgement) checkAudit() {
	const made = "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = '"
	if must.Value[int](j.ctx, j.w.DB, made+auditTable+"'") == 0 {
		return
	}
	j.DuplicatedEffects = j.broken("duplicated effect", "SELECT CONCAT('sku ', sku_id, ' of order ', order_sn, "+
		"' was released ', COUNT(*), ' times, ', SUM(was <> 1), ' times when it was not reserved') FROM "+auditTable+
		" GROUP BY order_sn, sku_id HAVING COUNT(*) > 1 OR SUM(was <> 1) > 0")
	j.broken("audit", "SELECT CONCAT('it saw ', seen, ' releases of ', done, ': it was made too late to judge this run') "+
		"FROM (SELECT (SELECT COUNT(*) FROM "+auditTable+") AS seen, (SELECT COUNT(*) FROM stock_reservation "+
		"WHERE status = 2) AS done) AS counted WHERE seen < done")
}

// checkChain is rule 7.
func (j judgement) checkChain(c Chain) {
	count := func(what string) int { return must.Value[int](j.ctx, j.w.DB, "SELECT COUNT(*) FROM "+c.Orders+what) }
	e := &Ends{Orders: count(""), Paid: count(" WHERE status = 'paid'")}
	j.Ends = e
	j.broken("order", "SELECT CONCAT(o.order_sn, ' is ', o.status, ', and the stock has another end for "+
		"some of its ', COUNT(r.sku_id), ' items') FROM "+c.Orders+" o LEFT JOIN stock_reservation r USING (order_sn) "+
		"GROUP BY o.order_sn, o.status HAVING COUNT(r.sku_id) = 0 OR SUM(r.status <> IF(o.status = 'paid', 3, 2)) > 0")
	j.broken("left in the outbox", "SELECT CONCAT(msg_tag, '/', msg_key, ' (', COALESCE(reason, ''), ')') FROM "+c.Outbox)
	must.Rows(j.ctx, j.w.DB, "SELECT event, SUM(released), SUM(told) FROM (SELECT DISTINCT CONCAT_WS('/', rollback_tag, "+
		"rollback_key) AS event, 1 AS released, 0 AS told FROM stock_reservation WHERE status = 2 UNION ALL "+
		"SELECT event, 0, 1 FROM "+c.Told+") AS both_ends GROUP BY event", func(scan func(...any)) {
		var event string
		var released, told int
		scan(&event, &released, &told)
		if told > 1 {
			j.find("event double-applied", "%s %d times", event, told)
		}
		switch {
		case released == 0:
			j.find("event of nothing", "%s, and no such message has released anything", event)
		case told == 0:
			j.find("event missing", "%s has released something", event)
		default:
			e.Events++
		}
	})
}

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
