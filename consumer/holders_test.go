package consumer_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Given a transaction that idles with a row that a message needs, for longer than a lease, then the engine names it and
// the statement that ends it; the log does so once. Where its account may not see that, it says once what is missing.
func TestWhoHoldsARowForLongerThanALeaseIsNamed(t *testing.T) {
	t.Parallel()
	const named, hidden = "somebody holds rows that messages wait for", "who holds the locks cannot be seen"
	for name, mayNot := range map[string]bool{"named": false, "without the right": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.exec("CREATE TABLE shelf (n INT NOT NULL) ENGINE=InnoDB")
			w.exec("INSERT INTO shelf VALUES (0)")
			handle := w.handler
			w.handler = consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
				if err := tx.Exec("UPDATE shelf SET n = n + 1").Error; err != nil {
					return err
				}
				return handle.Handle(ctx, tx, msgs)
			})
			if mayNot {
				w.dsn = stack.Restricted(t, w.dsn, "ALL ON *")
			}
			other := w.conn()
			w.execOn(other, "SET SESSION wait_timeout = 600")
			w.execOn(other, "BEGIN")
			w.execOn(other, "UPDATE shelf SET n = 7")
			var id int
			if err := other.QueryRowContext(t.Context(), "SELECT CONNECTION_ID()").Scan(&id); err != nil {
				t.Fatal(err)
			}
			want, once, never := ".shelf; its transaction began ", named, hidden
			if mayNot {
				want, once, never = "who cannot be seen: ", hidden, named
			}
			began := time.Now()
			r := w.start()
			w.publish("{}", "key")
			w.eventually("State says who", func() bool { return strings.Contains(strings.Join(r.State().Degraded, "\n"), want) })
			if took := time.Since(began); took < w.cfg.Lease {
				t.Errorf("it is said after %v, want a lease at least", took)
			}
			said := strings.Join(r.State().Degraded, "\n")
			t.Log(said)
			if kill := fmt.Sprintf("KILL %d", id); !mayNot && !strings.Contains(said, kill) {
				t.Errorf("%q does not say how to end it by %s", said, kill)
			}
			waits := w.contentions()
			w.eventually("it is waited for in vain three times more", func() bool { return w.contentions() > waits+2 })
			w.execOn(other, "ROLLBACK")
			w.ended(dedup.Success, "key")
			if n := strings.Count(w.logs.String(), once); n != 1 {
				t.Errorf("the log says %d times %q, want once", n, once)
			}
			if strings.Contains(w.logs.String(), never) {
				t.Errorf("the log says %q", never)
			}
		})
	}
}
