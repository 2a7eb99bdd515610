import com.google.gson.JsonElement;
import com.google.gson.JsonParser;
import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.util.List;
import java.util.concurrent.Executors;

/**
 * A shop's stock service for handler http, with MariaDB's driver and Gson: it gives stock back, and knows a call again
 * by its key.
 *
 * <pre>SHOP_URL='jdbc:mariadb://127.0.0.1:3306/shop?user=shop&amp;password=shop' SHOP_ADDR=127.0.0.1:8090 \
 *   java -cp /usr/share/java/mariadb-java-client.jar:/usr/share/java/gson.jar Rollbacks.java</pre>
 */
class Rollbacks {
  public static void main(String[] args) throws Exception {
    String[] addr = System.getenv("SHOP_ADDR").split(":");
    var server = HttpServer.create(new InetSocketAddress(addr[0], Integer.parseInt(addr[1])), 0);
    server.setExecutor(Executors.newCachedThreadPool());
    server.createContext("/rollbacks", call -> {
      var body = new String(call.getRequestBody().readAllBytes(), StandardCharsets.UTF_8);
      call.sendResponseHeaders(rollback(call.getRequestHeaders().getFirst("Idempotency-Key"), body), -1);
      call.close();
    });
    server.start();
  }

  /** The status of a call. The key and the effect are written in one transaction. */
  static int rollback(String key, String body) {
    try {
      var items = JsonParser.parseString(body).getAsJsonObject().getAsJsonArray("items").asList().stream()
          .map(JsonElement::getAsJsonObject)
          .map(item -> new long[] {whole(item.get("quantity")), whole(item.get("sku_id"))}).toList();
      return key == null ? 400 : apply(key, items);
    } catch (RuntimeException e) {
      return 400; // no JSON with items
    }
  }

  /** Gson's getAsLong cuts what is no whole number, or too large. */
  static long whole(JsonElement number) {
    return number.getAsBigInteger().longValueExact();
  }

  static int apply(String key, List<long[]> items) {
    try (var db = DriverManager.getConnection(System.getenv("SHOP_URL"))) {
      db.setAutoCommit(false);
      var done = db.prepareStatement("INSERT INTO rollback_done (idempotency_key) VALUES (?)");
      done.setString(1, key);
      done.executeUpdate();
      var add = db.prepareStatement("UPDATE tb_stock SET amount = amount + ? WHERE goods_id = ?");
      for (var item : items) {
        add.setLong(1, item[0]);
        add.setLong(2, item[1]);
        add.executeUpdate();
      }
      db.commit();
      return 204;
    } catch (SQLException e) {
      if (e.getErrorCode() == 1062) {
        return 200; // applied before: nothing to do, and all is well
      }
      return e.getSQLState() != null && e.getSQLState().startsWith("08") ? 503 : 500; // 08: the database is away
    }
  }
}
