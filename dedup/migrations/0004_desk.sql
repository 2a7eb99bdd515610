-- What people do to the dead letters and to the fleet, each act under one id; and answers that are given once.
-- oldest: 1
-- +goose NO TRANSACTION
-- +goose Up
ALTER TABLE rollbackd_meta MODIFY value VARBINARY(4000) NOT NULL;

-- +goose StatementBegin
CREATE TABLE IF NOT EXISTS `consumer_log_act` (
  id          VARBINARY(36)  NOT NULL COMMENT 'UUID, version 7',
  group_name  VARBINARY(100) NOT NULL,
  queue       VARBINARY(255) NOT NULL,
  kind        VARCHAR(32)    NOT NULL COMMENT 'replay, discard, pause, resume, ...',
  state       VARCHAR(16)    NOT NULL COMMENT 'running, done, stopped, failed',
  work        TINYINT        NOT NULL COMMENT 'what is left to do: 0 nothing, 1 its letters, 2 to sweep the queue',
  actor       VARCHAR(255)   NOT NULL COMMENT 'who',
  why         VARCHAR(1000)  NOT NULL DEFAULT '',
  request     MEDIUMBLOB     NOT NULL COMMENT 'what was asked for, as JSON',
  guard       BINARY(32)     NULL COMMENT 'of the set of letters, while its run goes on',
  cut_off     DATETIME(6)    NULL COMMENT 'what died later is not of the set, UTC',
  created_at  DATETIME(6)    NOT NULL,
  ended_at    DATETIME(6)    NULL,
  first_event BIGINT         NOT NULL DEFAULT 0 COMMENT 'no event of the run has a smaller id',
  owner       VARBINARY(100) NULL COMMENT 'the process that works on it',
  lease_until DATETIME(6)    NULL,
  term        INT            NOT NULL DEFAULT 0 COMMENT 'how often a process took it up',
  settled_at  DATETIME(6)    NULL COMMENT 'what was reopened until then is confirmed',
  stop_by     VARCHAR(255)   NULL COMMENT 'who asked it to stop',
  progress    BLOB           NULL,
  result      MEDIUMBLOB     NULL,
  error       VARCHAR(1000)  NOT NULL DEFAULT '',
  PRIMARY KEY (id),
  UNIQUE KEY one_run_of_a_set (guard),
  KEY by_group (group_name, queue, id),
  KEY by_kind (group_name, queue, kind, id),
  KEY by_work (group_name, queue, work)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin ROW_FORMAT=DYNAMIC;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TABLE IF NOT EXISTS `consumer_log_once` (
  group_name   VARBINARY(100) NOT NULL,
  actor        VARBINARY(100) NOT NULL COMMENT 'SHA-256 of the actor, as hexadecimal digits',
  name         VARBINARY(255) NOT NULL COMMENT 'the Idempotency-Key, or the token of a form',
  act_id       VARBINARY(36)  NOT NULL COMMENT 'of the act that it stands for',
  state        TINYINT        NOT NULL COMMENT '0 issued, 1 running, 2 done',
  request_hash BINARY(32)     NULL COMMENT 'SHA-256 of what was asked for',
  owner        VARBINARY(100) NULL,
  lease_until  DATETIME(6)    NULL,
  status       INT            NOT NULL DEFAULT 0 COMMENT 'of the answer',
  content_type VARBINARY(255) NOT NULL DEFAULT '',
  location     VARBINARY(2000) NOT NULL DEFAULT '',
  body         MEDIUMBLOB     NULL,
  created_at   DATETIME(6)    NOT NULL,
  PRIMARY KEY (group_name, actor, name),
  KEY by_age (created_at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin ROW_FORMAT=DYNAMIC;
-- +goose StatementEnd

-- +goose Down
DROP TABLE IF EXISTS `consumer_log_once`;
DROP TABLE IF EXISTS `consumer_log_act`;
