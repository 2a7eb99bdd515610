<?php
// A shop's stock service for handler http, with PDO: it gives stock back, and knows a call again by its key.
//
//     SHOP_DSN='mysql:host=127.0.0.1;port=3306;dbname=shop' SHOP_USER=shop SHOP_PASSWORD=shop \
//         PHP_CLI_SERVER_WORKERS=8 php -S 127.0.0.1:8090 rollbacks.php
http_response_code(500); // until the end is known: PHP answers 200 when it shows an error
http_response_code(rollback($_SERVER['HTTP_IDEMPOTENCY_KEY'] ?? '', file_get_contents('php://input')));

// The status of a call. The key and the effect are written in one transaction.
function rollback(string $key, string $body): int
{
    $items = json_decode($body, true)['items'] ?? null;
    if ($key === '' || !is_array($items)) {
        return 400;
    }
    foreach ($items as $item) {
        if (!is_int($item['sku_id'] ?? null) || !is_int($item['quantity'] ?? null)) {
            return 400;
        }
    }
    try {
        $db = new PDO(getenv('SHOP_DSN'), getenv('SHOP_USER'), getenv('SHOP_PASSWORD'),
            [PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION]);
    } catch (PDOException) {
        return 503; // the database is away
    }
    try {
        $db->beginTransaction();
        $db->prepare('INSERT INTO rollback_done (idempotency_key) VALUES (?)')->execute([$key]);
        $add = $db->prepare('UPDATE tb_stock SET amount = amount + ? WHERE goods_id = ?');
        foreach ($items as $item) {
            $add->execute([$item['quantity'], $item['sku_id']]);
        }
        $db->commit();
    } catch (PDOException $e) {
        return ($e->errorInfo[1] ?? 0) === 1062 ? 200 : 500; // 1062: applied before, and all is well
    }
    return 204;
}
