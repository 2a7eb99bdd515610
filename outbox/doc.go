// Package outbox is the producer's half of the promise: [Put] writes a message in the transaction of the business
// change, so that both are committed or neither is, and a relay (package outbox/relay, or `rollbackd relay`) publishes
// it with confirms and deletes the row when RabbitMQ has confirmed it. A message can wait for its time (NotBefore,
// Delay), and [Cancel] takes back what was not sent, in a transaction too.
//
//	tx, err := db.BeginTx(ctx, nil)
//	…
//	_, err = tx.ExecContext(ctx, "UPDATE orders SET status = 'cancelled' WHERE order_sn = ?", sn)
//	err = outbox.Put(ctx, tx, outbox.Message{Tag: "order.cancelled", Key: sn, Value: rollback})
//	err = tx.Commit()
//
// A message is sent at least once: a relay that dies after the confirm and before the delete sends it again, which the
// consumer log absorbs. Order is not promised. The table is rollbackd_outbox ([Migrations]); docs/outbox.md shows how
// a program in any language writes its rows.
//
// What lives here: messages, rows, and what a program or a person does with them. What must not: the broker. A service
// that only puts messages links no client of it.
package outbox
