-- What the built-in handler does with an order whose message names its items, written as statements of a user's own:
-- the same tables, so that the same oracle judges both.

-- once
SELECT sku_id FROM stock_reservation WHERE order_sn = :order_sn; -- expect 1 or more, else retry: nothing is reserved
SELECT sku_id FROM stock_reservation
WHERE order_sn = :order_sn AND status = 1 FOR UPDATE; -- expect 1 or more, else done: nothing is left to release

-- for each /items
UPDATE stock_reservation
SET status = 2, rollback_tag = :rollbackd_tag, rollback_key = :rollbackd_key, updated_at = UTC_TIMESTAMP(6)
WHERE order_sn = :order_sn AND sku_id = :sku_id AND status = 1; -- expect 1, else permanent: the order has not reserved this
UPDATE stock SET amount = amount + :quantity, version = version + 1
WHERE sku_id = :sku_id; -- expect 1, else permanent: unknown goods
