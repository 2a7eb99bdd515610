-- A database as the program made it that kept the tables of stock and log in one package: what the server told of it
-- (SHOW CREATE TABLE), and its versions.
CREATE TABLE `rollbackd_schema` (
  `set_name` varbinary(100) NOT NULL,
  `version` bigint(20) NOT NULL,
  `oldest` bigint(20) NOT NULL COMMENT 'the oldest program, by its latest version, that works with this one',
  `applied_at` datetime(6) NOT NULL COMMENT 'UTC',
  PRIMARY KEY (`set_name`,`version`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

CREATE TABLE `rollbackd_meta` (
  `name` varbinary(100) NOT NULL,
  `value` varbinary(255) NOT NULL,
  PRIMARY KEY (`name`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

CREATE TABLE `consumer_log` (
  `group_name` varbinary(100) NOT NULL,
  `msg_tag` varbinary(100) NOT NULL,
  `msg_key` varbinary(255) NOT NULL,
  `msg_id` varbinary(255) DEFAULT NULL COMMENT 'AMQP message_id',
  `msg_body` mediumblob DEFAULT NULL COMMENT 'kept while not in success',
  `properties` mediumblob DEFAULT NULL COMMENT 'AMQP properties and headers as JSON, kept as long',
  `body_hash` binary(32) DEFAULT NULL COMMENT 'SHA-256 of the body',
  `consumer_status` tinyint(4) NOT NULL COMMENT '0 processing, 1 success, 2 failed, 3 dead, 4 discarded',
  `consumer_times` int(11) NOT NULL COMMENT 'attempts since the row was made or reopened',
  `replays` int(11) NOT NULL DEFAULT 0 COMMENT 'how often it was reopened',
  `owner` varbinary(100) DEFAULT NULL COMMENT 'unique per claim and per replay',
  `consumer_timestamp` datetime(6) NOT NULL COMMENT 'last transition, UTC',
  `created_at` datetime(6) NOT NULL,
  `dead_at` datetime(6) DEFAULT NULL,
  `reason` varchar(32) DEFAULT NULL COMMENT 'why dead',
  `remark` varchar(1000) NOT NULL DEFAULT '' COMMENT 'last error, or who discarded it and why',
  PRIMARY KEY (`group_name`,`msg_tag`,`msg_key`),
  KEY `by_status` (`consumer_status`,`consumer_timestamp`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin ROW_FORMAT=DYNAMIC;

CREATE TABLE `consumer_log_event` (
  `id` bigint(20) NOT NULL AUTO_INCREMENT,
  `group_name` varbinary(100) NOT NULL,
  `msg_tag` varbinary(100) NOT NULL,
  `msg_key` varbinary(255) NOT NULL,
  `at` datetime(6) NOT NULL COMMENT 'UTC',
  `from` tinyint(4) DEFAULT NULL COMMENT 'NULL: there was no row',
  `to` tinyint(4) NOT NULL,
  `attempt` int(11) NOT NULL,
  `replays` int(11) NOT NULL,
  `owner` varbinary(100) DEFAULT NULL,
  `error` varchar(1000) NOT NULL DEFAULT '',
  `by` varchar(255) NOT NULL DEFAULT '',
  PRIMARY KEY (`id`),
  KEY `by_identity` (`group_name`,`msg_tag`,`msg_key`,`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin ROW_FORMAT=DYNAMIC;

CREATE SQL SECURITY INVOKER VIEW `consumer_log_readable` AS select convert(`consumer_log`.`group_name` using utf8mb4) AS `group_name`,convert(`consumer_log`.`msg_tag` using utf8mb4) AS `msg_tag`,convert(`consumer_log`.`msg_key` using utf8mb4) AS `msg_key`,case `consumer_log`.`consumer_status` when 0 then 'processing' when 1 then 'success' when 2 then 'failed' when 3 then 'dead' when 4 then 'discarded' else cast(`consumer_log`.`consumer_status` as char charset utf8mb4) end AS `status`,`consumer_log`.`consumer_times` AS `attempts`,`consumer_log`.`replays` AS `replays`,`consumer_log`.`reason` AS `reason`,`consumer_log`.`remark` AS `remark`,`consumer_log`.`consumer_timestamp` AS `consumer_timestamp`,`consumer_log`.`created_at` AS `created_at`,`consumer_log`.`dead_at` AS `dead_at`,convert(`consumer_log`.`owner` using utf8mb4) AS `owner`,convert(`consumer_log`.`msg_id` using utf8mb4) AS `msg_id`,lcase(hex(`consumer_log`.`body_hash`)) AS `body_hash`,convert(`consumer_log`.`msg_body` using utf8mb4) AS `msg_body`,convert(`consumer_log`.`properties` using utf8mb4) AS `properties` from `consumer_log`;

CREATE TABLE `stock` (
  `sku_id` bigint(20) NOT NULL,
  `amount` bigint(20) NOT NULL,
  `version` bigint(20) NOT NULL DEFAULT 0,
  PRIMARY KEY (`sku_id`),
  CONSTRAINT `stock_never_oversold` CHECK (`amount` >= 0)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

CREATE TABLE `stock_reservation` (
  `order_sn` varbinary(64) NOT NULL,
  `sku_id` bigint(20) NOT NULL,
  `quantity` int(11) NOT NULL,
  `status` tinyint(4) NOT NULL COMMENT '1 reserved, 2 released, 3 deducted, 4 refused: the rollback came first',
  `rollback_tag` varbinary(100) DEFAULT NULL COMMENT 'by which message it was released or refused',
  `rollback_key` varbinary(255) DEFAULT NULL,
  `updated_at` datetime(6) NOT NULL DEFAULT current_timestamp(6),
  PRIMARY KEY (`order_sn`,`sku_id`),
  CONSTRAINT `stock_reservation_quantity` CHECK (`quantity` >= 0),
  CONSTRAINT `stock_reservation_status` CHECK (`status` between 1 and 4)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

INSERT INTO rollbackd_meta VALUES ('schema_id:consumer_log', '8f14e45f-ceea-467f-a123-6d9d5d2b9c11');

INSERT INTO rollbackd_schema (set_name, version, oldest, applied_at) VALUES
('log:consumer_log', 0, 0, '2026-11-22 09:13:26.142431'),
('log:consumer_log', 1, 1, '2026-11-22 09:13:26.156031'),
('log:consumer_log', 2, 1, '2026-11-22 09:13:26.160768'),
('log:consumer_log', 3, 1, '2026-11-22 09:13:26.164821'),
('stock', 0, 0, '2026-11-22 09:13:26.167055'),
('stock', 1, 1, '2026-11-22 09:13:26.174886');
