-- One row per identity. Keys are bytes: every text collation makes some different keys equal.
-- oldest: 1
-- +goose NO TRANSACTION
-- +goose Up
-- +goose StatementBegin
CREATE TABLE IF NOT EXISTS `consumer_log` (
  group_name         VARBINARY(100) NOT NULL,
  msg_tag            VARBINARY(100) NOT NULL,
  msg_key            VARBINARY(255) NOT NULL,
  msg_id             VARBINARY(255) NULL COMMENT 'AMQP message_id',
  msg_body           MEDIUMBLOB     NULL COMMENT 'kept while not in success',
  properties         MEDIUMBLOB     NULL COMMENT 'AMQP properties and headers as JSON, kept as long',
  body_hash          BINARY(32)     NULL COMMENT 'SHA-256 of the body',
  consumer_status    TINYINT        NOT NULL COMMENT '0 processing, 1 success, 2 failed, 3 dead, 4 discarded',
  consumer_times     INT            NOT NULL COMMENT 'attempts since the row was made or reopened',
  replays            INT            NOT NULL DEFAULT 0 COMMENT 'how often it was reopened',
  owner              VARBINARY(100) NULL COMMENT 'unique per claim and per replay',
  consumer_timestamp DATETIME(6)    NOT NULL COMMENT 'last transition, UTC',
  created_at         DATETIME(6)    NOT NULL,
  dead_at            DATETIME(6)    NULL,
  reason             VARCHAR(32)    NULL COMMENT 'why dead',
  remark             VARCHAR(1000)  NOT NULL DEFAULT '' COMMENT 'last error, or who discarded it and why',
  PRIMARY KEY (group_name, msg_tag, msg_key),
  KEY by_status (consumer_status, consumer_timestamp)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin ROW_FORMAT=DYNAMIC;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TABLE IF NOT EXISTS `consumer_log_event` (
  id         BIGINT         NOT NULL AUTO_INCREMENT,
  group_name VARBINARY(100) NOT NULL,
  msg_tag    VARBINARY(100) NOT NULL,
  msg_key    VARBINARY(255) NOT NULL,
  `at`       DATETIME(6)    NOT NULL COMMENT 'UTC',
  `from`     TINYINT        NULL COMMENT 'NULL: there was no row',
  `to`       TINYINT        NOT NULL,
  attempt    INT            NOT NULL,
  replays    INT            NOT NULL,
  owner      VARBINARY(100) NULL,
  error      VARCHAR(1000)  NOT NULL DEFAULT '',
  `by`       VARCHAR(255)   NOT NULL DEFAULT '',
  PRIMARY KEY (id),
  KEY by_identity (group_name, msg_tag, msg_key, id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin ROW_FORMAT=DYNAMIC;
-- +goose StatementEnd

-- +goose Down
DROP TABLE IF EXISTS `consumer_log_event`;
DROP TABLE IF EXISTS `consumer_log`;
