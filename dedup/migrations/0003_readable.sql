-- The log for people: keys as text, the status as a word.
-- oldest: 1
-- +goose NO TRANSACTION
-- +goose Up
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
