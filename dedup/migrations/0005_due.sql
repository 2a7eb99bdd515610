-- When a failed row may be attempted again, where its handler has named a time. It is NULL in all others, whose attempts
-- and age tell. Adding the column changes the table's description and no row.
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

-- +goose Down
ALTER TABLE `consumer_log` DROP COLUMN due_at;
