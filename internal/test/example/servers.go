// Package example is what stands behind the examples of the public packages: servers for one example alone, so that
// what an example shows is what a user would write. Where a test fails, it panics. It links nothing of ours but the
// servers; who needs messages too takes package producer.
package example

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// patience bounds what an example may wait for.
const patience = time.Minute

// Servers are a fresh schema and, made by [All], a fresh virtual host.
type Servers struct {
	MySQLDSN, AMQPURL string

	Broker *stack.Broker // nil unless [All] made it

	t  *rig
	db *sql.DB
}

// MySQL starts nothing but MySQL.
func MySQL() *Servers {
	t := &rig{}
	s := &Servers{t: t, MySQLDSN: stack.MySQL(t)}
	s.db = must.Get(sql.Open("mysql", s.MySQLDSN))
	t.Cleanup(func() { _ = s.db.Close() })
	return s
}

// All starts RabbitMQ too.
func All() *Servers {
	s := MySQL()
	s.Broker = stack.AMQP(s.t)
	s.AMQPURL = s.Broker.URL
	return s
}

// Closes has db closed at the end.
func (s *Servers) Closes(db *gorm.DB) {
	pool := must.Get(db.DB())
	s.t.Cleanup(func() { _ = pool.Close() })
}

// Opened is a database that was opened, and is closed at the end.
func (s *Servers) Opened(db *gorm.DB, _ []string, err error) *gorm.DB {
	must.OK(err)
	s.Closes(db)
	return db
}

// Redis starts a Redis alone.
func Redis() (url string, end func()) {
	t := &rig{}
	return stack.Redis(t), t.end
}

// Close ends what the example had.
func (s *Servers) Close() { s.t.end() }

// Cleanup has f called then.
func (s *Servers) Cleanup(f func()) { s.t.Cleanup(f) }

// Exec runs a statement.
func (s *Servers) Exec(statement string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	must.Exec(ctx, s.db, statement)
}

// Show prints what a query finds, one line a row.
func (s *Servers) Show(query string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	rows, err := s.db.QueryContext(ctx, query)
	must.OK(err, query)
	defer func() { _ = rows.Close() }()
	columns := must.Get(rows.Columns())
	for rows.Next() {
		values, into := make([]string, len(columns)), make([]any, len(columns))
		for i := range values {
			into[i] = &values[i]
		}
		must.OK(rows.Scan(into...))
		fmt.Println(strings.Join(values, " "))
	}
	must.OK(rows.Err())
}

// rig is a testing.TB as far as package stack needs one.
type rig struct {
	testing.TB // nil

	cleanups []func()
}

func (r *rig) Helper()                        {}
func (r *rig) Cleanup(f func())               { r.cleanups = append(r.cleanups, f) }
func (r *rig) Error(args ...any)              { panic(fmt.Sprint(args...)) }
func (r *rig) Errorf(text string, arg ...any) { panic(fmt.Sprintf(text, arg...)) }
func (r *rig) Fatal(args ...any)              { panic(fmt.Sprint(args...)) }
func (r *rig) Fatalf(text string, arg ...any) { panic(fmt.Sprintf(text, arg...)) }

func (r *rig) end() {
	for i := len(r.cleanups) - 1; i >= 0; i-- {
		r.cleanups[i]()
	}
}
