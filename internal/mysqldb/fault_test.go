package mysqldb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestClassifyWhatIsNoAnswerOfTheServer(t *testing.T) {
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, cancelledDial := (&net.Dialer{}).DialContext(gone, "tcp", "127.0.0.1:1")
	_, refusedDial := net.Dial("tcp", "127.0.0.1:1")
	_, lateDial := (&net.Dialer{Deadline: time.Now().Add(-time.Second)}).Dial("tcp", "127.0.0.1:1")
	server := func(number uint16, state string) error {
		e := &mysql.MySQLError{Number: number, Message: "m"}
		copy(e.SQLState[:], state)
		return fmt.Errorf("wrapped: %w", e)
	}
	for _, c := range []struct {
		name string
		err  error
		want Fault
	}{
		{"nil", nil, FaultNone},
		{"any other error", errors.New("boom"), FaultOther},
		{"end of a handler's own input", io.ErrUnexpectedEOF, FaultOther},
		{"no rows", sql.ErrNoRows, FaultOther},
		{"gorm's no rows", gorm.ErrRecordNotFound, FaultOther},
		{"deadline", context.DeadlineExceeded, FaultOther},
		{"cancelled", fmt.Errorf("x: %w", context.Canceled), FaultOther},
		{"a dial the caller gave up", cancelledDial, FaultOther},
		{"a dial refused", refusedDial, FaultUnavailable},
		{"a dial that took too long", lateDial, FaultUnavailable},
		{"an unknown host", &net.DNSError{Err: "no such host"}, FaultUnavailable},
		{"bad connection", driver.ErrBadConn, FaultUnavailable},
		{"invalid connection", fmt.Errorf("x: %w", mysql.ErrInvalidConn), FaultUnavailable},
		{"transaction done", sql.ErrTxDone, FaultUnavailable},
		{"connection done", sql.ErrConnDone, FaultUnavailable},
		{"driver's packet limit", mysql.ErrPktTooLarge, FaultTooLarge},
		{"a lost answer beside another error", fmt.Errorf("%w: %w", errors.New("unknown"), mysql.ErrInvalidConn),
			FaultUnavailable},
		// What a server says with a number and SQLSTATE of its own stands in testdata; here is what no list has.
		{"a data error without a number of its own", server(8999, "22018"), FaultData},
		{"SIGNAL", server(1644, "45000"), FaultData},
		{"SIGNAL of another class", server(31001, "45001"), FaultData},
		{"SIGNAL with a number of the server's", server(1213, "45000"), FaultData},
		{"SIGNAL with another SQLSTATE than the server's", server(1213, "HY000"), FaultData},
		{"SIGNAL with number and SQLSTATE of the server's", server(1213, "40001"), FaultContention},
		{"deadlock without SQLSTATE", server(1213, ""), FaultContention},
		{"SIGNAL with a number of its own", server(31001, "HY000"), FaultRefused},
		{"a proxy's", server(9001, "HY000"), FaultUnavailable},
		{"a client's, which a proxy is", server(2013, "HY000"), FaultUnavailable},
		{"no state", &mysql.MySQLError{Number: 1040}, FaultUnavailable},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Classify(c.err); got != c.want {
				t.Errorf("Classify(%v) = %v, want %v", c.err, got, c.want)
			}
		})
	}
}

// Whoever has no right on a database is not told that it does not exist.
func TestADatabaseThatIsNotThereIsKnownByBothOfItsErrors(t *testing.T) {
	for number, want := range map[uint16]bool{1049: true, 1044: true, 1045: false, 1146: false} {
		err := fmt.Errorf("wrapped: %w", &mysql.MySQLError{Number: number})
		if got := NoDatabase(err); got != want {
			t.Errorf("NoDatabase(%v) = %v, want %v", err, got, want)
		}
	}
}

func TestNoRoomIsTheServersOwnWord(t *testing.T) {
	said := func(number uint16, message string) error {
		return fmt.Errorf("wrapped: %w", &mysql.MySQLError{Number: number, Message: message})
	}
	for _, c := range []struct {
		name string
		err  error
		want bool
	}{
		{"table full", said(1114, "The table 'stock' is full"), true},
		{"disk full", said(1021, "Disk full (/tmp/#sql); waiting for someone to free some space..."), true},
		{"file not written", said(3, `Error writing file 'binlog' (Errcode: 28 "No space left on device")`), true},
		{"storage engine", said(1030, `Got error 28 "No space left on device" from storage engine InnoDB`), true},
		{"storage engine, another error", said(1030, `Got error 5 "Input/output error" from storage engine InnoDB`), false},
		{"missing table", said(1146, "Table 'shop.stock' doesn't exist"), false},
		{"a network without a server", mysql.ErrInvalidConn, false},
		{"nil", nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := NoRoom(c.err); got != c.want {
				t.Errorf("NoRoom(%v) = %v, want %v", c.err, got, c.want)
			}
		})
	}
}

// What a real server says, provoked.
func TestClassifyWhatTheServerSays(t *testing.T) {
	w := newWorld(t)
	w.exec("CREATE TABLE x (id INT PRIMARY KEY, n TINYINT NOT NULL, s VARCHAR(3) CHARACTER SET utf8mb4, d DATE, j " +
		"BIGINT UNSIGNED, CHECK (n >= 0))")
	w.exec("CREATE TABLE child (id INT PRIMARY KEY, x INT, FOREIGN KEY (x) REFERENCES x (id))")
	w.exec("INSERT INTO x (id, n, j) VALUES (1, 1, 0), (2, 2, 0)")
	var most int // 16 MiB on MariaDB, 64 MiB on MySQL
	if err := w.pool.QueryRow("SELECT @@max_allowed_packet").Scan(&most); err != nil {
		t.Fatal(err)
	}
	w.exec("CREATE PROCEDURE say() SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no'")
	for _, c := range []struct {
		name, text string
		want       Fault
	}{
		{"CHECK violated", "INSERT INTO x (id, n) VALUES (3, -1)", FaultData},
		{"duplicate", "INSERT INTO x (id, n) VALUES (1, 1)", FaultData},
		{"NULL", "INSERT INTO x (id, n) VALUES (3, NULL)", FaultData},
		{"out of range", "INSERT INTO x (id, n) VALUES (3, 300)", FaultData},
		{"no number", "INSERT INTO x (id, n) VALUES (3, 'nine')", FaultData},
		{"too long", "INSERT INTO x (id, n, s) VALUES (3, 1, 'long')", FaultData},
		{"no UTF-8", "INSERT INTO x (id, n, s) VALUES (3, 1, _binary'\xff')", FaultData},
		{"no date", "INSERT INTO x (id, n, d) VALUES (3, 1, '2026-02-30')", FaultData},
		{"below zero", "UPDATE x SET j = j - 1", FaultData},
		{"division by zero", "UPDATE x SET n = n / 0", FaultData},
		{"foreign key", "INSERT INTO child VALUES (1, 77)", FaultData},
		{"SIGNAL", "CALL say()", FaultData},
		{"unknown table", "INSERT INTO nowhere VALUES (1)", FaultUnavailable},
		{"unknown column", "UPDATE x SET nothing = 1", FaultUnavailable},
		{"syntax", "UPDATE UPDATE", FaultRefused},
		{"unknown procedure", "CALL nobody()", FaultUnavailable},
		{"too large", "DO LENGTH('" + strings.Repeat("x", most+1<<20) + "')", FaultTooLarge},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := w.pool.Exec(c.text)
			if got := Classify(err); err == nil || got != c.want {
				t.Errorf("%v (%v), want %v", err, got, c.want)
			}
		})
	}
}

func TestClassifyLockWaitAndDeadlock(t *testing.T) {
	w := newWorld(t)
	pool := poolOf(t, openWith(t, w.dsn, Options{LockWait: time.Second}))
	w.exec("CREATE TABLE x (id INT PRIMARY KEY, n INT)")
	w.exec("INSERT INTO x VALUES (1, 0), (2, 0)")
	begin := func(first int) *sql.Tx {
		tx, err := pool.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec("UPDATE x SET n = n + 1 WHERE id = ?", first); err != nil {
			t.Fatal(err)
		}
		return tx
	}
	a, b := begin(1), begin(2)
	defer a.Rollback()
	defer b.Rollback()
	_, err := b.Exec("UPDATE x SET n = n + 1 WHERE id = 1")
	if server, ok := errors.AsType[*mysql.MySQLError](err); !ok || server.Number != 1205 ||
		Classify(err) != FaultContention {
		t.Errorf("lock wait = %v (%v)", err, Classify(err))
	}
	results := make(chan error, 2)
	go func() { _, err := a.Exec("UPDATE x SET n = n + 1 WHERE id = 2"); results <- err }()
	go func() { _, err := b.Exec("UPDATE x SET n = n + 1 WHERE id = 1"); results <- err }()
	faults := map[Fault]int{}
	for range 2 {
		faults[Classify(<-results)]++
	}
	if faults[FaultContention] != 1 || faults[FaultNone] != 1 {
		t.Errorf("deadlock: %v, want one of the two to win", faults)
	}
}

func TestClassifyAccountsAndConnections(t *testing.T) {
	w := newWorld(t)
	t.Run("no right", func(t *testing.T) {
		reader := poolOf(t, open(t, stack.Restricted(t, w.dsn, "SELECT ON goods")))
		_, err := reader.Exec("DELETE FROM goods")
		if Classify(err) != FaultUnavailable {
			t.Errorf("%v (%v)", err, Classify(err))
		}
	})
	t.Run("a killed connection", func(t *testing.T) {
		one := w.begin(w.pool)
		tx, id := one.tx, one.id
		w.exec(fmt.Sprint("KILL ", id))
		_, err := tx.Exec("DO 1")
		if Classify(err) != FaultUnavailable {
			t.Errorf("%v (%v)", err, Classify(err))
		}
	})
	t.Run("an interrupted statement", func(t *testing.T) {
		one := w.begin(w.pool)
		tx, id := one.tx, one.id
		done := make(chan error, 1)
		go func() { _, err := tx.Exec("UPDATE goods SET n = SLEEP(20)"); done <- err }()
		for range 100 { // until the statement is the one that is killed
			w.exec(fmt.Sprint("KILL QUERY ", id))
			select {
			case err := <-done:
				if err != nil && Classify(err) != FaultUnavailable {
					t.Errorf("%v (%v)", err, Classify(err))
				}
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
		t.Error("the statement was never interrupted")
	})
}

// Faults that concern a whole server need one of the test's own.
func TestClassifyFaultsOfAWholeServer(t *testing.T) {
	server := stack.OwnMySQL(t)
	w := newWorldOn(t, server.Database(t))

	w.exec("SET GLOBAL max_connections = 10")
	many := poolOf(t, openWith(t, w.dsn, Options{MaxOpen: 40}))
	var held []*sql.Conn
	var err error
	for err == nil && len(held) < 40 {
		var conn *sql.Conn
		if conn, err = many.Conn(t.Context()); err == nil {
			held = append(held, conn)
		}
	}
	if Classify(err) != FaultUnavailable {
		t.Errorf("too many connections: %v (%v)", err, Classify(err))
	}
	for _, conn := range held {
		conn.Close()
	}
	many.Close()
	w.exec("SET GLOBAL max_connections = 100")

	plain := poolOf(t, open(t, stack.Restricted(t, w.dsn, "ALL ON *")))
	w.exec("SET GLOBAL read_only = 1")
	_, err = plain.Exec("DELETE FROM goods")
	if Classify(err) != FaultUnavailable {
		t.Errorf("read only: %v (%v)", err, Classify(err))
	}
	if !errors.Is(err, driver.ErrBadConn) || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("read only: %v; the connection to a server that became a replica must not go back to the pool", err)
	}
	w.exec("SET GLOBAL read_only = 0")

	tx := w.begin(w.pool).tx
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	_, err = tx.Exec("DO 1")
	if Classify(err) != FaultUnavailable {
		t.Errorf("a killed server, in a transaction: %v (%v)", err, Classify(err))
	}
	_ = tx.Rollback()
	_, err = w.pool.Exec("DO 1")
	if Classify(err) != FaultUnavailable {
		t.Errorf("a killed server: %v (%v)", err, Classify(err))
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	w.exec("INSERT INTO goods VALUES (2, 0)")
}
