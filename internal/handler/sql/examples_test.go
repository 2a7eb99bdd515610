package sql

import (
	"errors"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/outbox"
)

// Given the tables of an example, when its message is handled, then its effect is there; when another message that must
// not change anything comes, then nothing changes.
func TestExamplesDoWhatTheySay(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, look, before, after string
		again                     string // "done": nothing left to do; "twice": it only adds; else an error's beginning
		other                     string // another body
		refused                   string // what is said of it
	}{
		{
			name: "classic", look: "SELECT * FROM tb_stock ORDER BY goods_id",
			before: "1001 5\n1002 0", after: "1001 7\n1002 1", again: "twice",
			other: `{"items":[{"sku_id":1001,"quantity":1},{"sku_id":9,"quantity":1}]}`, refused: "unknown goods",
		},
		{
			name: "version", look: "SELECT * FROM goods ORDER BY sku DESC",
			before: "shirt-m 3 17\nshirt-l 0 4", after: "shirt-m 4 18\nshirt-l 2 5", again: "twice",
			other: `{"lines":[{"sku":"hat","qty":1}]}`, refused: "no such goods",
		},
		{
			name:   "order-state",
			look:   "SELECT * FROM tb_order UNION ALL SELECT * FROM tb_stock ORDER BY 1",
			before: "1001 5\n1002 0\n20261121-0001 cancelling\n20261121-0002 cancelled",
			after:  "1001 7\n1002 1\n20261121-0001 cancelled\n20261121-0002 cancelled", again: "done",
			other: `{"order_sn":"20261121-0002","items":[{"sku_id":9,"quantity":1}]}`,
		},
		{
			name:    "overtaking",
			look:    "SELECT * FROM tb_order UNION ALL SELECT * FROM tb_stock ORDER BY 1",
			before:  "1001 5\n1002 0\n20261121-0001 cancelling\n20261121-0002 cancelled",
			after:   "1001 7\n1002 1\n20261121-0001 cancelled\n20261121-0002 cancelled",
			again:   "the order is not being cancelled yet",
			other:   `{"order_sn":"nobody","items":[{"sku_id":1001,"quantity":1}]}`,
			refused: "the order is not being cancelled yet",
		},
		{
			name: "points-coupons",
			look: "SELECT id, points, 'NULL' FROM account UNION ALL SELECT account_id, points, why FROM point_entry " +
				"UNION ALL SELECT code, order_sn, '' FROM coupon",
			before:  "7 0.50 NULL\nFREE-SHIP B-12 \nOTHER B-13 \nWINTER-5 B-12 ",
			after:   "7 12.80 NULL\n7 12.30 NULL\nFREE-SHIP NULL \nOTHER B-13 \nWINTER-5 NULL ",
			again:   "this order has not used the coupon",
			other:   `{"order_sn":"B-12","account":{"id":7},"points":1,"reason":"x","coupons":["OTHER"]}`,
			refused: "this order has not used the coupon (line 9, coupons[0]: changed 0 rows, expected 1)",
		},
		{
			name: "reservation",
			look: "SELECT warehouse, sku, free, held FROM warehouse_stock UNION ALL " +
				"SELECT order_id, line, pieces, released_at IS NOT NULL FROM held ORDER BY 1, 2",
			before: "BER cup 1 0\nBER mug 10 3\nC-9 1 1 0\nC-9 2 2 0\nC-9 3 2 0\nHAM mug 0 2",
			after:  "BER cup 1 0\nBER mug 13 0\nC-9 1 1 1\nC-9 2 2 1\nC-9 3 2 1\nHAM mug 2 0", again: "done",
			other: `{"order_id":"nobody"}`, refused: "nothing is reserved yet",
		},
		{
			name: "event",
			look: "SELECT order_sn, status, '', '' FROM tb_order UNION ALL SELECT goods_id, amount, '', '' FROM tb_stock " +
				"UNION ALL SELECT msg_tag, msg_key, JSON_EXTRACT(CONVERT(body USING utf8mb4), '$.order_sn', '$.by'), " +
				"routing_key FROM rollbackd_outbox ORDER BY 1", // MySQL and MariaDB order an object's members differently
			before: "1001 5  \n20261121-0001 cancelling  \n20261121-0002 cancelled  ",
			after: "1001 7  \n20261121-0001 cancelled  \n20261121-0002 cancelled  \n" +
				`goods.back 20261121-0001 ["20261121-0001", "key-0"] goods.back`, again: "done",
			other: `{"order_sn":"20261121-0002","items":[{"sku_id":9,"quantity":1}]}`,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, example(t, test.name, "tables.sql"))
			require.OK(t, outbox.Migrate(t.Context(), w.db))
			h := New(w.parse(example(t, test.name, "handler.sql")))
			w.want("at first", test.look, test.before)
			message := messages(example(t, test.name, "message.json"))[0]
			require.OK(t, w.handle(h, message))
			w.want("after the message", test.look, test.after)

			err := w.handle(h, messages(test.other)[0])
			assert.That(t, (test.refused != "" || err == nil) && (test.refused == "" || blames(err, test.refused)),
				"the other message: %v, want %q", err, test.refused)
			w.want("after the other message", test.look, test.after)

			switch err := w.handle(h, message); {
			case test.again == "twice":
				assert.OK(t, err)
				return
			case test.again == "done" && err != nil, test.again != "done" && !blames(err, test.again):
				t.Errorf("under another key: %v, want %q", err, test.again)
			}
			w.want("after the same under another key", test.look, test.after)
		})
	}
}

func blames(err error, want string) bool {
	by, ok := errors.AsType[*consumer.BlameError](err)
	return ok && strings.HasPrefix(by.Messages[0].Err.Error(), want)
}
