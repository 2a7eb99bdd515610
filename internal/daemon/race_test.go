package daemon_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/daemon"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/outbox"
	"github.com/rollbackd/rollbackd/outbox/relay"
	"github.com/rollbackd/rollbackd/stock"
)

// gate stands before the database of one side of a race. It stops a transaction at each statement that has one of the
// words in it, and from then on at its COMMIT or ROLLBACK, until it is let go.
type gate struct {
	words []string

	mu     sync.Mutex
	free   bool          // nothing is stopped
	at     string        // the statement that stands here
	goOn   chan struct{} // closed when it is let go
	inside bool          // it was let go, and neither stands at the next one nor was its end answered
}

// gated is a connection through a gate. The driver sends each command in one piece.
type gated struct {
	*net.TCPConn
	*gate
	open, ending bool // a transaction that was stopped; that sends its end
}

// Write is a net.Conn's.
func (c *gated) Write(b []byte) (int, error) {
	const header, query = 4, 3 // bytes before a command; that of a statement which is executed, not prepared
	if len(b) <= header || b[header] != query {
		return c.TCPConn.Write(b)
	}
	text := string(b[header+1:])
	begins := slices.ContainsFunc(c.words, func(word string) bool { return strings.Contains(text, word) })
	ends := c.open && (text == "COMMIT" || text == "ROLLBACK")
	if begins || ends {
		c.stand(text)
		c.open, c.ending = begins, ends
	}
	return c.TCPConn.Write(b)
}

// Read is a net.Conn's.
func (c *gated) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	if c.ending {
		c.ending = false
		c.mu.Lock()
		c.inside = false
		c.mu.Unlock()
	}
	return n, err
}

func (g *gate) stand(text string) {
	g.mu.Lock()
	goOn := make(chan struct{})
	if !g.free {
		g.at, g.goOn, g.inside = text, goOn, false
	} else {
		close(goOn)
	}
	g.mu.Unlock()
	<-goOn
}

// letGo lets go what stands here, and if free is set whatever will come.
func (g *gate) letGo(free bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.free = free; g.at != "" {
		g.at, g.inside = "", true
		close(g.goOn)
	}
}

// close lets nothing through any more.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.free, g.inside = false, false
}

func (g *gate) look() (at string, inside bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.at, g.inside
}

// through is the DSN of connections that go through the gate.
func (g *gate) through(t *testing.T, dsn string) string {
	cfg := must(mysql.ParseDSN(dsn))(t)
	cfg.Net = fmt.Sprintf("%p", g)
	mysql.RegisterDialContext(cfg.Net, func(ctx context.Context, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		return &gated{TCPConn: conn.(*net.TCPConn), gate: g}, nil
	})
	t.Cleanup(func() { mysql.DeregisterDialContext(cfg.Net) })
	return cfg.FormatDSN()
}

// till is what a shop does about an order of two pieces, of goods that have the same number and ten pieces, and what
// its tables say then, in the words of stands.
type till struct {
	settings  func(t *testing.T) []string
	tables    []string
	isolation sql.IsolationLevel // of its payments
	place     func(ctx context.Context, tx *gorm.DB, order string, goods int64) error
	cancel    func(ctx context.Context, tx outbox.Tx, tag, key string) (inTime bool, err error)
	confirm   func(ctx context.Context, tx *gorm.DB, order string) error
	stands    string // how many pieces there are, and the order's status, as one text
	words     string // of the statement that decides between payment and timeout
}

const open, back, paid = "8/1", "10/2", "8/3"

var tills = map[string]till{
	"stock": {
		settings:  func(*testing.T) []string { return []string{"HANDLER", "stock"} },
		isolation: sql.LevelReadCommitted,
		place: func(ctx context.Context, tx *gorm.DB, order string, goods int64) error {
			return errors.Join(tx.Exec("INSERT INTO stock VALUES (?, 10, 0)", goods).Error,
				stock.Reserve(ctx, tx, order, []stock.Item{{SKU: goods, Quantity: 2}}))
		},
		cancel:  outbox.Cancel,
		confirm: stock.Confirm,
		stands:  "SELECT CONCAT(amount, '/', status) FROM stock JOIN stock_reservation USING (sku_id) WHERE order_sn = ?",
		words:   "FROM stock_reservation",
	},
	"SQL files": {
		settings: func(t *testing.T) []string {
			file := filepath.Join(t.TempDir(), "handler.sql")
			ok(t, os.WriteFile(file, []byte(`UPDATE tb_order SET status = 2
WHERE order_sn = :order_sn AND status = 1; -- expect 1, else done: it is paid
-- for each /items
UPDATE tb_stock SET amount = amount + :quantity WHERE goods_id = :sku_id; -- expect 1, else permanent: unknown goods
`), 0o600))
			return []string{"HANDLER", "sql", "SQL_FILE", file}
		},
		tables: []string{
			"CREATE TABLE tb_order (order_sn VARCHAR(64) PRIMARY KEY, goods_id BIGINT, status TINYINT) ENGINE=InnoDB",
			"CREATE TABLE tb_stock (goods_id BIGINT PRIMARY KEY, amount INT UNSIGNED) ENGINE=InnoDB",
		},
		isolation: sql.LevelRepeatableRead,
		place: func(ctx context.Context, tx *gorm.DB, order string, goods int64) error {
			return errors.Join(tx.Exec("INSERT INTO tb_stock VALUES (?, 8)", goods).Error,
				tx.Exec("INSERT INTO tb_order VALUES (?, ?, 1)", order, goods).Error)
		},
		cancel: documentedCancel,
		confirm: func(ctx context.Context, tx *gorm.DB, order string) error {
			res := tx.Exec("UPDATE tb_order SET status = 3 WHERE order_sn = ? AND status = 1", order)
			if res.Error == nil && res.RowsAffected == 0 {
				return stock.ErrReleased
			}
			return res.Error
		},
		stands: "SELECT CONCAT(amount, '/', status) FROM tb_stock JOIN tb_order USING (goods_id) WHERE order_sn = ?",
		words:  "UPDATE tb_order",
	},
}

const timeoutTag = "order.timeout"

// documentedCancel is what docs/outbox.md has programs do in other languages.
func documentedCancel(ctx context.Context, tx outbox.Tx, tag, key string) (inTime bool, err error) {
	page, err := os.ReadFile("../../docs/outbox.md")
	if err != nil {
		return false, err
	}
	_, text, _ := strings.Cut(string(page), "```sql\nINSERT INTO rollbackd_outbox (msg_tag, msg_key, body, owner")
	text, _, _ = strings.Cut("INSERT INTO rollbackd_outbox (msg_tag, msg_key, body, owner"+text, ";\n```")
	statements := strings.Split(strings.NewReplacer("20261121-0001", key, timeoutTag, tag).Replace(text), ";\n")
	if len(statements) != 3 {
		return false, fmt.Errorf("the page has %q", statements)
	}
	for _, statement := range statements {
		res, err := tx.ExecContext(ctx, statement)
		if err != nil {
			return false, err
		}
		if n, err := res.RowsAffected(); err != nil || n > 0 && strings.HasSuffix(statement, "owner IS NULL") {
			return true, err
		}
	}
	return false, nil
}

// race is a shop whose payments, relay and daemon go through gates.
type race struct {
	*world
	till
	placing, paying               *gorm.DB
	relaying                      *sql.DB
	payment, relay, consumer      *gate
	waits                         *regexp.Regexp // a transaction that waits for a row, in the server's status
	inTime, late, refused, waited int            // how many courses were so
}

func newRace(t *testing.T, tl till) *race {
	r := &race{
		world: newWorld(t, append(tl.settings(t), "LANES", "1")...), till: tl,
		payment:  &gate{words: []string{"INSERT INTO rollbackd_outbox", tl.words}},
		relay:    &gate{words: []string{"SKIP LOCKED"}},
		consumer: &gate{words: []string{tl.words}, free: true},
	}
	dsn := r.env["MYSQL_DSN"]
	open := func(dsn string) (*gorm.DB, *sql.DB) {
		g, _, err := mysqldb.Open(t.Context(), dsn, mysqldb.Options{})
		ok(t, err)
		db := must(g.DB())(t)
		t.Cleanup(func() { _ = db.Close() })
		return g, db
	}
	r.placing, _ = open(dsn)
	r.paying, _ = open(r.payment.through(t, dsn))
	_, r.relaying = open(r.relay.through(t, dsn))
	ok(t, outbox.Migrate(t.Context(), r.placing))
	for _, table := range tl.tables {
		r.exec(table)
	}
	r.waits = regexp.MustCompile("of table `" + must(mysql.ParseDSN(dsn))(t).DBName + "`.* waiting")
	r.set("MYSQL_DSN", r.consumer.through(t, dsn))
	d := must(daemon.New(t.Context(), r.config(), slog.New(slog.NewTextHandler(r.logs, nil)), daemon.Options{}))(t)
	r.during(d.Run)
	t.Cleanup(func() { r.each(func(g *gate) { g.letGo(true) }) })
	return r
}

func (r *race) each(do func(*gate)) { do(r.payment); do(r.relay); do(r.consumer) }

// during lets something run until stop is called, or the test ends.
func (r *race) during(run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			r.t.Error(err)
		}
	})
	r.t.Cleanup(stop)
	return stop
}

// course is one order, from when it is placed to when nothing is left to do.
type course struct {
	*race
	order     string
	paid      atomic.Bool // the payment has ended
	begun     string      // the statement with which the relay's transaction began
	inHand    bool        // the relay has claimed the row, and does not settle it yet
	published bool
	inVain    bool // the relay found the row locked, and nothing has changed since
}

// run places an order, and lets it be paid, or only its timeout be taken back, while it times out. At each step choices
// says which of those that stand goes on; behind its end it is the first. among is how many there were.
func (r *race) run(goods int64, pays bool, choices []int) (among []int) {
	ctx, t := r.t.Context(), r.t
	c := &course{race: r, order: fmt.Sprint("order-", goods)}
	ok(t, r.placing.Transaction(func(tx *gorm.DB) error {
		body := fmt.Sprintf(`{"order_sn":"%s","items":[{"sku_id":%d,"quantity":2}]}`, c.order, goods)
		return errors.Join(r.place(ctx, tx, c.order, goods), outbox.Put(ctx, tx.Statement.ConnPool,
			outbox.Message{Tag: timeoutTag, Key: c.order, Body: []byte(body), Delay: time.Millisecond}))
	}))
	r.each((*gate).close)
	inTime, payErr := false, error(nil)
	go func() {
		defer c.paid.Store(true)
		payErr = r.paying.WithContext(ctx).Transaction(func(tx *gorm.DB) (err error) {
			if inTime, err = r.cancel(ctx, tx.Statement.ConnPool, timeoutTag, c.order); err != nil || !pays {
				return err
			}
			return r.confirm(ctx, tx, c.order)
		}, &sql.TxOptions{Isolation: r.isolation})
	}()
	stop := r.during(must(relay.New(relay.Config{DB: r.relaying, AMQPURLs: []string{r.broker.URL},
		Exchange: r.route.Exchange, RoutingKey: r.route.Key, Logger: slog.New(slog.NewTextHandler(r.logs, nil))}))(t).Run)
	var last *gate
	waited := false
	for {
		ready, waits := c.ready(last)
		waited = waited || waits
		if len(ready) == 0 {
			break
		}
		choice := 0
		if len(among) < len(choices) {
			choice = choices[len(among)]
		}
		among = append(among, len(ready))
		last = ready[choice]
		c.goOn(last)
	}
	r.each(func(g *gate) { g.letGo(true) })
	c.wait("the payment has ended", c.paid.Load)
	// The lease of a row ends that was locked when the relay came to settle it.
	r.exec("UPDATE rollbackd_outbox SET next_at = UTC_TIMESTAMP(6)")
	c.wait("nothing is left to do", func() bool {
		return r.count("SELECT COUNT(*) FROM rollbackd_outbox") == 0 && (inTime || c.ended())
	})
	stop()
	want := back
	switch {
	case inTime && pays, !inTime && payErr == nil && pays:
		want = paid
	case inTime:
		want = open
	}
	var got string
	ok(t, r.db.QueryRowContext(ctx, r.stands, c.order).Scan(&got))
	heard := r.count("SELECT COUNT(*) FROM consumer_log WHERE msg_key = ?", c.order) > 0
	refused := errors.Is(payErr, stock.ErrReleased)
	if got != want || inTime && (c.published || heard || refused) || payErr != nil && !refused {
		t.Errorf("choices %v: cancelled in time %v, the payment ended with %v, published %v, heard of %v; the shop has %s, "+
			"want %s", choices, inTime, payErr, c.published, heard, got, want)
	}
	for n, is := range map[*int]bool{&r.inTime: inTime, &r.late: !inTime && payErr == nil, &r.refused: payErr != nil,
		&r.waited: waited} {
		if is {
			*n++
		}
	}
	return among
}

// ready waits until everybody stands, rests, or waits for a row of another, and says who may go on, and whether
// somebody waits. What settles a row and what the message does have no row in common: where one comes right after the
// other, only one order is tried.
func (c *course) ready(last *gate) (ready []*gate, waits bool) {
	left := "SELECT COUNT(*) FROM rollbackd_outbox WHERE owner IS NULL OR next_at <= UTC_TIMESTAMP(6)"
	rests := map[*gate]func() bool{
		c.payment:  c.paid.Load,
		c.relay:    func() bool { return !c.inHand && c.count(left) == 0 },
		c.consumer: func() bool { return !c.published || c.ended() },
	}
	c.wait("everybody stands, rests or waits", func() bool {
		inside, all := 0, true
		ready = nil
		c.each(func(g *gate) {
			at, in := g.look()
			switch {
			case at != "":
				ready = append(ready, g)
				c.inHand = c.inHand && g != c.relay
			case in:
				inside++
			default:
				all = all && rests[g]()
			}
		})
		waits = inside > 0
		return all && inside == c.waiting()
	})
	return slices.DeleteFunc(ready, func(g *gate) bool {
		return g == c.relay && (c.inVain && !c.paid.Load() || last == c.consumer && len(ready) > 1)
	}), waits
}

// goOn lets the statement go on that stands at a gate.
func (c *course) goOn(g *gate) {
	at, _ := g.look()
	claims := g == c.relay && !strings.Contains(c.begun, "owner = ")
	switch {
	case g == c.payment:
		c.inVain = false
	case g == c.relay && at != "COMMIT" && at != "ROLLBACK":
		c.begun = at
	case claims && at == "COMMIT":
		c.inHand, c.published = true, true
	case claims:
		c.inVain = true
	}
	g.letGo(false)
}

// ended reports whether the daemon has nothing to do for the message any more.
func (c *course) ended() bool {
	return c.count("SELECT COUNT(*) FROM consumer_log WHERE msg_key = ? AND consumer_status IN (?, ?)", c.order,
		int(dedup.Success), int(dedup.Dead)) == 1
}

// waiting is how many transactions of this test wait for a row, by the one report that the servers do not keep for
// others that ask soon after.
func (c *course) waiting() int {
	var kind, name, status string
	ok(c.t, c.db.QueryRowContext(c.t.Context(), "SHOW ENGINE INNODB STATUS").Scan(&kind, &name, &status))
	return len(c.waits.FindAllString(status, -1))
}

func (c *course) wait(what string, yes func() bool) {
	c.t.Helper()
	if !poll.During(c.t.Context(), time.Minute, time.Millisecond, yes) {
		c.each(func(g *gate) {
			at, in := g.look()
			c.t.Logf("at the gate of %q stands %q, inside %v", g.words, at, in)
		})
		c.t.Fatalf("%s, after a minute: still not %s; waiting %d, in hand %v, published %v", c.order, what, c.waiting(),
			c.inHand, c.published)
	}
}

// next are the choices after these, in depth first order; nil: there are none.
func next(choices, among []int) []int {
	all := make([]int, len(among))
	copy(all, choices)
	for i := len(all) - 1; i >= 0; i-- {
		if all[i]++; all[i] < among[i] {
			return all[:i+1]
		}
	}
	return nil
}

// Given an order whose payment, or whose Cancel alone, meets its timeout, in every order of the statements that can
// wait for each other, then a timeout that was taken back in time is never sent; else it is, and the goods are either
// given back, once, and the payment is refused, or paid for. No row of the outbox is left.
func TestAPaymentMeetsItsTimeoutAtEveryStep(t *testing.T) {
	t.Parallel()
	for name, tl := range tills {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRace(t, tl)
			n := int64(0)
			for _, pays := range []bool{true, false} {
				for choices := []int{}; choices != nil; {
					n++
					choices = next(choices, r.run(n, pays, choices))
				}
			}
			t.Logf("%d courses: %d in time, %d late, %d refused; in %d of them one waited for a row of another", n, r.inTime,
				r.late, r.refused, r.waited)
			if min(r.inTime, r.late, r.refused, r.waited) == 0 || n < 60 {
				t.Error("some of these never came")
			}
		})
	}
}
