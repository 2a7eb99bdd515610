CREATE TABLE IF NOT EXISTS orders (
  order_sn VARBINARY(64) PRIMARY KEY,
  status   ENUM('open', 'paid', 'cancelled') NOT NULL DEFAULT 'open'
) ENGINE=InnoDB;
