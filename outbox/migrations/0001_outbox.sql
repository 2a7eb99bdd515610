-- The outbox. What tells messages apart is the primary key itself, so that a Put of a key that waits and a Cancel lock
-- one record and no gap. Columns are wider than what a message may have: a client without strict mode would cut a value
-- to the column's width, and what is as wide as that is parked instead of being sent.
-- oldest: 1
-- +goose NO TRANSACTION
-- +goose Up
-- +goose StatementBegin
CREATE TABLE IF NOT EXISTS rollbackd_outbox (
  msg_tag      VARBINARY(600)  NOT NULL DEFAULT '',
  msg_key      VARBINARY(2000) NOT NULL DEFAULT '',
  body         LONGBLOB        NOT NULL,
  content_type VARBINARY(600)  NULL COMMENT 'application/json when NULL',
  headers      LONGBLOB        NULL COMMENT 'a JSON object of texts, numbers, true and false',
  exchange     VARBINARY(600)  NULL COMMENT 'that of the relay when NULL',
  routing_key  VARBINARY(600)  NULL COMMENT 'that of the relay when NULL',
  put_at       DATETIME(6)     NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
  due_at       DATETIME(6)     NOT NULL DEFAULT (UTC_TIMESTAMP(6)) COMMENT 'UTC: not to be sent before',
  next_at      DATETIME(6)     NOT NULL DEFAULT (due_at) COMMENT 'UTC: when a relay looks at it next',
  owner        VARBINARY(100)  NULL COMMENT 'the claim that sent it, perhaps; NULL: nobody did',
  tries        INT             NOT NULL DEFAULT 0 COMMENT 'how often RabbitMQ did not take it',
  failed_at    DATETIME(6)     NULL COMMENT 'UTC: when RabbitMQ first did not take it',
  parked_at    DATETIME(6)     NULL COMMENT 'UTC: since when it waits for a person',
  reason       VARCHAR(1000)   NULL COMMENT 'why it was not taken',
  PRIMARY KEY (msg_tag, msg_key),
  KEY next_at (next_at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
-- +goose StatementEnd

-- +goose Down
DROP TABLE IF EXISTS rollbackd_outbox;
