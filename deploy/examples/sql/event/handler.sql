-- Order and goods as in order-state, and a message about it for others. It is committed with the rest or not at all;
-- the relay sends it to the queues that are bound with its routing key: not to the one that this file works for.
-- once
UPDATE tb_order SET status = 'cancelled'
WHERE order_sn = :order_sn AND status = 'cancelling'; -- expect 1, else done: the order is not being cancelled

-- for each /items
UPDATE tb_stock SET amount = amount + :quantity WHERE goods_id = :sku_id; -- expect 1, else permanent: unknown goods

-- once
INSERT INTO rollbackd_outbox (msg_tag, msg_key, body, routing_key)
VALUES ('goods.back', :order_sn, JSON_OBJECT('order_sn', :order_sn, 'by', :rollbackd_key), 'goods.back');
