package sql

import (
	"fmt"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/require"
)

const joinTables = `CREATE TABLE tb_order (sn VARCHAR(20) PRIMARY KEY, state VARCHAR(20) NOT NULL) ENGINE=InnoDB;
CREATE TABLE goods (id INT PRIMARY KEY, amount INT UNSIGNED NOT NULL, version INT NOT NULL DEFAULT 0) ENGINE=InnoDB;
CREATE TABLE entry (n INT AUTO_INCREMENT PRIMARY KEY, sn VARCHAR(20), id INT, pieces INT NOT NULL) ENGINE=InnoDB`

const joinFile = `UPDATE tb_order SET state = 'closed' WHERE sn = :sn AND state = 'open'; -- expect 1, else done
-- for each /items
UPDATE goods SET amount = amount + :n, version = version + 1 WHERE id = :id; -- expect 1, else permanent: unknown goods
INSERT INTO entry (sn, id, pieces) VALUES (:sn, :id, :n)`

// BenchmarkHandle is a batch of 1,000 orders with two items each of 100 goods: an order's state and the stock, message
// by message and joined.
func BenchmarkHandle(b *testing.B) {
	const size = 1000
	for _, joined := range []bool{false, true} {
		b.Run(fmt.Sprintf("joined=%t", joined), func(b *testing.B) {
			w := newWorld(b, joinTables)
			f := w.parse(joinFile)
			if !joined {
				f.plan.Store(nil)
			}
			h := New(f)
			bodies := make([]string, size)
			for i := range bodies {
				bodies[i] = order(fmt.Sprint("o", i), 0, item(1+i%100, 1+i%5), item(1+(i*7)%100, 1+i%3))
				w.exec("INSERT INTO tb_order VALUES (?, 'open')", fmt.Sprint("o", i))
				w.exec("INSERT IGNORE INTO goods (id, amount) VALUES (?, 0)", 1+i%100)
			}
			b.ResetTimer()
			for b.Loop() {
				msgs := messages(bodies...)
				require.OK(b, w.handle(h, msgs...))
				b.StopTimer()
				w.exec("UPDATE tb_order SET state = 'open'")
				b.StartTimer()
			}
			b.ReportMetric(float64(size*b.N)/b.Elapsed().Seconds(), "messages/s")
		})
	}
}
