<?php
// Cancels an order and puts the message into the outbox, in one transaction, with PDO.
//
//     ORDERS_DSN='mysql:host=127.0.0.1;port=3306;dbname=shop' ORDERS_USER=shop ORDERS_PASSWORD=shop \
//         php put.php ORDER SKU QUANTITY
$db = new PDO(getenv('ORDERS_DSN'), getenv('ORDERS_USER'), getenv('ORDERS_PASSWORD'),
    [PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION]);
[, $order, $sku, $quantity] = $argv;
$db->beginTransaction();
$db->prepare("UPDATE orders SET status = 'cancelled' WHERE order_sn = ? AND status = 'open'")->execute([$order]);
$put = $db->prepare('INSERT INTO rollbackd_outbox (msg_tag, msg_key, body) VALUES (?, ?, ?)');
$items = [['sku_id' => (int) $sku, 'quantity' => (int) $quantity]];
$put->execute(['order.cancelled', $order, json_encode(['order_sn' => $order, 'items' => $items])]);
$db->commit();
