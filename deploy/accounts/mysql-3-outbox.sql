-- Load it after `rollbackd migrate --outbox`, where services put messages into an outbox: theirs and the relay's accounts.
CREATE USER IF NOT EXISTS 'orders'@'%' IDENTIFIED BY 'PRODUCER_PASSWORD';
GRANT SELECT, INSERT, UPDATE, DELETE ON `shop`.`rollbackd_outbox` TO 'orders'@'%';
CREATE USER IF NOT EXISTS 'rollbackd_relay'@'%' IDENTIFIED BY 'RELAY_PASSWORD';
GRANT SELECT ON `shop`.`rollbackd_schema` TO 'rollbackd_relay'@'%';
GRANT SELECT, UPDATE, DELETE ON `shop`.`rollbackd_outbox` TO 'rollbackd_relay'@'%';
