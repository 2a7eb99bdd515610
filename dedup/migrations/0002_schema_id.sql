-- The id of this log. It is part of every name in Redis, so that a log made anew never meets the marks of an old one.
-- oldest: 1
-- +goose NO TRANSACTION
-- +goose Up
CREATE TABLE IF NOT EXISTS rollbackd_meta (
  name  VARBINARY(100) NOT NULL,
  value VARBINARY(255) NOT NULL,
  PRIMARY KEY (name)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

INSERT INTO rollbackd_meta (name, value)
  SELECT 'schema_id:consumer_log', UUID() FROM (SELECT 1 AS one) AS once
  WHERE NOT EXISTS (SELECT 1 FROM rollbackd_meta AS m WHERE m.name = 'schema_id:consumer_log');

-- +goose Down
DELETE FROM rollbackd_meta WHERE name = 'schema_id:consumer_log';
