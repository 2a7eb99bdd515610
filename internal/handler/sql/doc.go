// Package sql is the handler whose effect a user writes in SQL: statements in a file, with named parameters that are
// fields of the message, run in the transaction that marks the message done. docs/handlers.md is its manual.
//
//	-- once
//	UPDATE tb_order SET status = 'cancelled'
//	WHERE order_sn = :order_sn AND status = 'cancelling'; -- expect 1, else done
//	-- for each /items
//	UPDATE tb_stock SET amount = amount + :quantity WHERE goods_id = :sku_id; -- expect 1, else permanent: unknown goods
//
// [Parse] reads such a file and refuses what would end or escape the transaction, [File.Check] asks the database
// whether it can run, and [New] makes the handler.
//
// What may live here: the language of the file, and what its statements do to a transaction. What must not: what
// becomes of a delivery (the engine), and where the file is (internal/config).
package sql
