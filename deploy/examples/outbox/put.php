<?php
// Cancels an open order and puts the message of a cancelled one into the outbox, in one transaction, with PDO.
//
//     ORDERS_DSN='mysql:host=127.0.0.1;port=3306;dbname=shop' ORDERS_USER=shop ORDERS_PASSWORD=shop \
//         php put.php ORDER SKU QUANTITY
$db = new PDO(getenv('ORDERS_DSN'), getenv('ORDERS_USER'), getenv('ORDERS_PASSWORD'),
    [PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION]);
[, $order, $sku, $quantity] = $argv;
$db->beginTransaction();
$db->prepare("UPDATE orders SET status = 'cancelled' WHERE order_sn = ? AND status = 'open'")->execute([$order]);
$put = $db->prepare("INSERT INTO rollbackd_outbox (msg_tag, msg_key, body) SELECT ?, order_sn, ? FROM orders
    WHERE order_sn = ? AND status = 'cancelled'");
$items = [['sku_id' => (int) $sku, 'quantity' => (int) $quantity]];
$put->execute(['order.cancelled', json_encode(['order_sn' => $order, 'items' => $items]), $order]);
$db->commit();
