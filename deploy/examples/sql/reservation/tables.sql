CREATE TABLE warehouse_stock (
  warehouse CHAR(3) NOT NULL,
  sku       VARCHAR(40) NOT NULL,
  free      INT NOT NULL CHECK (free >= 0),
  held      INT NOT NULL CHECK (held >= 0),
  PRIMARY KEY (warehouse, sku)
) ENGINE=InnoDB;
CREATE TABLE held (
  order_id    VARCHAR(64) NOT NULL,
  line        INT NOT NULL,
  warehouse   CHAR(3) NOT NULL,
  sku         VARCHAR(40) NOT NULL,
  pieces      INT NOT NULL CHECK (pieces > 0),
  released_at DATETIME(6) NULL,
  PRIMARY KEY (order_id, line)
) ENGINE=InnoDB;
INSERT INTO warehouse_stock VALUES ('BER', 'mug', 10, 3), ('HAM', 'mug', 0, 2), ('BER', 'cup', 1, 0);
INSERT INTO held VALUES ('C-9', 1, 'BER', 'mug', 1, NULL), ('C-9', 2, 'HAM', 'mug', 2, NULL),
                        ('C-9', 3, 'BER', 'mug', 2, NULL);
