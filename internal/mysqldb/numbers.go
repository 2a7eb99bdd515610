package mysqldb

import (
	"database/sql/driver"
	"errors"
	"strings"

	"github.com/go-sql-driver/mysql"
)

// The errors that the product asks for by name, as the servers' manuals spell it.
const (
	numErrorOnWrite    = 3    // EE_WRITE; which error it is stands in the text alone
	numDiskFull        = 1021 // ER_DISK_FULL
	numErrorOnWriteOld = 1026 // ER_ERROR_ON_WRITE, as 3
	numStorageEngine   = 1030 // ER_GET_ERRNO, as 3
	numNoDatabaseRight = 1044 // ER_DBACCESS_DENIED_ERROR: said of a missing database too, to who has no right on it
	numAccessDenied    = 1045 // ER_ACCESS_DENIED_ERROR: or an encryption that the account requires is missing
	numNodeNotReady    = 1047 // ER_UNKNOWN_COM_ERROR: a node of Galera that has lost or not joined its cluster
	numNoDatabase      = 1049 // ER_BAD_DB_ERROR
	numDuplicate       = 1062 // ER_DUP_ENTRY
	numTableFull       = 1114 // ER_RECORD_FILE_FULL: what InnoDB says on a full disk
	numNoTable         = 1146 // ER_NO_SUCH_TABLE
	numLockTableFull   = 1206 // ER_LOCK_TABLE_FULL: InnoDB has no memory for more locks
	numDeadlock        = 1213 // ER_LOCK_DEADLOCK
	numReadOnlyOption  = 1290 // ER_OPTION_PREVENTS_STATEMENT: an option of the server forbids it, such as read_only
	numReadOnlyTx      = 1792 // ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION
	numReadOnlyMode    = 1836 // ER_READ_ONLY_MODE
	numNoSavepoint     = 1305 // ER_SP_DOES_NOT_EXIST: of a routine, too
	numNotAMember      = 3796 // ER_GRP_TRX_CONSISTENCY_NOT_ALLOWED: a node of group replication outside its group
	numNoMemberAnyMore = 3797 // ER_GRP_TRX_CONSISTENCY_BEFORE: it was put out while it waited for the group
)

// sayer is which server says an error. From 4000 on a number means one thing on MySQL, and another on MariaDB.
type sayer string

const (
	anyone  sayer = "" // nobody knows
	both    sayer = "MySQL and MariaDB"
	mySQL   sayer = "MySQL"
	mariaDB sayer = "MariaDB"
)

// listed are errors of one fault.
type listed struct {
	fault   Fault
	from    sayer
	numbers []uint16
}

// lists name the errors that are not what their SQLSTATE says ([faultOf]), or that have none. What stands nowhere is
// what a server has against a statement. testdata/mysql.txt and mariadb.txt show where each error of the servers goes.
//
// Package stock knows one of them beside this table, 1062, because it imports nothing of this module.
var lists = []listed{
	// Others hold a lock, have changed the row, or are in the way of NOWAIT. 1205 has rolled back its statement alone.
	{FaultContention, both, []uint16{1020, 1205, 1213, 1412, 1689, 3058, 3132, 3133, 3177, 3572}},
	// max_allowed_packet, the binary log's caches, the parser's memory, a cluster's limit of a transaction.
	{FaultTooLarge, both, []uint16{1153, 1197, 1705, 3170, 3186, 3231}},

	// What a value causes, and whose SQLSTATE does not say so: CHECK OPTION, partitions, SIGNAL, CHECK.
	{FaultData, both, []uint16{1265, 1366, 1369, 1411, 1526, 1644, 3819}},

	// The machine: files, disks, memory, threads, and how much of anything the server has.
	{FaultUnavailable, both, []uint16{
		1004, 1005, 1006, 1012, 1013, 1014, 1015, 1016, 1017, 1018, 1019, numDiskFull, 1023, 1024, 1025, numErrorOnWriteOld,
		1027, 1028, numStorageEngine, 1037, 1038, 1039, 1040, 1041, numTableFull, 1129, 1130, 1135, 1203,
		numLockTableFull, 1226, 1374, 1376, 1461, 1467, 1637, 1810, 1811, 1878, 3015, 3019, 3044, 3675, 3884, 3950, 3985,
	}},
	{FaultUnavailable, mySQL, []uint16{4081, 4082, 6112}},
	{FaultUnavailable, mariaDB, []uint16{4084, 4139}},
	// Tables, views and routines that are damaged, or whose engine, plugin or key is missing.
	{FaultUnavailable, both, []uint16{
		1031, 1032, 1033, 1034, 1035, 1194, 1195, 1286, 1296, 1297, 1340, 1341, 1342, 1343, 1344, 1346, 1455, 1457, 1459,
		1490, 1524, 1558, 1602, 1606, 1696, 1707, 1710, 1711, 1712, 1728, 1805, 1812, 1814, 1815, 1817, 1877, 1939, 3000,
		3003, 3009, 3182, 3185, 3506, 3507, 3508, 3509, 3510, 3512, 3629, 3679,
	}},
	{FaultUnavailable, mySQL, []uint16{6001, 6436}},
	{FaultUnavailable, mariaDB, []uint16{4060, 4064, 4067, 4068, 4086, 4087, 4182, 4185, 4189}},
	// Tables of other servers, behind an engine.
	{FaultUnavailable, both, []uint16{1429, 1430, 1431, 1432, 1433, 1434, 1477}},
	// What is not there, or not any more: a database, a function, an index, a routine, what a view is made of, a user.
	{FaultUnavailable, both, []uint16{
		1046, numNoDatabase, 1122, 1126, 1127, 1128, numNoTable, 1176, 1305, 1356, 1449, 1960, 3503,
	}},
	// Rights, accounts and passwords.
	{FaultUnavailable, both, []uint16{
		numNoDatabaseRight, numAccessDenied, 1142, 1143, 1227, 1275, 1370, 1820, 1862, 3118, 3159, 3164, 3879, 3955,
	}},
	{FaultUnavailable, mySQL, []uint16{6038, 6126, 6127, 6544}},
	{FaultUnavailable, mariaDB, []uint16{4150, 4151}},
	// Read-only, or not open to everybody.
	{FaultUnavailable, both, []uint16{1036, numReadOnlyOption, numReadOnlyTx, numReadOnlyMode, 1874, 1881, 3032, 3989}},
	{FaultUnavailable, mySQL, []uint16{6400}},
	// The server ends, or has ended the session or the statement; a packet was damaged; a handle is another session's.
	{FaultUnavailable, both, []uint16{
		1053, 1077, 1078, 1079, 1080, 1243, 1317, 1615, 1835, 1927, 1969, 3024, 3168, 3169,
	}},
	{FaultUnavailable, mySQL, []uint16{4031}},
	// COMMIT and the binary log.
	{FaultUnavailable, both, []uint16{
		1180, 1181, 1182, 1183, 1534, 1593, 1598, 1661, 1662, 1663, 1664, 1665, 1666, 1667, 1844, 1942, 1944, 1946, 1950,
		1964, 3784, 3785, 3786, 3787, 3801,
	}},
	// Clusters: a node that takes nothing, or waits in vain for the others.
	{FaultUnavailable, both, []uint16{
		numNodeNotReady, 3092, 3098, 3100, 3781, 3782, 3783, numNotAMember, numNoMemberAnyMore, 3798, 3799,
	}},
	{FaultUnavailable, mySQL, []uint16{4094, 6141}},
	{FaultUnavailable, mariaDB, []uint16{4165}},
}

// faultOfNumber has the lists of each server, and for who does not know which it is those of both: what may mean that
// the server is away does.
var faultOfNumber = func() map[sayer]map[uint16]Fault {
	all := map[sayer]map[uint16]Fault{}
	for _, from := range []sayer{mySQL, mariaDB, anyone} {
		faults := map[uint16]Fault{}
		for _, l := range lists {
			if from != anyone && l.from != both && l.from != from {
				continue
			}
			for _, n := range l.numbers {
				if faults[n] != FaultUnavailable {
					faults[n] = l.fault
				}
			}
		}
		all[from] = faults
	}
	return all
}()

// faultOf says whose fault an error is by its number and its SQLSTATE.
func faultOf(from sayer, number uint16, state string) Fault {
	switch { // SIGNAL alone says that, whatever number it gives itself
	case strings.HasPrefix(state, "45"), number == numDeadlock && state != "40001" && state[0] != 0:
		return FaultData
	}
	if fault, ok := faultOfNumber[from][number]; ok {
		return fault
	}
	switch number / 1000 {
	case 0, 2, 9: // files and engines of the server; a client's, which a proxy or an engine is; ProxySQL's
		return FaultUnavailable
	}
	switch state {
	case "42S02", "42S22": // a table, a column that is not there
		return FaultUnavailable
	}
	switch state[:2] {
	case "08", "28", "70": // connection, authorization, interrupted
		return FaultUnavailable
	case "22", "23": // data exception, integrity constraint violation
		return FaultData
	case "40": // transaction rollback
		return FaultContention
	}
	return FaultRefused
}

// answer is a server's error and which server it is.
type answer struct {
	*mysql.MySQLError
	from sayer
}

func (a *answer) Unwrap() error { return a.MySQLError }

// by is err, with the server that says it where the number alone does not tell: so programs that look at the driver's
// error itself find it where they did.
func (from sayer) by(err error) error {
	if server, ok := err.(*mysql.MySQLError); ok && server.Number >= 4000 { //nolint:errorlint // the driver wraps nothing
		return &answer{server, from}
	}
	return err
}

// said returns the server's error in err.
func said(err error) (*mysql.MySQLError, bool) { return errors.AsType[*mysql.MySQLError](err) }

// Answered reports whether err is what a server said to a statement, and not the network, the driver, or a server that
// takes none.
func Answered(err error) bool {
	_, ok := said(err)
	return ok && !errors.Is(err, driver.ErrBadConn)
}

// Answer is what a server said in err, nil where none said anything.
func Answer(err error) error {
	if server, ok := said(err); ok {
		return server
	}
	return nil
}

// notReady reports whether a server said in err that it takes no statements at all, or none of ours, or none that
// writes.
func notReady(err error) bool {
	server, ok := said(err)
	if !ok {
		return false
	}
	switch server.Number {
	case numNodeNotReady, numNotAMember, numNoMemberAnyMore, numReadOnlyOption, numReadOnlyTx, numReadOnlyMode:
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

// Repeats is Duplicate, and likewise for what says the same in other words (1586; 1022 and 1169, where nobody knows
// which index it was; 1761 and 1762, by a foreign key that cascades). The server has undone the statement, and the
// transaction goes on.
func Repeats(err error) bool {
	server, ok := said(err)
	if !ok {
		return false
	}
	switch server.Number {
	case numDuplicate, 1586, 1022, 1169, 1761, 1762:
		return true
	}
	return false
}

// NoSavepoint reports whether a server said in err, to RELEASE or ROLLBACK TO, that there is no such savepoint.
func NoSavepoint(err error) bool {
	server, ok := said(err)
	return ok && server.Number == numNoSavepoint
}

// RolledBack reports whether a server may have rolled the whole transaction back by itself when it said err.
func RolledBack(err error) bool {
	server, ok := said(err)
	return ok && (server.Number == numLockTableFull || Classify(err) == FaultContention)
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
