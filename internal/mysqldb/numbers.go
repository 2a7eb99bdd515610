package mysqldb

import (
	"database/sql/driver"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"
)

// sayer is which server says an error. From 4000 on a number means one thing on MySQL, and another on MariaDB.
type sayer string

const (
	anyone  sayer = "" // nobody knows
	mySQL   sayer = "MySQL"
	mariaDB sayer = "MariaDB"
)

// faults lists the errors that are not what their SQLSTATE says.
//
//go:embed faults.txt
var faults string

// faultOfNumber has the list of each server, and for who does not know which it is those of both: what may mean that
// the server is away does.
var faultOfNumber = func() map[sayer]map[uint16]Fault {
	all := map[sayer]map[uint16]Fault{anyone: {}, mySQL: {}, mariaDB: {}}
	eachListed(func(fault Fault, server string, number uint16) {
		for from, known := range all {
			if from == anyone || server == "both" || strings.EqualFold(server, string(from)) {
				known[number] = max(known[number], fault) // the last of those that are listed is FaultUnavailable
			}
		}
	})
	return all
}()

func eachListed(each func(fault Fault, server string, number uint16)) {
	for line := range strings.Lines(faults) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		fault := Fault(slices.Index(faultWords, strings.ReplaceAll(words[0], "-", " ")))
		for _, word := range words[2:] {
			var number uint16
			if _, err := fmt.Sscan(word, &number); err != nil {
				panic(fmt.Sprintf("faults.txt: %q: %v", line, err))
			}
			each(fault, words[1], number)
		}
	}
}

// faultOf says whose fault an error is by its number and its SQLSTATE.
func faultOf(from sayer, number uint16, state string) Fault {
	const deadlock = 1213
	switch { // SIGNAL alone says that, whatever number it gives itself
	case strings.HasPrefix(state, "45"), number == deadlock && state != "40001" && state[0] != 0:
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

// says reports whether a server said in err one of these.
func says(err error, numbers ...uint16) bool {
	server, ok := said(err)
	return ok && slices.Contains(numbers, server.Number)
}

// Answered reports whether err is what a server said to a statement, and not the network, the driver, or a server that
// takes none.
func Answered(err error) bool { return Answer(err) != nil && !errors.Is(err, driver.ErrBadConn) }

// Answer is what a server said in err, nil where none said anything.
func Answer(err error) error {
	if server, ok := said(err); ok {
		return server
	}
	return nil
}

// What follows asks for errors by their numbers, with the names that the servers' manuals give them.

// notReady reports whether a server said in err that it takes no statements at all, or none of ours, or none that
// writes: a node of Galera that has lost or not joined its cluster (1047 ER_UNKNOWN_COM_ERROR), one outside its group,
// or put out of it while it waited (3796 and 3797, ER_GRP_TRX_CONSISTENCY_…), or one that only reads (1290
// ER_OPTION_PREVENTS_STATEMENT, 1792 ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION, 1836 ER_READ_ONLY_MODE, 1874
// ER_INNODB_READ_ONLY; 1015 ER_CANT_LOCK and 1036 ER_OPEN_AS_READONLY, which are likelier to come of that than of one
// table).
func notReady(err error) bool { return says(err, 1047, 3796, 3797, 1015, 1036, 1290, 1792, 1836, 1874) }

// NoRoom reports whether a server said in err that it has no room: its disk, a table or a log is full. No message is
// the cause, not even when others succeed meanwhile: a disk runs full table by table, and one that has pages left still
// takes rows. It is 1021 ER_DISK_FULL, 1114 ER_RECORD_FILE_FULL, which is what InnoDB says on a full disk, or, where
// the text alone tells which error it is, 3 EE_WRITE, 1026 ER_ERROR_ON_WRITE and 1030 ER_GET_ERRNO.
func NoRoom(err error) bool {
	return says(err, 1021, 1114) ||
		says(err, 3, 1026, 1030) && strings.Contains(Answer(err).Error(), "No space left on device")
}

// NoDatabase reports whether a server said in err that the database of the DSN does not exist (1049 ER_BAD_DB_ERROR),
// or not for this user: who has no right on it is not told which of the two it is (1044 ER_DBACCESS_DENIED_ERROR).
func NoDatabase(err error) bool { return says(err, 1049, 1044) }

// NoTable reports whether a server said in err that a table does not exist (ER_NO_SUCH_TABLE).
func NoTable(err error) bool { return says(err, 1146) }

// NoColumn reports whether a server said in err that a column does not exist (ER_BAD_FIELD_ERROR).
func NoColumn(err error) bool { return says(err, 1054) }

// Denied reports whether a server said in err that the user may not do this to a table or a column. Who has no right on
// a table is not told whether there is one (1142 ER_TABLEACCESS_DENIED_ERROR, 1143 ER_COLUMNACCESS_DENIED_ERROR).
func Denied(err error) bool { return says(err, 1142, 1143) }

// Duplicate reports whether a server said in err that a row would have stood twice in an index, of whatever table
// (ER_DUP_ENTRY).
func Duplicate(err error) bool { return says(err, 1062) }

// Repeats is Duplicate, and likewise for what says the same in other words (1586; 1022 and 1169, where nobody knows
// which index it was; 1761 and 1762, by a foreign key that cascades). The server has undone the statement, and the
// transaction goes on.
func Repeats(err error) bool { return says(err, 1062, 1586, 1022, 1169, 1761, 1762) }

// NoSavepoint reports whether a server said in err, to RELEASE or ROLLBACK TO, that there is no such savepoint
// (ER_SP_DOES_NOT_EXIST, which it says of a routine too).
func NoSavepoint(err error) bool { return says(err, 1305) }

// RolledBack reports whether a server may have rolled the whole transaction back by itself when it said err, also
// because InnoDB has no memory for more locks (1206 ER_LOCK_TABLE_FULL).
func RolledBack(err error) bool { return says(err, 1206) || Classify(err) == FaultContention }

// DuplicateIn is Duplicate for one index of a table, whose name is not quoted. MySQL names table and index, the table
// in small letters where lower_case_table_names is 1. MariaDB names the index alone: there an index of the same name in
// another table, which a trigger writes, is taken for it.
func DuplicateIn(err error, table, index string) bool {
	if !Duplicate(err) {
		return false
	}
	text := Answer(err).Error()
	const before = " for key '"
	named := strings.TrimSuffix(text[max(0, strings.LastIndex(text, before)):], "'")
	return named == before+index || strings.EqualFold(named, before+table+"."+index)
}
