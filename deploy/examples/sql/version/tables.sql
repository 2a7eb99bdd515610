CREATE TABLE goods (
  sku     VARCHAR(40) NOT NULL PRIMARY KEY,
  on_hand INT NOT NULL,
  version INT NOT NULL
) ENGINE=InnoDB;
INSERT INTO goods VALUES ('shirt-m', 3, 17), ('shirt-l', 0, 4);
