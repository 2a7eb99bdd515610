package consumer_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Given a cluster whose other node is written to too, when transactions lose against those of the other node, which
// they may be told at COMMIT alone, then they are tried again, it has cost nothing, and nobody says that MySQL is away.
func TestAConflictInAClusterOfGaleraCostsNothing(t *testing.T) {
	cluster := stack.OwnGalera(t)
	w := newWorldOn(t, servers{mysql: cluster.Databases[0]})
	w.cfg.Lanes, w.cfg.HandlerTimeout, w.cfg.Lease = 1, 10*time.Second, 20*time.Second
	w.exec("CREATE TABLE amount (sku INT PRIMARY KEY, n INT NOT NULL) ENGINE=InnoDB")
	w.exec("INSERT INTO amount VALUES (1, 0)")
	direct := w.direct
	w.direct = strings.Replace(direct, cluster.Databases[0].Addr(), cluster.Databases[1].Addr(), 1)
	other := w.conn()
	w.direct = direct
	var n int // reading waits for the table to be there
	if err := other.QueryRowContext(t.Context(), "SELECT n FROM amount").Scan(&n); err != nil {
		t.Fatal(err)
	}
	var conflicts atomic.Int32
	const most = 8
	w.handler = consumer.HandlerFunc(func(_ context.Context, tx *gorm.DB, msgs []consumer.Message) error {
		if err := tx.Exec("UPDATE amount SET n = n + 1 WHERE sku = 1").Error; err != nil {
			return err
		}
		for _, m := range msgs {
			if err := insert(tx, m.Key); err != nil {
				return err
			}
		}
		if conflicts.Load() < most {
			conflicts.Add(1)
			w.execOn(other, "UPDATE amount SET n = n + 100 WHERE sku = 1")
		}
		return nil
	})
	fresh, claimed := keys("fresh", 8), keys("claimed", 4)
	w.failedOnce(claimed...)
	w.publish("{}", append(fresh, claimed...)...)
	r := w.start()
	w.ended(dedup.Success, append(fresh, claimed...)...)
	w.recovered(r)
	w.quiet()
	w.costNothing(fresh, claimed)
	if n := conflicts.Load(); n != most {
		t.Errorf("%d transactions met others, want %d", n, most)
	}
	if strings.Contains(w.logs.String(), "waiting for mysql") {
		t.Errorf("a conflict was taken for a server that is away:\n%s", w.logs)
	}
}
