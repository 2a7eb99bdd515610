package mysqldb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"net"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/rollbackd/rollbackd/internal/certs"
)

// Fault says whose fault an error is.
type Fault uint8

// The faults. Where a handler's statement met it, FaultData and FaultRefused are its message's own ([Refuses]); nothing
// else that a database says costs an attempt.
const (
	FaultNone        Fault = iota
	FaultData              // a value that the tables refuse: this message's own
	FaultRefused           // whatever else a server has against this very statement: what no list names
	FaultContention        // two transactions met; try again
	FaultTooLarge          // the statement is larger than the server takes; make it smaller
	FaultUnavailable       // the server, the driver or the network: the next statement would fare no better
	FaultOther             // not an error of the database, or a context that ended: the caller knows why
)

var faultWords = []string{"none", "data", "refused", "contention", "too large", "unavailable", "other"}

// String is the fault's word in logs.
func (f Fault) String() string { return faultWords[f] }

// driverErrors are what the driver says without a server's error.
var driverErrors = []error{
	driver.ErrBadConn, sql.ErrConnDone, sql.ErrTxDone,
	mysql.ErrInvalidConn, mysql.ErrMalformPkt, mysql.ErrPktSync, mysql.ErrPktSyncMul, mysql.ErrBusyBuffer,
	mysql.ErrNoTLS, mysql.ErrCleartextPassword, mysql.ErrNativePassword, mysql.ErrOldPassword, mysql.ErrUnknownPlugin,
	mysql.ErrOldProtocol,
}

// Classify says whose fault err is. What a server answers and no list names is what it has against the statement. A
// missing table, a missing right, a full disk, a server that became read-only are listed, and are nobody's fault.
func Classify(err error) Fault {
	if err == nil {
		return FaultNone
	}
	if server, ok := said(err); ok {
		if NoSavepoint(err) && strings.Contains(server.Message, "SAVEPOINT ") || // a routine may come yet
			says(err, 1296) && strings.HasPrefix(server.Message, "Got error 193 ") { // MariaDB's 3008: rows cascade too deep
			return FaultRefused
		}
		from := anyone
		if known, ok := errors.AsType[*answer](err); ok {
			from = known.from
		}
		return faultOf(from, server.Number, string(server.SQLState[:]))
	}
	gaveUp := errors.Is(err, context.Canceled)
	switch {
	case errors.Is(err, mysql.ErrPktTooLarge):
		return FaultTooLarge
	case is[*certs.Error](err), slices.ContainsFunc(driverErrors, func(of error) bool { return errors.Is(err, of) }):
		return FaultUnavailable
	case is[*net.OpError](err) && !gaveUp: // a dial that timed out by itself also says that it is a deadline
		return FaultUnavailable
	case is[net.Error](err) && !gaveUp && !errors.Is(err, context.DeadlineExceeded):
		return FaultUnavailable
	}
	return FaultOther
}

func is[T error](err error) bool {
	_, ok := errors.AsType[T](err)
	return ok
}

// Refuses reports whether a server answered that it refuses this very statement: the next one may pass.
func Refuses(err error) bool {
	fault := Classify(err)
	return fault == FaultData || fault == FaultRefused
}

// Misworded reports whether a server said in err that it read the statement and cannot run it as it stands: its syntax,
// a name that is not there, a right that is missing, a number of columns. To wait and send it again does not help.
func Misworded(err error) bool {
	server, ok := said(err)
	if !ok {
		return false
	}
	switch string(server.SQLState[:2]) {
	case "21", "42", "0A": // cardinality violation, syntax error or access rule violation, not supported
		return true
	}
	return Classify(err) == FaultRefused
}
