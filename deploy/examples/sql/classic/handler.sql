-- The classic: what an order took goes back to the row of its goods.
-- for each /items
UPDATE tb_stock SET amount = amount + :quantity WHERE goods_id = :sku_id; -- expect 1, else permanent: unknown goods
