-- A message may come before the order that it is about: it waits for that, and is a dead letter when all its attempts
-- are over. Then it can be replayed, once the order is known.
-- once
UPDATE tb_order SET status = 'cancelled'
WHERE order_sn = :order_sn AND status = 'cancelling'; -- expect 1, else retry: the order is not being cancelled yet

-- for each /items
UPDATE tb_stock SET amount = amount + :quantity WHERE goods_id = :sku_id; -- expect 1, else permanent: unknown goods
