package daemon_test

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/shop"
)

// These tests go through docs/adopting.md from step to step, with the program and nothing but its commands.

const classicStock = 1000 // of each sku at first

// classicShop is a shop with tb_stock, which producers go on feeding whatever is done to it.
type classicShop struct {
	*world
	queue string // that was there before

	wg     sync.WaitGroup
	end    context.CancelFunc
	orders int
	wanted map[int64]int64 // by sku: what all orders give back; the producer's, until it has stopped
}

// newClassicShop has the tables of the classic shop and its queue, bound to its exchange.
func newClassicShop(t *testing.T, pairs ...string) *classicShop {
	file := require.Get(filepath.Abs("../../deploy/examples/sql/classic/handler.sql"))(t)
	w := emptyWorld(t, append([]string{
		"HANDLER", "sql", "SQL_FILE", file, "KEY_FROM", "property:message_id", "ROUTING_KEYS", "order.cancelled",
	}, pairs...)...)
	s := &classicShop{world: w, queue: w.broker.Name("trade.cancelled"), wanted: map[int64]int64{}}
	w.route.Key = "order.cancelled"
	w.broker.DeclareExchange(s.route.Exchange, "topic")
	w.broker.DeclareQueue(s.queue, nil)
	w.broker.Bind(s.queue, s.route.Key, s.route.Exchange)
	s.exec(classicTables)
	// What the oracle reads besides; this shop has none.
	s.exec("CREATE TABLE stock (sku_id BIGINT PRIMARY KEY, amount BIGINT);" +
		"CREATE TABLE stock_reservation (order_sn VARBINARY(64), sku_id BIGINT, quantity INT, status TINYINT, " +
		"rollback_tag VARBINARY(100), rollback_key VARBINARY(255))")
	for sku := range skus {
		s.exec(fmt.Sprintf("INSERT INTO tb_stock VALUES (%d, %d)", sku+1, classicStock))
	}
	s.remember()
	return s
}

func (s *classicShop) exec(statements string) {
	s.t.Helper()
	for statement := range strings.SplitSeq(statements, ";") {
		if strings.TrimSpace(statement) != "" {
			s.world.exec(statement)
		}
	}
}

// produce publishes orders without a pause until it is stopped, each tenth twice and each tenth once more later.
func (s *classicShop) produce() {
	ctx, cancel := context.WithCancel(s.t.Context())
	s.end = cancel
	p := rabbit.NewPublisher(rabbit.Config{URLs: []string{s.broker.URL}, Name: "producer"})
	s.wg.Go(func() {
		defer func() { _ = p.Close(context.WithoutCancel(ctx)) }()
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		var again []oracle.Sent
		for i := s.orders; ctx.Err() == nil; i++ { // whoever produced before has had lower numbers
			orders := shop.Orders(s.rng, fmt.Sprintf("o%05d", i), 5, skus)
			sent := s.route.Rollbacks(orders)
			s.note(orders)
			again = append(again, sent[0])
			sent = append(sent, sent[1])
			if i%20 == 19 {
				sent, again = append(sent, again...), nil
			}
			if err := shop.Publish(context.WithoutCancel(ctx), p, s.ledger, sent, nil); err != nil {
				s.t.Errorf("the producers could not publish: %v", err)
				return
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	})
	s.t.Cleanup(func() { cancel(); s.wg.Wait() })
}

func (s *classicShop) note(orders []shop.Order) {
	s.orders += len(orders)
	for _, o := range orders {
		for _, item := range o.Items {
			s.wanted[item.SKU] += item.Quantity
		}
	}
}

// stopProducing returns how many orders there were.
func (s *classicShop) stopProducing() int {
	s.end()
	s.wg.Wait()
	return s.orders
}

// checkStock compares what there is of each sku with what all orders gave back.
func (s *classicShop) checkStock() {
	s.t.Helper()
	for sku := range int64(skus) {
		got := s.count("SELECT amount FROM tb_stock WHERE goods_id = ?", sku+1)
		assert.Is(s.t, got, classicStock+int(s.wanted[sku+1]), "there of sku %d", sku+1)
	}
}

// consumer runs a command to its end, which must be a good one.
func (s *classicShop) consumer(args ...string) string {
	s.t.Helper()
	return require.Get(s.types(args...))(s.t)
}

// Given a shop with tb_stock, trade_mq_consumer_log and a classic queue whose producers never stop, when it is brought
// over as the page says, and `move` is killed again and again meanwhile, then each order is given back once, and the
// oracle finds nothing lost and nothing twice. When it goes back as the page says, then again each order is given back
// once by either of the two, and the old table knows all of them.
func TestAClassicShopIsBroughtOverAndBack(t *testing.T) {
	s := newClassicShop(t)
	stopClassic := s.classic(s.queue)
	s.produce()
	s.eventually("the classic consumer works", func() bool { return s.classicSuccesses() > 50 })

	s.consumer("migrate") // step 2
	s.consumer("handler", "try", "--key", "x", s.exampleMessage())
	s.takeOver() // a first pass
	s.eventually("the classic consumer works on", func() bool { return s.classicSuccesses() > 100 })
	stopClassic()             // step 3
	s.takeOver("--last-pass") // step 4
	byClassic := s.classicSuccesses()
	s.eventually("messages wait in both queues", func() bool {
		return s.broker.Depth(s.queue) > 100 && s.broker.Depth(s.env["QUEUE"]) > 100
	})
	daemon := s.start() // step 5
	// step 6, slowly, so that it is killed with messages in hand
	first := s.command("move", "--from", s.queue, "--rate", "20")
	s.eventually("it has messages in hand", func() bool { return s.broker.Unacked(s.queue) > 0 })
	s.kill(first)
	a := s.command("move", "--from", s.queue, "--follow")
	b := s.command("move", "--from", s.queue, "--follow", "--rate", "50")
	s.eventually("both move", func() bool { return s.broker.Consumers(s.queue) == 2 })
	s.eventually("more than the classic consumer's is applied", func() bool {
		return s.rows(dedup.Success) > byClassic+200
	})
	s.kill(b)
	s.broker.Unbind(s.queue, s.route.Key, s.route.Exchange) // step 7
	s.eventually("the old queue is empty", func() bool {
		return s.broker.Depth(s.queue) == 0 && s.broker.Unacked(s.queue) == 0
	})
	s.stop(a)
	assert.Has(t, s.consumer("move", "--from", s.queue), "0         moved", "the last move says")
	s.broker.Delete(s.queue)
	orders := s.stopProducing()
	s.ended(orders)
	s.stop(daemon)
	if report := s.judge(oracle.Allowance{}); report.Applied != orders || report.DuplicatesAbsorbed == 0 {
		t.Errorf("%d applied, %d copies absorbed; want %d and some", report.Applied, report.DuplicatesAbsorbed, orders)
	}
	s.checkStock()
	if byClassic == orders {
		t.Error("the classic consumer did it all: nothing was brought over")
	}

	s.produce()
	daemon = s.start()
	s.eventually("the daemon works on", func() bool { return s.rows(dedup.Success) > orders+50 })
	s.broker.DeclareQueue(s.queue, nil) // the way back: step 1
	s.broker.Bind(s.queue, s.route.Key, s.route.Exchange)
	s.broker.Unbind(s.env["QUEUE"], s.route.Key, s.route.Exchange)
	s.eventually("the new queues are empty", func() bool { // step 2
		for _, queue := range s.config().TopologyConfig().Queues() {
			if s.broker.Depth(queue) > 0 || s.broker.Unacked(queue) > 0 {
				return false
			}
		}
		return true
	})
	s.stop(daemon)
	s.exec(s.statementOfThePage())   // step 3
	stopClassic = s.classic(s.queue) // step 4
	orders = s.stopProducing()
	s.eventually("the classic consumer has done all", func() bool {
		return s.classicSuccesses() == orders && s.broker.Depth(s.queue) == 0 && s.broker.Unacked(s.queue) == 0
	})
	stopClassic()
	s.checkStock()
}

// exampleMessage is a message of the shop's in a file.
func (s *classicShop) exampleMessage() string {
	path := filepath.Join(s.t.TempDir(), "message.json")
	require.OK(s.t, os.WriteFile(path, []byte(`{"order_sn":"x","items":[{"sku_id":1,"quantity":1}]}`), 0o600))
	return path
}

// takeOver is a pass over the classic table.
func (s *classicShop) takeOver(more ...string) {
	s.consumer(append([]string{
		"migrate", "--from", "trade_mq_consumer_log", "--map-group", classicGroup + "=" + s.config().Group,
	}, more...)...)
}

// statementOfThePage is the SQL that docs/adopting.md shows for the way back.
func (s *classicShop) statementOfThePage() string {
	page := require.Get(os.ReadFile("../../docs/adopting.md"))(s.t)
	_, statement, _ := strings.Cut(string(page), "```sql\n") // an empty one leaves the way back undone
	statement, _, _ = strings.Cut(statement, "```")
	return statement
}

// Given a shop whose job goes over a table of cancelled orders, when the script of the page takes the job's place, is
// killed, fails and runs twice at once, then each order is given back once, and no row is marked that was not
// published.
func TestAJobOverATableIsBroughtOver(t *testing.T) {
	s := newClassicShop(t)
	s.broker.Unbind(s.queue, s.route.Key, s.route.Exchange)
	s.exec("CREATE TABLE cancelled_order (id BIGINT AUTO_INCREMENT PRIMARY KEY, body JSON NOT NULL, " +
		"done TINYINT NOT NULL DEFAULT 0) ENGINE=InnoDB")
	orders := shop.Orders(s.rng, "job", 600, skus)
	s.note(orders)
	for i, o := range orders {
		s.world.exec("INSERT INTO cancelled_order (body, done) VALUES (?, ?)", string(o.Body()), i < 100)
		if i < 100 { // the old job has done these
			for _, item := range o.Items {
				s.world.exec("UPDATE tb_stock SET amount = amount + ? WHERE goods_id = ?", item.Quantity, item.SKU)
			}
		}
	}
	job := s.job()
	if _, err := job("consumer-is-not-there"); err == nil {
		t.Error("a script that could not publish says that it has")
	}
	s.consumer("migrate")
	require.Is(t, s.count("SELECT COUNT(*) FROM cancelled_order WHERE done = 0"), 500,
		"orders are open after a run that published nothing")
	daemon := s.start()
	works := func() { out, err := job(""); assert.OK(t, err, "the script:", out) }
	for range 2 {
		s.wg.Go(works)
	}
	s.wg.Wait()
	// A run that is killed between publishing and marking publishes again.
	s.exec("UPDATE cancelled_order SET done = 0 WHERE id BETWEEN 200 AND 300")
	works()
	is(s.world, "orders are left in the table", s.count("SELECT COUNT(*) FROM cancelled_order WHERE done = 0"), 0)
	s.ended(500)
	s.stop(daemon)
	is(s.world, "are applied", s.rows(dedup.Success), 500)
	s.checkStock()
}

// job is the script of the page as the shop runs it; other is a program in the place of rollbackd.
func (s *classicShop) job() func(other string) (string, error) {
	s.t.Helper()
	dsn := require.Get(mysql.ParseDSN(s.env["MYSQL_DSN"]))(s.t)
	host, port, _ := net.SplitHostPort(dsn.Addr)
	client := fmt.Sprintf("mysql --no-defaults -h%s -P%s -u%s %s", host, port, dsn.User, dsn.DBName)
	dir := filepath.Dir(program.Shared(s.t)) // in which the program is called rollbackd
	return func(other string) (string, error) {
		cmd := exec.CommandContext(s.t.Context(), "sh", "../../deploy/examples/job/publish-cancelled.sh")
		path := dir + ":" + os.Getenv("PATH")
		if other != "" {
			path = os.Getenv("PATH")
		}
		cmd.Env = append(s.environ(), "PATH="+path, "MYSQL="+client, "MYSQL_PWD="+dsn.Passwd)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
}

// The shop that the classic consumer works in, as the literature has it.
const (
	classicGroup  = "order_cancel_group"
	classicTables = "CREATE TABLE tb_stock (goods_id BIGINT NOT NULL PRIMARY KEY, amount INT UNSIGNED NOT NULL) " +
		"ENGINE=InnoDB;" +
		"CREATE TABLE trade_mq_consumer_log (msg_id VARCHAR(50) DEFAULT NULL, group_name VARCHAR(100) NOT NULL, " +
		"msg_tag VARCHAR(100) NOT NULL, msg_key VARCHAR(100) NOT NULL, msg_body VARCHAR(500) DEFAULT NULL, " +
		"consumer_status INT(1) DEFAULT NULL, consumer_times INT(1) DEFAULT NULL, " +
		"consumer_timestamp TIMESTAMP NULL DEFAULT NULL, remark VARCHAR(500) DEFAULT NULL, " +
		"PRIMARY KEY (group_name, msg_tag, msg_key)) ENGINE=InnoDB CHARSET=utf8"
)

// classicConsumer is the classic algorithm, one message at a time: a look into the table, a row in processing, the
// stock in a transaction, the row in success, the ack.
type classicConsumer struct {
	db  *sql.DB
	sub *rabbit.Subscription
}

// classic starts one on a queue. Its stop lets it finish what it has in hand.
func (w *world) classic(queue string) (stop func()) {
	w.t.Helper()
	conn := require.Get(rabbit.Dial(w.t.Context(), rabbit.Config{URLs: []string{w.broker.URL}, Name: "classic"}))(w.t)
	c := &classicConsumer{w.db, require.Get(conn.Consume(w.t.Context(), queue, "classic", 20))(w.t)}
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- c.run(ctx) }() // joined by stop
	stop = sync.OnceFunc(func() {
		cancel()
		assert.OK(w.t, errors.Join(<-ended, c.sub.Close(), conn.Close()), "the classic consumer:")
	})
	w.t.Cleanup(stop)
	return stop
}

func (c *classicConsumer) run(ctx context.Context) error {
	for {
		got, err := c.sub.Collect(ctx, 1, 0, nil)
		if ctx.Err() != nil && len(got) == 0 {
			return nil
		}
		if err == nil {
			err = c.process(context.WithoutCancel(ctx), got[0])
		}
		if err == nil {
			err = c.sub.Ack(got[0].Tag, false)
		}
		if err != nil {
			return err
		}
	}
}

func (c *classicConsumer) process(ctx context.Context, d rabbit.Delivery) error {
	tag, key := cmp.Or(d.Type, d.RoutingKey), d.MessageID // a message that was moved back has its tag in Type
	const its = " WHERE group_name = ? AND msg_tag = ? AND msg_key = ?"
	var status int
	err := c.db.QueryRowContext(ctx, "SELECT consumer_status FROM trade_mq_consumer_log"+its, classicGroup, tag, key).
		Scan(&status)
	if errors.Is(err, sql.ErrNoRows) {
		_, err = c.db.ExecContext(ctx, "INSERT INTO trade_mq_consumer_log VALUES (?, ?, ?, ?, ?, 0, 1, UTC_TIMESTAMP(), '')",
			key, classicGroup, tag, key, string(d.Body))
	}
	if err != nil || status == 1 {
		return err
	}
	if err := c.apply(ctx, d.Body); err != nil {
		return err
	}
	_, err = c.db.ExecContext(ctx, "UPDATE trade_mq_consumer_log SET consumer_status = 1, consumer_timestamp = "+
		"UTC_TIMESTAMP()"+its+" AND consumer_status = 0", classicGroup, tag, key)
	return err
}

func (c *classicConsumer) apply(ctx context.Context, body []byte) error {
	var m struct {
		Items []struct {
			SKU      int64 `json:"sku_id"`
			Quantity int64 `json:"quantity"`
		} `json:"items"`
	}
	if err := json.Unmarshal(body, &m); err != nil {
		return fmt.Errorf("read the message: %w", err)
	}
	tx, err := c.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // after the commit it does nothing
	for _, item := range m.Items {
		if _, err := tx.ExecContext(ctx, "UPDATE tb_stock SET amount = amount + ? WHERE goods_id = ?", item.Quantity,
			item.SKU); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// classicSuccesses counts the successes of the classic table.
func (w *world) classicSuccesses() int {
	w.t.Helper()
	return w.count("SELECT COUNT(*) FROM trade_mq_consumer_log WHERE consumer_status = 1")
}
