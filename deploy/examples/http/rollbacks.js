// A shop's stock service for handler http, with the package mysql (mysql2 does as well): it gives stock back, and knows
// a call again by its key.
//
//     SHOP_URL=mysql://shop:shop@127.0.0.1:3306/shop SHOP_ADDR=127.0.0.1:8090 node rollbacks.js
const http = require('http');
const { promisify } = require('util');
const mysql = require('mysql');

// The status of a call. The key and the effect are written in one transaction.
async function rollback(key, body) {
  let items;
  try {
    items = JSON.parse(body).items.map((item) => [item.quantity, item.sku_id]);
  } catch {
    return 400;
  }
  if (!key || !items.flat().every(Number.isSafeInteger)) {
    return 400;
  }
  const db = mysql.createConnection(process.env.SHOP_URL);
  const query = promisify(db.query.bind(db));
  try {
    await query('START TRANSACTION');
    await query('INSERT INTO rollback_done (idempotency_key) VALUES (?)', [key]);
    for (const item of items) {
      await query('UPDATE tb_stock SET amount = amount + ? WHERE goods_id = ?', item);
    }
    await query('COMMIT');
    return 204;
  } catch (error) {
    if (error.errno === 1062) {
      return 200; // applied before: nothing to do, and all is well
    }
    return error.fatal ? 503 : 500; // fatal: the database is away
  } finally {
    db.destroy(); // without a COMMIT nothing happened
  }
}

const [host, port] = process.env.SHOP_ADDR.split(':');
http.createServer(async (call, answer) => {
  let body = '';
  call.setEncoding('utf8');
  for await (const part of call) {
    body += part;
  }
  answer.writeHead(await rollback(call.headers['idempotency-key'], body)).end();
}).listen(Number(port), host);
