package mysqldb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/golden"
	"github.com/rollbackd/rollbackd/internal/test/require"
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
		assert.Is(t, Classify(c.err), c.want, "%s: Classify(%v)", c.name, c.err)
	}
}

// Given what servers say that only read, or whose schema does, then it is an outage: no message's fault, and to be
// waited for. A server as a whole is left, so that a proxy may lead the next connection to another one.
func TestWhatOnlyReadsIsAnOutage(t *testing.T) {
	for _, c := range []struct {
		number      uint16
		state, when string
		stays       bool
	}{
		{1290, "HY000", "read_only and super_read_only, of a statement and of COMMIT", false},
		{1792, "25006", "transaction_read_only", false},
		{1015, "HY000", "innodb_read_only or innodb_force_recovery=6, MySQL 9.7: errno 165, Table is read only", false},
		{1036, "HY000", "innodb_read_only, MariaDB 10.11; innodb_force_recovery=4, MySQL 9.7", false},
		{1836, "HY000", "innodb_read_only, MySQL 9.7, of CREATE TABLE", false},
		{1874, "HY000", "InnoDB is in read only mode", false},
		{3032, "HY000", "offline_mode, MySQL 9.7, of a new connection", true},
		{3989, "HY000", "ALTER SCHEMA … READ ONLY = 1, MySQL 9.7", true},
	} {
		said := &mysql.MySQLError{Number: c.number, SQLState: [5]byte([]byte(c.state)), Message: c.when}
		conn := watchedConn{}
		err := conn.leave(said)
		fault := Classify(err)
		assert.That(t, fault == FaultUnavailable && errors.Is(err, driver.ErrBadConn) != c.stays && conn.left != c.stays,
			"%d, %s: %v (%v); left %v", c.number, c.when, err, fault, conn.left)
	}
}

// Each question about an error is answered by its number, and where that does not tell, by the server's own words.
func TestErrorsAreKnownByNumberAndWord(t *testing.T) {
	questions := map[string]func(error) bool{
		"room": NoRoom, "database": NoDatabase, "table": NoTable, "duplicate": Duplicate, "answered": Answered,
		"own": func(err error) bool { return DuplicateIn(err, "consumer_log", "PRIMARY") },
	}
	for _, c := range []struct {
		number        uint16
		message, want string // what is so, in the order of the alphabet
	}{
		{0, "", ""}, // a network without a server
		{1045, "Access denied", "answered"},
		{1044, "Access denied for user", "answered database"}, // who has no right is not told that it does not exist
		{1049, "Unknown database", "answered database"},
		{1146, "Table 'shop.stock' doesn't exist", "answered table"},
		{1114, "The table 'stock' is full", "answered room"},
		{1021, "Disk full (/tmp/#sql); waiting for someone to free some space...", "answered room"},
		{3, `Error writing file 'binlog' (Errcode: 28 "No space left on device")`, "answered room"},
		{1030, `Got error 28 "No space left on device" from storage engine InnoDB`, "answered room"},
		{1030, `Got error 5 "Input/output error" from storage engine InnoDB`, "answered"},
		{1062, "Duplicate entry 'a' for key 'PRIMARY'", "answered duplicate own"}, // MariaDB does not say of which table
		{1062, "Duplicate entry 'a' for key 'b' for key 'consumer_log.PRIMARY'", "answered duplicate own"},
		{1062, "Duplicate entry 'a' for key 'Consumer_Log.PRIMARY'", "answered duplicate own"},
		{1062, "Duplicate entry 'a' for key 'other.PRIMARY'", "answered duplicate"},
		{1062, "Duplicate entry 'a' for key 'consumer_log.by_age'", "answered duplicate"},
		{1062, "Doppelter Eintrag", "answered duplicate"},
		{1586, "Duplicate entry 'a' for key 'PRIMARY'", "answered"},
	} {
		err := mysql.ErrInvalidConn
		if c.number > 0 {
			err = fmt.Errorf("wrapped: %w", &mysql.MySQLError{Number: c.number, Message: c.message})
		}
		var so []string
		for what, is := range questions {
			assert.That(t, !is(nil), "no error is of %s", what)
			if is(err) {
				so = append(so, what)
			}
		}
		if slices.Sort(so); strings.Join(so, " ") != c.want || (Answer(err) != nil) != (c.number > 0) {
			t.Errorf("%v is %v, want %s", err, so, c.want)
		}
	}
}

// From 4000 on the servers use the same numbers for different things. A program that looks at the driver's error finds
// it all the same.
func TestANumberMeansWhatItsServerMeans(t *testing.T) {
	w := newWorld(t)
	w.exec("CREATE PROCEDURE say(n INT) SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = n")
	isMariaDB := stack.One[bool](t, w.pool, "SELECT VERSION() LIKE '%MariaDB%'")
	for _, c := range []struct {
		number           uint16
		onMySQL, onMaria Fault
	}{
		{4031, FaultUnavailable, FaultRefused},
		{4151, FaultRefused, FaultUnavailable},
		{1030, FaultUnavailable, FaultUnavailable},
		{1290, FaultUnavailable, FaultUnavailable}, // it only reads: the connection must not go back to the pool
	} {
		want := c.onMySQL
		if isMariaDB {
			want = c.onMaria
		}
		_, err := w.pool.Exec("CALL say(?)", c.number)
		assert.Is(t, Classify(fmt.Errorf("wrapped: %w", err)), want, "%v", err)
		server, ok := errors.AsType[*mysql.MySQLError](err)
		assert.That(t, ok && server.Number == c.number, "%v is not the driver's error any more", err)
		assert.Is(t, errors.Is(err, driver.ErrBadConn), c.number == 1290, "%v: the connection is left", err)
		// of whom, nobody knows
		assert.Is(t, Classify(&mysql.MySQLError{Number: c.number}), FaultUnavailable, "%d of any server", c.number)
	}
}

// place is an error of a server and where it goes. Names are those that releases of the server have given it.
type place struct {
	number uint16
	names  string
	state  string
	fault  string
}

const mostForClients = 9999 // numbers above this stand in the server's log alone

// listOf is the file with the errors of a server, which a person can read and judge.
func listOf(from sayer) string {
	return filepath.Join("testdata", strings.ToLower(string(from))+".txt")
}

func readPlaces(t *testing.T, from sayer) map[uint16]place {
	t.Helper()
	places := map[uint16]place{}
	for line := range strings.Lines(string(require.Get(os.ReadFile(listOf(from)))(t))) {
		var p place
		_, err := fmt.Sscan(line, &p.number, &p.names, &p.state, &p.fault)
		require.That(t, err == nil, "%s: %q: %v", listOf(from), line, err)
		p.fault = strings.TrimSpace(line[strings.LastIndex(line, p.state)+len(p.state):])
		places[p.number] = p
	}
	require.That(t, len(places) >= 1000, "%s has %d errors", listOf(from), len(places))
	return places
}

// wantPlaces compares with the file, in which each number stands once.
func wantPlaces(t *testing.T, from sayer, places map[uint16]place) {
	t.Helper()
	var b strings.Builder
	for _, n := range slices.Sorted(maps.Keys(places)) {
		p := places[n]
		fmt.Fprintf(&b, "%d %s %s %s\n", p.number, p.names, p.state, p.fault)
	}
	golden.Is(t, listOf(from), b.String())
}

// Whoever makes a change that sends an error elsewhere sees it in a golden file. Read there what it means.
func TestEachErrorOfBothServersHasItsPlace(t *testing.T) {
	for _, from := range []sayer{mySQL, mariaDB} {
		places := readPlaces(t, from)
		for n, p := range places {
			p.fault = faultOf(from, n, p.state).String()
			places[n] = p
		}
		wantPlaces(t, from, places)
	}
}

// A later release has errors that nobody has looked at: the test fails on it, and -update adds them. Look where they
// go.
func TestTheServerKnowsNoErrorWithoutAPlace(t *testing.T) {
	w := newWorld(t)
	conn := require.Get(w.pool.Conn(t.Context()))(t)
	defer conn.Close()
	var from sayer
	require.OK(t, conn.Raw(func(raw any) error { from = raw.(*watchedConn).from; return nil }))
	known := w.errorsOfMySQL
	if from == mariaDB {
		known = w.errorsOfMariaDB
	}
	places := readPlaces(t, from)
	for _, p := range known() {
		was, ok := places[p.number]
		switch {
		case !ok:
			p.fault = faultOf(from, p.number, p.state).String()
			places[p.number] = p
		case !slices.Contains(strings.Split(was.names, "|"), p.names):
			was.names += "|" + p.names
			places[p.number] = was
		case from == mySQL && was.state != p.state:
			t.Errorf("%d %s has SQLSTATE %s, and the file says %s", p.number, p.names, p.state, was.state)
		}
	}
	wantPlaces(t, from, places)
}

func (w *world) errorsOfMySQL() []place {
	w.t.Helper()
	all, err := List(w.t.Context(), w.pool, func(rows *sql.Rows) (p place, err error) {
		err = rows.Scan(&p.number, &p.names, &p.state)
		return p, err
	}, "SELECT error_number, error_name, sql_state FROM performance_schema.events_errors_summary_global_by_error WHERE "+
		"error_number BETWEEN 1 AND ?", mostForClients)
	require.That(w.t, err == nil && len(all) >= 1000, "%d errors, %v", len(all), err)
	return all
}

var perrorLine = regexp.MustCompile(`(?m)^MariaDB error code (\d+) \((\w+)\)`)

// errorsOfMariaDB asks perror, which does not know their SQLSTATE: those in the golden file are of the server's
// errmsg-utf8.txt.
func (w *world) errorsOfMariaDB() (all []place) {
	w.t.Helper()
	tree := os.Getenv(stack.EnvTree)
	const program = "/usr/bin/perror"
	if _, err := os.Stat(filepath.Join(tree, program)); err != nil {
		w.t.Skip("MariaDB's perror is not installed: ", err)
	}
	cmd := exec.CommandContext(w.t.Context(), program)
	cmd.Err, cmd.SysProcAttr = nil, &syscall.SysProcAttr{Chroot: tree}
	cmd.Dir = "/"
	for n := 1; n <= 5000; n++ {
		cmd.Args = append(cmd.Args, strconv.Itoa(n))
	}
	text, _ := cmd.Output() // it fails for the numbers that are no errors
	for _, m := range perrorLine.FindAllStringSubmatch(string(text), -1) {
		n := require.Get(strconv.ParseUint(m[1], 10, 16))(w.t)
		if name := m[2]; !strings.HasPrefix(name, "ER_UNUSED_") && !strings.HasPrefix(name, "ER_MYSQL_") {
			all = append(all, place{number: uint16(n), names: name, state: "HY000"})
		}
	}
	require.That(w.t, len(all) >= 1000, "perror knows %d errors", len(all))
	return all
}
