package consumertest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/consumer/consumertest"
	"github.com/rollbackd/rollbackd/internal/test/require"
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
				require.Get(db.ExecContext(t.Context(), text))(t)
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

func one(_ context.Context, tx *gorm.DB, m consumer.Message) error {
	return tx.Exec(freeOne, m.Key).Error
}

// Handlers of each kind, and some that put a message off or say when it is to come back, hold their invariant whatever
// happens, if they write in their transaction.
func TestHandlersOfEachKindPassTheSuite(t *testing.T) {
	s, in := suite(t)
	all := func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
		var early []consumer.BlamedMessage
		for i, m := range msgs {
			if m.Attempt < 2 && m.Replays == 0 && strings.HasSuffix(m.Key, "4") {
				early = append(early, consumer.BlamedMessage{Index: i, Err: errors.New("not yet")})
			} else if err := one(ctx, tx, m); err != nil {
				return err
			}
		}
		return consumer.Except(early...)
	}
	var seen sync.Map
	h := consumer.Mux{
		"each": consumer.Each(one), "batch": consumer.HandlerFunc(all),
		"JSON": consumer.JSON(func(ctx context.Context, tx *gorm.DB, _ struct{}, m consumer.Message) error {
			return one(ctx, tx, m)
		}),
		"JSON batch": consumer.JSONBatch(func(ctx context.Context, tx *gorm.DB, _ []struct{}, msgs []consumer.Message) error {
			return all(ctx, tx, msgs)
		}),
		"later": consumer.Each(func(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
			err := one(ctx, tx, m)
			if _, again := seen.LoadOrStore(m.Key, true); !again {
				err = errors.Join(err, consumer.Later(errors.New("not now"), time.Millisecond))
			}
			return err
		}),
		"sooner": consumer.Each(func(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
			err := one(ctx, tx, m)
			if m.Attempt < 2 {
				err = errors.Join(err, consumer.RetryIn(errors.New("not yet"), time.Millisecond))
			}
			return err
		}),
	}
	tags := slices.Sorted(maps.Keys(h))
	for i := range in.Messages {
		in.Messages[i].Tag = tags[i/5]
	}
	consumertest.Suite(t, s, consumer.With(h, consumer.Recover), in)
}

// Given a handler that writes beside its transaction, when the suite is run on it, then it fails, and says which fault
// has broken what.
func TestTheSuiteNamesTheFaultThatBreaksAHandler(t *testing.T) {
	const inside, fault = "CONSUMERTEST_BROKEN", "killed when it is effect"
	s, in := suite(t)
	if os.Getenv(inside) == "" {
		run := exec.CommandContext(t.Context(), os.Args[0], "-test.count=1",
			"-test.run=^"+t.Name()+"$/^"+strings.ReplaceAll(fault, " ", "_")+"$")
		run.Env = append(os.Environ(), inside+"=yes")
		said, err := run.CombinedOutput()
		for _, want := range []string{fault + " has broken the invariant", "booking:b"} {
			if err == nil || !strings.Contains(string(said), want) {
				t.Errorf("the suite ended with %v and does not say %q:\n%s", err, want, said)
			}
		}
		return
	}
	cfg := require.Get(mysql.ParseDSN(s.MySQLDSN))(t)
	db := stack.OpenMySQL(cfg)
	t.Cleanup(func() { _ = db.Close() })
	consumertest.Suite(t, s, consumer.Each(func(ctx context.Context, _ *gorm.DB, m consumer.Message) error {
		_, err := db.ExecContext(ctx, freeOne, m.Key)
		return err
	}), in)
}
