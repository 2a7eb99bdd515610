package dedup

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"net"
	"strings"

	"github.com/go-sql-driver/mysql"
)

// Fault says whose fault an error is.
type Fault uint8

// The faults. Only FaultData is the message's own: everything else that a database says costs no attempt.
const (
	FaultNone        Fault = iota
	FaultData              // a value that the tables refuse: this message's own
	FaultContention        // two transactions met; try again
	FaultTooLarge          // the statement is larger than the server takes; make it smaller
	FaultUnavailable       // any other error of the database, the driver or the network, whatever it is
	FaultOther             // not an error of the database, or a context that ended: the caller knows why
)

// String is the fault's word in logs.
func (f Fault) String() string {
	return [...]string{"none", "data", "contention", "too large", "unavailable", "other"}[f]
}

// Numbers that the SQLSTATE does not tell: HY000 is the class of everything.
var faultOfNumber = map[uint16]Fault{
	1205: FaultContention, // lock wait timeout; only the statement was rolled back
	1213: FaultContention, // deadlock; the transaction was rolled back
	1020: FaultContention, // MariaDB 11.6 and later: record has changed since last read

	1153: FaultTooLarge, // packet bigger than max_allowed_packet

	1048: FaultData, // column cannot be null
	1062: FaultData, // duplicate entry (the log's own are caught before)
	1264: FaultData, // out of range
	1265: FaultData, // data truncated
	1292: FaultData, // incorrect value
	1366: FaultData, // incorrect value for a column, HY000 on MySQL
	1367: FaultData, // illegal value while parsing
	1369: FaultData, // CHECK OPTION failed, HY000
	1406: FaultData, // data too long
	1411: FaultData, // incorrect value for a function, HY000 on MySQL
	1451: FaultData, // a foreign key forbids
	1452: FaultData, // a foreign key forbids
	1526: FaultData, // no partition for this value, HY000
	1644: FaultData, // SIGNAL
	1690: FaultData, // arithmetic out of range
	3140: FaultData, // invalid JSON
	3819: FaultData, // CHECK violated, MySQL
	4025: FaultData, // CHECK violated, MariaDB
}

// driverErrors are what the driver says without a server's error.
var driverErrors = []error{
	driver.ErrBadConn, sql.ErrConnDone, sql.ErrTxDone,
	mysql.ErrInvalidConn, mysql.ErrMalformPkt, mysql.ErrPktSync, mysql.ErrPktSyncMul, mysql.ErrBusyBuffer,
	mysql.ErrNoTLS, mysql.ErrCleartextPassword, mysql.ErrNativePassword, mysql.ErrOldPassword, mysql.ErrUnknownPlugin,
	mysql.ErrOldProtocol,
}

// Classify says whose fault err is. What the list of data errors does not name is not the message's fault: a missing
// table, a missing right, a full disk, a server that became read-only.
func Classify(err error) Fault {
	if err == nil {
		return FaultNone
	}
	if server, ok := errors.AsType[*mysql.MySQLError](err); ok {
		return faultOfServer(server)
	}
	if errors.Is(err, mysql.ErrPktTooLarge) {
		return FaultTooLarge
	}
	for _, e := range driverErrors {
		if errors.Is(err, e) {
			return FaultUnavailable
		}
	}
	// A dial that timed out by itself also says that it is a deadline; one that the caller gave up is the caller's.
	if _, ok := errors.AsType[*net.OpError](err); ok && !errors.Is(err, context.Canceled) {
		return FaultUnavailable
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return FaultOther
	}
	if _, ok := errors.AsType[net.Error](err); ok {
		return FaultUnavailable
	}
	return FaultOther
}

func faultOfServer(err *mysql.MySQLError) Fault {
	if fault, ok := faultOfNumber[err.Number]; ok {
		return fault
	}
	switch string(err.SQLState[:2]) {
	case "22", "23", "45": // data exception, integrity constraint violation, SIGNAL
		return FaultData
	case "40": // transaction rollback
		return FaultContention
	}
	return FaultUnavailable
}

// NoRoom reports whether a server said in err that it has no room: its disk, a table or a log is full. No message is the
// cause, not even when others succeed meanwhile: a disk runs full table by table, and one that has pages left still takes
// rows.
func NoRoom(err error) bool {
	server, ok := errors.AsType[*mysql.MySQLError](err)
	if !ok {
		return false
	}
	switch server.Number {
	case 1021, // disk full
		1114: // the table is full: what InnoDB says on a full disk
		return true
	case 3, 1026, 1030: // error writing a file, error of the storage engine: which one is in the text alone
		return strings.Contains(server.Message, "No space left on device")
	}
	return false
}

const unknownTable = 1146

func isUnknownTable(err error) bool {
	server, ok := errors.AsType[*mysql.MySQLError](err)
	return ok && server.Number == unknownTable
}
