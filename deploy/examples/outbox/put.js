// Cancels an open order and puts the message of a cancelled one into the outbox, in one transaction, with the package
// mysql (mysql2 does as well).
//
//     ORDERS_URL=mysql://shop:shop@127.0.0.1:3306/shop node put.js ORDER SKU QUANTITY
const { promisify } = require('util');
const mysql = require('mysql');

async function main([order, sku, quantity]) {
  const db = mysql.createConnection(process.env.ORDERS_URL);
  const query = promisify(db.query.bind(db));
  try {
    await query('START TRANSACTION');
    await query("UPDATE orders SET status = 'cancelled' WHERE order_sn = ? AND status = 'open'", [order]);
    const body = JSON.stringify({ order_sn: order, items: [{ sku_id: Number(sku), quantity: Number(quantity) }] });
    await query("INSERT INTO rollbackd_outbox (msg_tag, msg_key, body) SELECT ?, order_sn, ? FROM orders " +
      "WHERE order_sn = ? AND status = 'cancelled'", ['order.cancelled', body, order]);
    await query('COMMIT');
  } finally {
    db.destroy(); // without a COMMIT nothing happened
  }
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
