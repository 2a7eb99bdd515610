-- Who has which message in hand, for ROLLBACKD_LOCK=mysql. Nothing is lost with these rows: they only save work.
-- oldest: 1
-- +goose NO TRANSACTION
-- +goose Up
CREATE TABLE IF NOT EXISTS rollbackd_lock (
  name       VARBINARY(64)  NOT NULL COMMENT 'of what is locked, as the lock in Redis has it',
  value      VARBINARY(255) NOT NULL COMMENT 'lock: and the token of the batch that holds it',
  expires_at DATETIME(6)    NOT NULL COMMENT 'UTC; from then on it is nobody''s',
  PRIMARY KEY (name),
  KEY by_expiry (expires_at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin ROW_FORMAT=DYNAMIC;

-- +goose Down
DROP TABLE IF EXISTS rollbackd_lock;
