import java.nio.charset.StandardCharsets;
import java.sql.DriverManager;

/**
 * Cancels an open order and puts the message of a cancelled one into the outbox, in one transaction, with MariaDB's
 * driver.
 *
 * <pre>ORDERS_URL='jdbc:mariadb://127.0.0.1:3306/shop?user=shop&amp;password=shop' \
 *   java -cp /usr/share/java/mariadb-java-client.jar Put.java ORDER SKU QUANTITY</pre>
 */
class Put {
  public static void main(String[] args) throws Exception {
    String order = args[0];
    String body = "{\"order_sn\":\"%s\",\"items\":[{\"sku_id\":%d,\"quantity\":%d}]}"
        .formatted(order, Long.parseLong(args[1]), Long.parseLong(args[2])); // where orders are numbers: else a library
    try (var db = DriverManager.getConnection(System.getenv("ORDERS_URL"))) {
      db.setAutoCommit(false);
      var cancel = db.prepareStatement("UPDATE orders SET status = 'cancelled' WHERE order_sn = ? AND status = 'open'");
      cancel.setBytes(1, order.getBytes(StandardCharsets.UTF_8));
      cancel.executeUpdate();
      var put = db.prepareStatement("INSERT INTO rollbackd_outbox (msg_tag, msg_key, body) SELECT ?, order_sn, ? "
          + "FROM orders WHERE order_sn = ? AND status = 'cancelled'");
      put.setBytes(1, "order.cancelled".getBytes(StandardCharsets.UTF_8));
      put.setBytes(2, body.getBytes(StandardCharsets.UTF_8));
      put.setBytes(3, order.getBytes(StandardCharsets.UTF_8));
      put.executeUpdate();
      db.commit();
    }
  }
}
