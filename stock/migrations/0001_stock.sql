-- The tables of package stock.
-- oldest: 1
-- +goose NO TRANSACTION
-- +goose Up
-- +goose StatementBegin
CREATE TABLE IF NOT EXISTS stock (
  sku_id  BIGINT NOT NULL,
  amount  BIGINT NOT NULL,
  version BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (sku_id),
  CONSTRAINT stock_never_oversold CHECK (amount >= 0)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TABLE IF NOT EXISTS stock_reservation (
  order_sn     VARBINARY(64)  NOT NULL,
  sku_id       BIGINT         NOT NULL,
  quantity     INT            NOT NULL,
  status       TINYINT        NOT NULL COMMENT '1 reserved, 2 released, 3 deducted, 4 refused: the rollback came first',
  rollback_tag VARBINARY(100) NULL COMMENT 'by which message it was released or refused',
  rollback_key VARBINARY(255) NULL,
  updated_at   DATETIME(6)    NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  PRIMARY KEY (order_sn, sku_id),
  CONSTRAINT stock_reservation_quantity CHECK (quantity >= 0),
  CONSTRAINT stock_reservation_status CHECK (status BETWEEN 1 AND 4)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
-- +goose StatementEnd

-- +goose Down
DROP TABLE IF EXISTS stock_reservation;
DROP TABLE IF EXISTS stock;
