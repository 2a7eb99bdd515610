-- A table with a version: whoever has read the row before compares the version when it writes, and must lose now.
-- for each /lines
UPDATE goods SET on_hand = on_hand + :qty, version = version + 1
WHERE sku = :sku; -- expect 1, else permanent: no such goods
