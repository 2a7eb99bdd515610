-- The order's own state says whether there is anything to do: a second message about it, under another key, finds
-- nothing. The guard stands before any other write.
-- once
UPDATE tb_order SET status = 'cancelled'
WHERE order_sn = :order_sn AND status = 'cancelling'; -- expect 1, else done: the order is not being cancelled

-- for each /items
UPDATE tb_stock SET amount = amount + :quantity WHERE goods_id = :sku_id; -- expect 1, else permanent: unknown goods
