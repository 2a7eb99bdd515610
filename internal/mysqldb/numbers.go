package mysqldb

import (
	"errors"
	"strings"

	"github.com/go-sql-driver/mysql"
)

// The errors that the product asks for by name. Their lines in the table say what they are.
const (
	numErrorOnWrite    = 3
	numDiskFull        = 1021
	numErrorOnWriteOld = 1026
	numStorageEngine   = 1030
	numNoDatabaseRight = 1044
	numAccessDenied    = 1045
	numNodeNotReady    = 1047
	numNoDatabase      = 1049
	numDuplicate       = 1062
	numTableFull       = 1114
	numNoTable         = 1146
	numNotAMember      = 3796
	numNoMemberAnyMore = 3797
	numUnpreparable    = 1295
)

// sayer is which server says an error.
type sayer string

const (
	both    sayer = "MySQL and MariaDB"
	mySQL   sayer = "MySQL"
	mariaDB sayer = "MariaDB"
)

// known is an error of the servers that rollbackd knows.
type known struct {
	number  uint16
	name    string // as the servers' manuals spell it
	meaning string
	fault   Fault
	from    sayer
}

// numbers are all error numbers that rollbackd knows. One that is missing here is classified by its SQLSTATE
// ([Classify]); so the ones of class data stand here whose SQLSTATE is HY000, the class of everything, and those that a
// reader would look for.
//
// Package stock knows one of them beside this table, 1062, because it imports nothing of this module.
var numbers = []known{
	{1205, "ER_LOCK_WAIT_TIMEOUT", "waited too long for a lock; only the statement was rolled back", FaultContention,
		both},
	{1213, "ER_LOCK_DEADLOCK", "deadlock; the transaction was rolled back", FaultContention, both},
	{1020, "ER_CHECKREAD", "record has changed since last read; 11.6 and later", FaultContention,
		mariaDB},

	{1153, "ER_NET_PACKET_TOO_LARGE", "packet bigger than max_allowed_packet", FaultTooLarge, both},

	{1048, "ER_BAD_NULL_ERROR", "column cannot be null", FaultData, both},
	{numDuplicate, "ER_DUP_ENTRY", "duplicate entry (the log's own are caught before)", FaultData, both},
	{1264, "ER_WARN_DATA_OUT_OF_RANGE", "out of range", FaultData, both},
	{1265, "WARN_DATA_TRUNCATED", "data truncated", FaultData, both},
	{1292, "ER_TRUNCATED_WRONG_VALUE", "incorrect value", FaultData, both},
	{1366, "ER_TRUNCATED_WRONG_VALUE_FOR_FIELD", "incorrect value for a column; HY000 on MySQL", FaultData, both},
	{1367, "ER_ILLEGAL_VALUE_FOR_TYPE", "illegal value while parsing", FaultData, both},
	{1369, "ER_VIEW_CHECK_FAILED", "CHECK OPTION of a view failed; HY000", FaultData, both},
	{1406, "ER_DATA_TOO_LONG", "data too long", FaultData, both},
	{1411, "ER_WRONG_VALUE_FOR_TYPE", "incorrect value for a function; HY000 on MySQL", FaultData, both},
	{1451, "ER_ROW_IS_REFERENCED_2", "a foreign key forbids to delete or change a row", FaultData, both},
	{1452, "ER_NO_REFERENCED_ROW_2", "a foreign key finds no row to point to", FaultData, both},
	{1526, "ER_NO_PARTITION_FOR_GIVEN_VALUE", "no partition for this value; HY000", FaultData, both},
	{1644, "ER_SIGNAL_EXCEPTION", "SIGNAL of a trigger or procedure", FaultData, both},
	{1690, "ER_DATA_OUT_OF_RANGE", "arithmetic out of range", FaultData, both},
	{3140, "ER_INVALID_JSON_TEXT", "invalid JSON", FaultData, mySQL},
	{3819, "ER_CHECK_CONSTRAINT_VIOLATED", "CHECK violated; HY000", FaultData, mySQL},
	{4025, "ER_CONSTRAINT_FAILED", "CHECK violated", FaultData, mariaDB},

	// The same numbers whoever the client is: these are asked for by name.
	{numErrorOnWrite, "EE_WRITE", "error writing a file; which one is in the text alone", FaultUnavailable, both},
	{numDiskFull, "ER_DISK_FULL", "disk full", FaultUnavailable, both},
	{numErrorOnWriteOld, "ER_ERROR_ON_WRITE", "error writing a file; which one is in the text alone", FaultUnavailable,
		both},
	{numStorageEngine, "ER_GET_ERRNO", "error of the storage engine; which one is in the text alone", FaultUnavailable,
		both},
	{numTableFull, "ER_RECORD_FILE_FULL", "the table is full: what InnoDB says on a full disk", FaultUnavailable, both},
	{numAccessDenied, "ER_ACCESS_DENIED_ERROR", "wrong user or password, or an encryption that the account requires is " +
		"missing", FaultUnavailable, both},
	{numNoDatabaseRight, "ER_DBACCESS_DENIED_ERROR", "no right on the database; said of a missing one too, to who " +
		"has none",
		FaultUnavailable, both},
	{numNoDatabase, "ER_BAD_DB_ERROR", "unknown database", FaultUnavailable, both},
	{numUnpreparable, "ER_UNSUPPORTED_PS", "the statement cannot be prepared", FaultUnavailable, both},
	{numNodeNotReady, "ER_UNKNOWN_COM_ERROR", "a node of Galera that takes no statements: it has lost its cluster, has " +
		"not joined it yet, or was told so", FaultUnavailable, mariaDB},
	{numNotAMember, "ER_GRP_TRX_CONSISTENCY_NOT_ALLOWED", "a node of group replication that is not one of its group: it " +
		"joins it, or was put out", FaultUnavailable, mySQL},
	{numNoMemberAnyMore, "ER_GRP_TRX_CONSISTENCY_BEFORE", "likewise: it was put out while it waited for what the group " +
		"had committed", FaultUnavailable, mySQL},
	{numNoTable, "ER_NO_SUCH_TABLE", "the table does not exist", FaultUnavailable, both},
}

var faultOfNumber = func() map[uint16]Fault {
	m := make(map[uint16]Fault, len(numbers))
	for _, k := range numbers {
		m[k.number] = k.fault
	}
	return m
}()

// said returns the server's error in err.
func said(err error) (*mysql.MySQLError, bool) { return errors.AsType[*mysql.MySQLError](err) }

// Answered reports whether err is what a server said, and not the network or the driver.
func Answered(err error) bool {
	_, ok := said(err)
	return ok
}

// Answer is what a server said in err, nil where none said anything.
func Answer(err error) error {
	if server, ok := said(err); ok {
		return server
	}
	return nil
}

// notReady reports whether a server said in err that it takes no statements at all, or none of ours.
func notReady(err error) bool {
	server, ok := said(err)
	if !ok {
		return false
	}
	switch server.Number {
	case numNodeNotReady, numNotAMember, numNoMemberAnyMore:
		return true
	}
	return false
}

// NoRoom reports whether a server said in err that it has no room: its disk, a table or a log is full. No message is
// the cause, not even when others succeed meanwhile: a disk runs full table by table, and one that has pages left still
// takes rows.
func NoRoom(err error) bool {
	server, ok := said(err)
	if !ok {
		return false
	}
	switch server.Number {
	case numDiskFull, numTableFull:
		return true
	case numErrorOnWrite, numErrorOnWriteOld, numStorageEngine:
		return strings.Contains(server.Message, "No space left on device")
	}
	return false
}

// NoDatabase reports whether a server said in err that the database of the DSN does not exist, or not for this user:
// who has no right on it is not told which of the two it is.
func NoDatabase(err error) bool {
	server, ok := said(err)
	return ok && (server.Number == numNoDatabase || server.Number == numNoDatabaseRight)
}

// NoTable reports whether a server said in err that a table does not exist.
func NoTable(err error) bool {
	server, ok := said(err)
	return ok && server.Number == numNoTable
}

// Duplicate reports whether a server said in err that a row would have stood twice in an index, of whatever table.
func Duplicate(err error) bool {
	server, ok := said(err)
	return ok && server.Number == numDuplicate
}

// DuplicateIn is Duplicate for one index of a table, whose name is not quoted. MySQL names table and index, the table
// in small letters where lower_case_table_names is 1. MariaDB names the index alone: there an index of the same name in
// another table, which a trigger writes, is taken for it.
func DuplicateIn(err error, table, index string) bool {
	server, ok := said(err)
	if !ok || server.Number != numDuplicate {
		return false
	}
	const before = " for key '"
	i := strings.LastIndex(server.Message, before)
	if i < 0 {
		return false
	}
	named := strings.TrimSuffix(server.Message[i+len(before):], "'")
	return named == index || strings.EqualFold(named, table+"."+index)
}
