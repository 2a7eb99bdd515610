-- Load it after the first `rollbackd migrate`: nothing can be granted on a table that does not exist.
CREATE USER IF NOT EXISTS 'rollbackd'@'%' IDENTIFIED BY 'DAEMON_PASSWORD';
GRANT SELECT, INSERT, UPDATE, DELETE ON `shop`.`consumer_log` TO 'rollbackd'@'%';
GRANT SELECT, INSERT, DELETE ON `shop`.`consumer_log_event` TO 'rollbackd'@'%';
GRANT SELECT, INSERT, UPDATE ON `shop`.`rollbackd_meta` TO 'rollbackd'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON `shop`.`consumer_log_act` TO 'rollbackd'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON `shop`.`consumer_log_once` TO 'rollbackd'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON `shop`.`consumer_log_minute` TO 'rollbackd'@'%';
GRANT SELECT ON `shop`.`rollbackd_schema` TO 'rollbackd'@'%';
GRANT SELECT, UPDATE ON `shop`.`stock` TO 'rollbackd'@'%';
GRANT SELECT, INSERT, UPDATE ON `shop`.`stock_reservation` TO 'rollbackd'@'%';
