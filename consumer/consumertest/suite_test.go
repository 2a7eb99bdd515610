package consumertest_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/consumer/consumertest"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestMain(m *testing.M) {
	stack.Main(m, func() error {
		for _, end := range t.cleanups {
			end()
		}
		return nil
	})
}

// suite are the servers of a suite, and what it holds a handler against that adds one to a row for each message. A
// process that is to be killed is told by this variable where they are.
func suite(t *testing.T) (consumertest.Servers, consumertest.Invariant) {
	t.Helper()
	const where = "CONSUMERTEST_SERVERS"
	if os.Getenv(where) == "" {
		t.Setenv(where, stack.MySQL(t)+" "+stack.AMQP(t).URL)
	}
	dsn, url, _ := strings.Cut(os.Getenv(where), " ")
	in := consumertest.Invariant{
		Setup: func(t *testing.T, db *sql.DB) {
			for _, text := range []string{
				"DROP TABLE IF EXISTS seat",
				"CREATE TABLE seat (booking VARBINARY(40) PRIMARY KEY, free INT NOT NULL) ENGINE=InnoDB",
			} {
				if _, err := db.ExecContext(t.Context(), text); err != nil {
					t.Fatal(err)
				}
			}
		},
		Query: "SELECT booking, free FROM seat WHERE free <> 1 UNION ALL " +
			"SELECT 'all of them', COUNT(*) FROM seat HAVING COUNT(*) <> 30",
	}
	for i := range 30 {
		in.Messages = append(in.Messages, consumertest.Message(tag, fmt.Sprintf("b%02d", i), "{}"))
	}
	return consumertest.Servers{MySQLDSN: dsn, AMQPURL: url}, in
}

const freeOne = "INSERT INTO seat VALUES (?, 1) ON DUPLICATE KEY UPDATE free = free + 1"

// A handler that writes in its transaction holds its invariant whatever happens.
func TestAHandlerInItsTransactionPassesTheSuite(t *testing.T) {
	s, in := suite(t)
	consumertest.Suite(t, s, consumer.Each(func(_ context.Context, tx *gorm.DB, m consumer.Message) error {
		return tx.Exec(freeOne, m.Key).Error
	}), in)
}

// Given a handler that writes beside its transaction, when the suite is run on it, then it fails, and says which fault
// has broken what.
func TestTheSuiteNamesTheFaultThatBreaksAHandler(t *testing.T) {
	const inside = "CONSUMERTEST_BROKEN"
	s, in := suite(t)
	if os.Getenv(inside) == "" {
		run := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.count=1")
		run.Env = append(os.Environ(), inside+"=yes")
		said, err := run.CombinedOutput()
		for _, want := range []string{"killed when it is effect has broken the invariant", "booking:b"} {
			if err == nil || !strings.Contains(string(said), want) {
				t.Errorf("the suite ended with %v and does not say %q:\n%s", err, want, said)
			}
		}
		return
	}
	cfg, err := mysql.ParseDSN(s.MySQLDSN)
	if err != nil {
		t.Fatal(err)
	}
	db := stack.OpenMySQL(cfg)
	t.Cleanup(func() { _ = db.Close() })
	consumertest.Suite(t, s, consumer.Each(func(ctx context.Context, _ *gorm.DB, m consumer.Message) error {
		_, err := db.ExecContext(ctx, freeOne, m.Key)
		return err
	}), in)
}
