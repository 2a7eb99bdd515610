-- When a failed row may be attempted again, where its handler has named a time. It is NULL in all others, whose attempts
-- and age tell. Adding the column changes the table's description and no row. The log for people shows it.
-- oldest: 1
-- +goose NO TRANSACTION
-- +goose Up
SET @rollbackd_step = (SELECT IF(COUNT(*) > 0, 'DO 0',
  'ALTER TABLE `consumer_log` ADD COLUMN due_at DATETIME(6) NULL COMMENT ''of a failed row: not attempted before, UTC; NULL: by its attempts''')
  FROM information_schema.columns
  WHERE table_schema = DATABASE() AND table_name = 'consumer_log' AND column_name = 'due_at');
PREPARE rollbackd_step FROM @rollbackd_step;
EXECUTE rollbackd_step;
DEALLOCATE PREPARE rollbackd_step;

-- +goose StatementBegin
CREATE OR REPLACE SQL SECURITY INVOKER VIEW `consumer_log_readable` AS
SELECT
  CONVERT(group_name USING utf8mb4) AS group_name,
  CONVERT(msg_tag USING utf8mb4)    AS msg_tag,
  CONVERT(msg_key USING utf8mb4)    AS msg_key,
  CASE consumer_status
    WHEN 0 THEN 'processing' WHEN 1 THEN 'success' WHEN 2 THEN 'failed' WHEN 3 THEN 'dead' WHEN 4 THEN 'discarded'
    ELSE CAST(consumer_status AS CHAR)
  END                               AS status,
  consumer_times                    AS attempts,
  replays,
  reason,
  remark,
  consumer_timestamp,
  due_at,
  created_at,
  dead_at,
  CONVERT(owner USING utf8mb4)      AS owner,
  CONVERT(msg_id USING utf8mb4)     AS msg_id,
  LOWER(HEX(body_hash))             AS body_hash,
  CONVERT(msg_body USING utf8mb4)   AS msg_body,
  CONVERT(properties USING utf8mb4) AS properties
FROM `consumer_log`;
-- +goose StatementEnd

-- +goose Down
DROP VIEW IF EXISTS `consumer_log_readable`;
ALTER TABLE `consumer_log` DROP COLUMN due_at;
