-- A released row takes its message's tag and key. Room for both from the start keeps the row where it lies: a row that
-- grows is moved, and splits its page. The default is what a tag of 26 bytes and a UUID take, with a byte for the length
-- of each. Adding the column changes the table's description and no row.
-- oldest: 1
-- +goose NO TRANSACTION
-- +goose Up
SET @rollbackd_step = (SELECT IF(COUNT(*) > 0, 'DO 0',
  'ALTER TABLE stock_reservation ADD COLUMN room VARBINARY(255) NOT NULL DEFAULT ''................................................................'' COMMENT ''for rollback_tag and rollback_key: empty when they are written''')
  FROM information_schema.columns
  WHERE table_schema = DATABASE() AND table_name = 'stock_reservation' AND column_name = 'room');
PREPARE rollbackd_step FROM @rollbackd_step;
EXECUTE rollbackd_step;
DEALLOCATE PREPARE rollbackd_step;

-- +goose Down
ALTER TABLE stock_reservation DROP COLUMN room;
