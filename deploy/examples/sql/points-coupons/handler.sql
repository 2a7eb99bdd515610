-- Another domain: a cancelled order gives points and coupons back. The ledger names the message, so that a person can
-- see where an entry comes from.
-- once
UPDATE account SET points = points + :points WHERE id = :{/account/id}; -- expect 1, else permanent: unknown account
INSERT INTO point_entry (account_id, points, why, message_key)
VALUES (:{/account/id}, :points, :reason, :rollbackd_key);

-- for each /coupons
UPDATE coupon SET order_sn = NULL
WHERE code = :{} AND order_sn = :{/order_sn}; -- expect 1, else permanent: this order has not used the coupon
