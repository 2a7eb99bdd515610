package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wait"
)

func mysqlFaults() []fault {
	return []fault{
		{name: "mysql kill -9", unit: "connections cut", targets: on(onMySQL), most: 5 * time.Second,
			strike: killServer(mysqlOf)},
		{name: "mysql frozen", unit: "times missed by a daemon", targets: on(onMySQL), least: 20 * time.Second,
			most: 20 * time.Second, short: 12 * time.Second, strike: freezeServer(mysqlOf, "waiting for mysql")},
		{name: "mysql KILL", unit: "connections killed", targets: on(onMySQL), strike: killConnections},
		{name: "mysql read_only", unit: "times missed by a daemon", targets: on(onMySQL), least: 3 * time.Second,
			most: 8 * time.Second, strike: readOnly},
		{name: "mysql right revoked", unit: "times missed by a daemon", targets: on(onMySQL), least: 3 * time.Second,
			most: 8 * time.Second, strike: revoke},
		{name: "mysql table gone", unit: "times missed by a daemon", targets: on(onMySQL), least: 3 * time.Second,
			most: 8 * time.Second, strike: rename},
		{name: "mysql too many connections", unit: "times missed by a daemon", targets: on(onMySQL), least: 3 * time.Second,
			most: 6 * time.Second, strike: tooMany},
		{name: diskFull, unit: "times missed by a daemon", targets: on(onMySQL), least: 3 * time.Second,
			most: 10 * time.Second, strike: fillDisk},
	}
}

func mysqlOf(w *world) (*stack.Server, []*stack.TCPProxy) {
	return w.stack.MySQL, []*stack.TCPProxy{w.mysql}
}

// killServer kills a server, leaves it down for a while and starts it again. It has hit when daemons were connected.
func killServer(of func(*world) (*stack.Server, []*stack.TCPProxy)) strike {
	return func(ctx context.Context, w *world, p planned) (int, error) {
		server, links := of(w)
		cut := 0
		for _, l := range links {
			cut += l.Links()
		}
		if err := server.Kill(); err != nil {
			return 0, err
		}
		_ = wait.For(ctx, p.lasts)
		return cut, server.Start()
	}
}

// freezeServer stops a server for a while. It has hit when a daemon has noticed. A lease may end meanwhile, and a
// handler's time be over just when the server is back, which costs an attempt.
func freezeServer(of func(*world) (*stack.Server, []*stack.TCPProxy), notice string) strike {
	return func(ctx context.Context, w *world, p planned) (int, error) {
		server, _ := of(w)
		w.charge(daemons)
		return w.noticed(ctx, notice, p.lasts, server.Freeze, server.Thaw)
	}
}

// noticed brings a state about, holds it, ends it, and counts how often daemons said that they noticed.
func (w *world) noticed(ctx context.Context, notice string, lasts time.Duration, begin, end func() error) (int, error) {
	before := w.fleet.said(notice)
	if err := begin(); err != nil {
		return 0, errors.Join(err, end())
	}
	_ = wait.For(ctx, lasts)
	// under other faults nobody may be there to notice
	until(ctx, 30*time.Second, func() bool { return w.fleet.said(notice) > before })
	hits := w.fleet.said(notice) - before
	return hits, end()
}

const (
	diskFull = "mysql disk full"
	diskSize = 8 << 30 // bytes: room for a run of an hour; what is free costs nothing
)

// fillDisk lasts until a daemon has noticed: first InnoDB uses up what its tables have set aside, about a megabyte
// each. A server that dies of it is started again.
func fillDisk(ctx context.Context, w *world, p planned) (int, error) {
	before := w.fleet.said(missesMySQL)
	if err := w.stack.MySQL.FillDisk(); err != nil {
		return 0, err
	}
	until(ctx, time.Minute, func() bool { return w.fleet.said(missesMySQL) > before })
	_ = wait.For(ctx, p.lasts)
	hits := w.fleet.said(missesMySQL) - before
	return hits, w.stack.MySQL.FreeDisk()
}

// exec returns a function that runs statements as root.
func (w *world) exec(ctx context.Context, statements ...string) func() error {
	return func() error {
		for _, s := range statements {
			if _, err := w.db.ExecContext(context.WithoutCancel(ctx), s); err != nil { // what was begun is ended too
				return fmt.Errorf("%s: %w", s, err)
			}
		}
		return nil
	}
}

const missesMySQL = "waiting for mysql"

func readOnly(ctx context.Context, w *world, p planned) (int, error) {
	return w.noticed(ctx, missesMySQL, p.lasts, w.exec(ctx, "SET GLOBAL read_only = ON"),
		w.exec(ctx, "SET GLOBAL read_only = OFF"))
}

func revoke(ctx context.Context, w *world, p planned) (int, error) {
	table := []string{"stock", "stock_reservation", "consumer_log"}[p.variant%3]
	from := fmt.Sprintf("ON %s.%s FROM '%s'@'%%'", database, table, account)
	return w.noticed(ctx, missesMySQL, p.lasts, w.exec(ctx, "REVOKE INSERT, UPDATE "+from), func() error {
		return w.grant(context.WithoutCancel(ctx), table)
	})
}

func rename(ctx context.Context, w *world, p planned) (int, error) {
	table := []string{"stock", "consumer_log"}[p.variant%2]
	w.add(broken)
	return w.noticed(ctx, missesMySQL, p.lasts,
		w.exec(ctx, fmt.Sprintf("RENAME TABLE %s TO %s_away", table, table)),
		w.exec(ctx, fmt.Sprintf("RENAME TABLE %s_away TO %s", table, table)))
}

// killConnections kills the daemons' connections as an operator does, those in a transaction too.
func killConnections(ctx context.Context, w *world, p planned) (int, error) {
	inTransaction := 0
	var killed int
	for range 5 { // a transaction lasts milliseconds: again and again, until some were hit
		ids, open, err := w.connections(ctx)
		if err != nil {
			return killed, err
		}
		for _, id := range ids {
			if _, err := w.db.ExecContext(ctx, fmt.Sprintf("KILL %d", id)); err == nil { // it may be gone already
				killed++
			}
		}
		if inTransaction += open; inTransaction > 0 {
			break
		}
		_ = wait.For(ctx, 200*time.Millisecond)
	}
	return killed, nil
}

// connections are those of the daemons, and how many of them are in a transaction.
func (w *world) connections(ctx context.Context) (ids []int64, inTransaction int, err error) {
	rows, err := w.db.QueryContext(ctx, "SELECT p.id, conn IS NOT NULL FROM "+stack.Processes+" p LEFT JOIN "+
		stack.Transactions+" ON conn = p.id WHERE p.user = ?", account)
	if err != nil {
		return nil, 0, fmt.Errorf("list the connections: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		var open bool
		if err := rows.Scan(&id, &open); err != nil {
			return nil, 0, fmt.Errorf("list the connections: %w", err)
		}
		if open {
			inTransaction++
		}
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, 0, fmt.Errorf("list the connections: %w", err)
	}
	return ids, inTransaction, nil
}

// tooMany lets the server refuse new connections of the daemons, and cuts those there are.
func tooMany(ctx context.Context, w *world, p planned) (int, error) {
	limit := fmt.Sprintf("ALTER USER '%s'@'%%' WITH MAX_USER_CONNECTIONS ", account)
	begin := func() error {
		if err := w.exec(ctx, limit+"1")(); err != nil {
			return err
		}
		_, err := killConnections(ctx, w, p)
		return err
	}
	return w.noticed(ctx, missesMySQL, p.lasts, begin, w.exec(ctx, limit+"0"))
}
