package mysqldb

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
)

func TestEachKnownNumberStandsInTheTableOnce(t *testing.T) {
	seen, names := map[uint16]bool{}, map[string]bool{}
	for _, k := range numbers {
		if seen[k.number] || names[k.name] {
			t.Errorf("%d %s stands in the table twice", k.number, k.name)
		}
		seen[k.number], names[k.name] = true, true
		if k.name == "" || k.name != strings.ToUpper(k.name) || k.meaning == "" || k.from == "" {
			t.Errorf("%+v lacks name, meaning or source", k)
		}
		if k.fault == FaultNone || k.fault == FaultOther {
			t.Errorf("%d %s: an error of a server is never of class %v", k.number, k.name, k.fault)
		}
	}
	for _, n := range []uint16{
		numErrorOnWrite, numDiskFull, numErrorOnWriteOld, numStorageEngine, numNoDatabaseRight, numNoDatabase, numDuplicate,
		numAccessDenied, numTableFull, numNoTable, numNodeNotReady,
	} {
		if !seen[n] {
			t.Errorf("%d is asked for and does not stand in the table", n)
		}
	}
}

func TestADuplicateNamesItsIndex(t *testing.T) {
	for _, c := range []struct {
		number      uint16
		message     string
		any, itsOwn bool
	}{
		{1062, "Duplicate entry 'a' for key 'PRIMARY'", true, true}, // MariaDB does not say of which table
		{1062, "Duplicate entry 'a' for key 'b' for key 'consumer_log.PRIMARY'", true, true},
		{1062, "Duplicate entry 'a' for key 'Consumer_Log.PRIMARY'", true, true},
		{1062, "Duplicate entry 'a' for key 'other.PRIMARY'", true, false},
		{1062, "Duplicate entry 'a' for key 'consumer_log.by_age'", true, false},
		{1062, "Doppelter Eintrag", true, false},
		{1586, "Duplicate entry 'a' for key 'PRIMARY'", false, false},
	} {
		err := fmt.Errorf("wrapped: %w", &mysql.MySQLError{Number: c.number, Message: c.message})
		if dup, own := Duplicate(err), DuplicateIn(err, "consumer_log", "PRIMARY"); dup != c.any || own != c.itsOwn {
			t.Errorf("%v is a duplicate: %t, of this index: %t; want %t, %t", err, dup, own, c.any, c.itsOwn)
		}
	}
	if Answered(mysql.ErrInvalidConn) || NoTable(mysql.ErrInvalidConn) {
		t.Error("a network without a server is taken for an answer")
	}
	if err := fmt.Errorf("wrapped: %w", &mysql.MySQLError{Number: 1146}); !Answered(err) || !NoTable(err) {
		t.Errorf("%v is not known", err)
	}
	if err := Answer(mysql.ErrInvalidConn); err != nil {
		t.Errorf("Answer = %v, of a network without a server", err)
	}
	answer := &mysql.MySQLError{Number: 1213}
	if err := Answer(fmt.Errorf("wrapped: %w", answer)); !errors.Is(err, answer) {
		t.Errorf("Answer = %v, want %v", err, answer)
	}
}
