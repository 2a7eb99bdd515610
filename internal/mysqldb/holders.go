package mysqldb

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"
)

// Holder is a transaction of somebody else's whose rows connections of this user and database wait for.
type Holder struct {
	Connection int64         // the server's number of it; 0 when the transaction is prepared (XA) and has none
	User, Host string        // of the connection
	Open       time.Duration // since when there is the transaction, in whole seconds; 0: the server does not tell
	Table      string        // in which it is waited for
	Statement  string        // the first 100 characters of what it has at work; "": it idles
}

// String says who it is and what it has.
func (h Holder) String() string {
	who := fmt.Sprintf("connection %d (%s from %s)", h.Connection, h.User, h.Host)
	if h.Connection == 0 {
		who = "a prepared transaction without a connection"
	}
	doing := "it sends nothing"
	if h.Statement != "" {
		doing = fmt.Sprintf("it is at %q", h.Statement)
	}
	return fmt.Sprintf("%s holds rows of %s; its transaction began %v ago, and %s; %s ends it", who, h.Table, h.Open,
		doing, h.End())
}

// End is the statement that ends the transaction.
func (h Holder) End() string {
	if h.Connection == 0 {
		return "XA ROLLBACK of one that XA RECOVER lists"
	}
	return fmt.Sprintf("KILL %d", h.Connection)
}

// holdersTimeout bounds the look at the holders; the server itself ends it after half of that.
const holdersTimeout = 2 * time.Second

// whoWaits has a row for each connection that waits for a row of another one: both, and what the other one is at.
//
// On MySQL it is asked of performance_schema alone: what information_schema has fails as a whole while any statement
// has bytes in it that are no text. A lock on a row that was inserted is made by the first one who waits for it, so
// whose it is says the lock on the table. MariaDB has all in information_schema, with times of the system's zone.
const whoWaits = "/*M! SET STATEMENT max_statement_time = 1 FOR */ SELECT /*+ MAX_EXECUTION_TIME(1000) */ DISTINCT " +
	"/*M! r.trx_mysql_thread_id, COALESCE(me.user = SUBSTRING_INDEX(USER(), '@', 1) AND me.db = DATABASE(), 0), " +
	"b.trx_mysql_thread_id, p.user, p.host, " +
	"TIMESTAMPDIFF(SECOND, b.trx_started, CONVERT_TZ(UTC_TIMESTAMP(), '+00:00', 'SYSTEM')), " +
	"REPLACE(l.lock_table, '`', ''), LEFT(p.info, 100) FROM information_schema.innodb_lock_waits w " +
	"JOIN information_schema.innodb_trx r ON r.trx_id = w.requesting_trx_id " +
	"JOIN information_schema.innodb_trx b ON b.trx_id = w.blocking_trx_id " +
	"JOIN information_schema.innodb_locks l ON l.lock_id = w.requested_lock_id " +
	"LEFT JOIN information_schema.processlist me ON me.id = r.trx_mysql_thread_id " +
	"LEFT JOIN information_schema.processlist p ON p.id = b.trx_mysql_thread_id */" +
	"/*!80000 r.processlist_id, COALESCE(r.processlist_user = SUBSTRING_INDEX(USER(), '@', 1) AND " +
	"r.processlist_db = DATABASE(), 0), COALESCE(p.processlist_id, 0), p.processlist_user, p.processlist_host, " +
	"e.timer_wait DIV 1000000000000, " +
	"CONCAT(l.object_schema, '.', l.object_name), LEFT(p.processlist_info, 100) " +
	"FROM performance_schema.data_lock_waits w " +
	"JOIN performance_schema.threads r ON r.thread_id = w.requesting_thread_id " +
	"JOIN performance_schema.data_locks l ON l.engine_lock_id = w.requesting_engine_lock_id " +
	"LEFT JOIN performance_schema.data_locks o ON o.engine_transaction_id = w.blocking_engine_transaction_id " +
	"AND o.lock_type = 'TABLE' " +
	"LEFT JOIN performance_schema.threads p ON p.thread_id = o.thread_id " +
	"LEFT JOIN performance_schema.events_transactions_current e ON e.thread_id = p.thread_id AND e.state = 'ACTIVE' */" +
	" LIMIT 2000"

// rowWait is a connection that waits, whether it is of this user and database, and whom it waits for.
type rowWait struct {
	waiter int64
	ours   bool
	Holder
}

// Holders looks whose transactions, begun as long ago as least or longer, hold rows for which connections of this user
// and database wait at this moment: the oldest first, and in a queue the one for whom all wait. It has an end of its
// own, and waits for nobody.
//
// A server that does not let this user see it answers with an error that names the right.
func Holders(ctx context.Context, db *sql.DB, least time.Duration) ([]Holder, error) {
	ctx, cancel := context.WithTimeout(ctx, holdersTimeout)
	defer cancel()
	pairs, err := List(ctx, db, func(rows *sql.Rows) (w rowWait, err error) {
		var open int64
		err = rows.Scan(&w.waiter, &w.ours, &w.Connection, OrZero(&w.User), OrZero(&w.Host), OrZero(&open), OrZero(&w.Table),
			OrZero(&w.Statement))
		w.Open = time.Duration(open) * time.Second
		return w, err
	}, whoWaits)
	if err != nil {
		return nil, fmt.Errorf("look who holds the rows that are waited for (docs/rights.md says what that needs): %w", err)
	}
	waits := map[int64][]Holder{} // by who waits
	for _, w := range pairs {
		waits[w.waiter] = append(waits[w.waiter], w.Holder)
	}
	// From those who are ours to those they wait for, until somebody waits for nobody.
	found, seen := map[int64]Holder{}, map[int64]bool{}
	var follow func(waiter int64)
	follow = func(waiter int64) {
		for _, h := range waits[waiter] {
			if len(waits[h.Connection]) == 0 {
				found[h.Connection] = h
			} else if !seen[h.Connection] {
				seen[h.Connection] = true
				follow(h.Connection)
			}
		}
	}
	for _, w := range pairs {
		if w.ours {
			follow(w.waiter)
		}
	}
	var all []Holder
	for _, h := range found {
		if h.Open >= least.Truncate(time.Second) || h.Open == 0 && h.Connection == 0 {
			all = append(all, h)
		}
	}
	slices.SortFunc(all, func(a, b Holder) int {
		return cmp.Or(cmp.Compare(b.Open, a.Open), cmp.Compare(a.Connection, b.Connection))
	})
	return all, nil
}
