-- What all daemons of a queue did in each minute of the last days, for charts. The bounds of the buckets of the lag
-- stand in dedup/minute.go; what another daemon counts in the same minute is added.
-- oldest: 1
-- +goose NO TRANSACTION
-- +goose Up
-- +goose StatementBegin
CREATE TABLE IF NOT EXISTS `consumer_log_minute` (
  group_name VARBINARY(100) NOT NULL,
  queue      VARBINARY(255) NOT NULL,
  minute     INT UNSIGNED   NOT NULL COMMENT 'minutes since 1970, UTC',
  applied    INT UNSIGNED   NOT NULL,
  retried    INT UNSIGNED   NOT NULL,
  dead_malformed      INT UNSIGNED NOT NULL,
  dead_unidentified   INT UNSIGNED NOT NULL,
  dead_conflict       INT UNSIGNED NOT NULL,
  dead_permanent      INT UNSIGNED NOT NULL,
  dead_exhausted      INT UNSIGNED NOT NULL,
  dead_crashed        INT UNSIGNED NOT NULL,
  dead_delivery_limit INT UNSIGNED NOT NULL,
  dead_effect_unknown INT UNSIGNED NOT NULL,
  lag_0  INT UNSIGNED NOT NULL COMMENT 'applied within the first bound of their publishing',
  lag_1  INT UNSIGNED NOT NULL COMMENT 'later than that, and within the second',
  lag_2  INT UNSIGNED NOT NULL,
  lag_3  INT UNSIGNED NOT NULL,
  lag_4  INT UNSIGNED NOT NULL,
  lag_5  INT UNSIGNED NOT NULL,
  lag_6  INT UNSIGNED NOT NULL,
  lag_7  INT UNSIGNED NOT NULL,
  lag_8  INT UNSIGNED NOT NULL,
  lag_9  INT UNSIGNED NOT NULL,
  lag_10 INT UNSIGNED NOT NULL,
  lag_11 INT UNSIGNED NOT NULL,
  lag_12 INT UNSIGNED NOT NULL,
  lag_13 INT UNSIGNED NOT NULL,
  lag_14 INT UNSIGNED NOT NULL,
  lag_15 INT UNSIGNED NOT NULL,
  lag_16 INT UNSIGNED NOT NULL,
  lag_17 INT UNSIGNED NOT NULL,
  lag_18 INT UNSIGNED NOT NULL COMMENT 'later than the last bound',
  waiting  INT UNSIGNED NULL COMMENT 'messages in the main queue, the most that a daemon saw; NULL: none saw',
  retrying INT UNSIGNED NULL COMMENT 'messages in the retry queues, likewise',
  PRIMARY KEY (group_name, queue, minute),
  KEY by_age (minute)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin ROW_FORMAT=DYNAMIC;
-- +goose StatementEnd

-- +goose Down
DROP TABLE IF EXISTS `consumer_log_minute`;
