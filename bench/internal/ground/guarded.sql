-- The order's row is locked and looked at before anything is written; goods have decimals.
-- once
SELECT status FROM tb_order WHERE order_sn = :order_sn AND status = 'cancelling' FOR UPDATE; -- expect 1, else done
-- for each /items
UPDATE tb_stock SET amount = amount + :quantity WHERE goods_id = :sku_id; -- expect 1, else permanent: unknown goods
-- once
UPDATE tb_order SET status = 'cancelled' WHERE order_sn = :order_sn AND status = 'cancelling'; -- expect 1, else permanent
