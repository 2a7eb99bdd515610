package mysqldb

import (
	"errors"
	"fmt"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

func TestEachNumberIsListedOnce(t *testing.T) {
	for _, from := range []string{"mysql", "mariadb"} {
		seen := map[uint16]bool{}
		eachListed(func(fault Fault, server string, n uint16) {
			assert.That(t, (server == "both" || server == "mysql" || server == "mariadb") && fault <= FaultUnavailable &&
				fault >= FaultData, "%d: of %q, or of no fault", n, server)
			if server != "both" && server != from {
				return
			}
			assert.That(t, !seen[n], "%s: %d is listed twice", from, n)
			seen[n] = true
			assert.That(t, server == "both" || n >= 4000, "%d means the same on both servers", n)
		})
	}
}

// From 4000 on the servers use the same numbers for different things. A program that looks at the driver's error finds
// it all the same.
func TestANumberMeansWhatItsServerMeans(t *testing.T) {
	w := newWorld(t)
	w.exec("CREATE PROCEDURE say(n INT) SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = n")
	var isMariaDB bool
	require.OK(t, w.pool.QueryRow("SELECT VERSION() LIKE '%MariaDB%'").Scan(&isMariaDB))
	for _, c := range []struct {
		number           uint16
		onMySQL, onMaria Fault
	}{
		{4031, FaultUnavailable, FaultRefused},
		{4151, FaultRefused, FaultUnavailable},
		{1030, FaultUnavailable, FaultUnavailable},
	} {
		want := c.onMySQL
		if isMariaDB {
			want = c.onMaria
		}
		_, err := w.pool.Exec("CALL say(?)", c.number)
		assert.Is(t, Classify(fmt.Errorf("wrapped: %w", err)), want, "%v", err)
		server, ok := errors.AsType[*mysql.MySQLError](err)
		assert.That(t, ok && server.Number == c.number, "%v is not the driver's error any more", err)
		if got := Classify(&mysql.MySQLError{Number: c.number}); got != FaultUnavailable { // of whom, nobody knows
			t.Errorf("%d of any server is %v", c.number, got)
		}
	}
}
