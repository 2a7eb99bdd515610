-- A reservation table of another shape: a row per order, warehouse and goods, which keeps when it was released. The
-- message names the order only; what goes back stands in the table.
-- once
SELECT line FROM held WHERE order_id = :order_id FOR UPDATE; -- expect 1 or more, else retry: nothing is reserved yet
SELECT line FROM held WHERE order_id = :order_id AND released_at IS NULL; -- expect 1 or more, else done: released

UPDATE warehouse_stock AS s
  JOIN (SELECT warehouse, sku, SUM(pieces) AS pieces FROM held
        WHERE order_id = :order_id AND released_at IS NULL GROUP BY warehouse, sku) AS h
    ON s.warehouse = h.warehouse AND s.sku = h.sku
SET s.free = s.free + h.pieces, s.held = s.held - h.pieces; -- expect 1 or more, else permanent: no such goods
UPDATE held SET released_at = UTC_TIMESTAMP(6)
WHERE order_id = :order_id AND released_at IS NULL; -- expect 1 or more, else permanent: somebody else has released it
