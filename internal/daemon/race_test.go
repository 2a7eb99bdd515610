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
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
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
	cfg := require.Get(mysql.ParseDSN(dsn))(t)
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
// its tables say then, in the words of stands. Whatever gives goods back puts an event of it into the outbox.
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
		settings:  func(*testing.T) []string { return []string{"HANDLER", "stock", "EMIT", releasedTag} },
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
			require.OK(t, os.WriteFile(file, []byte(`UPDATE tb_order SET status = 2
WHERE order_sn = :order_sn AND status = 1; -- expect 1, else done: it is paid
-- for each /items
UPDATE tb_stock SET amount = amount + :quantity WHERE goods_id = :sku_id; -- expect 1, else permanent: unknown goods
-- once
INSERT INTO rollbackd_outbox (msg_tag, msg_key, body, routing_key)
VALUES ('stock.released', :order_sn, JSON_OBJECT('order_sn', :order_sn), 'stock.released');
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

const timeoutTag, releasedTag = "order.timeout", "stock.released"

// ending is how a payment goes on that was not too late, once it has called Cancel: it is the Payment of
// docs/model/outbox.pml, which has a fourth one, rolled back before it Confirms. What that locks is a part of what
// rollsBack locks, in the same order, and it leaves the same: it has no courses of its own.
type ending string

const (
	commits   ending = "Confirm, COMMIT"
	moreTime  ending = "COMMIT" // "more time, and no payment"
	rollsBack ending = "Confirm, ROLLBACK"
)

var errRollsBack = errors.New("the payment rolls back")

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

// race is a shop whose payments, relay and daemon go through gates. No relay sees the events: their rows stay. Between
// timeouts and events the outbox has a row, a fence: a Cancel that waits for a row while a relay deletes it has locked
// the gap where that was if InnoDB has purged it before Cancel goes on, and whether a handler then waits with its event
// would be by chance.
type race struct {
	*world
	till
	placing, paying               *gorm.DB
	relaying                      *sql.DB
	payment, relay, consumer      *gate
	waits                         *regexp.Regexp // a transaction that waits for a row, in the server's status
	inTime, late, refused, undone int            // how many courses were so
	told, waited                  int
}

func newRace(t *testing.T, tl till) *race {
	r := &race{world: newWorld(t, append(tl.settings(t), "LANES", "1")...), till: tl,
		payment: &gate{words: []string{"INSERT INTO rollbackd_outbox", tl.words}},
		relay:   &gate{words: []string{"SKIP LOCKED"}}, consumer: &gate{words: []string{tl.words}, free: true}}
	dsn := r.env["MYSQL_DSN"]
	open := func(dsn string) (*gorm.DB, *sql.DB) {
		g := require.First(mysqldb.Open(t.Context(), dsn, mysqldb.Options{}))(t)
		db := require.Get(g.DB())(t)
		t.Cleanup(func() { _ = db.Close() })
		return g, db
	}
	r.placing, _ = open(dsn)
	r.paying, _ = open(r.payment.through(t, dsn))
	_, r.relaying = open(r.relay.through(t, dsn))
	require.OK(t, outbox.Migrate(t.Context(), r.placing))
	r.exec("ALTER TABLE rollbackd_outbox ALTER next_at SET DEFAULT (IF(msg_tag = '" + releasedTag + "', TIMESTAMP " +
		"'9999-12-31 00:00:00', due_at))")
	r.exec("INSERT INTO rollbackd_outbox (msg_tag, msg_key, body, next_at, parked_at) VALUES (?, 'z', '', '9999-12-31', "+
		"UTC_TIMESTAMP(6))", timeoutTag+".fence")
	for _, table := range tl.tables {
		r.exec(table)
	}
	r.waits = regexp.MustCompile("of table `" + require.Get(mysql.ParseDSN(dsn))(t).DBName + "`.* waiting")
	r.set("MYSQL_DSN", r.consumer.through(t, dsn))
	d := require.Get(daemon.New(t.Context(), r.config(), slog.New(slog.NewTextHandler(r.logs, nil)), daemon.Options{}))(t)
	r.during(d.Run)
	return r
}

func (r *race) each(do func(*gate)) { do(r.payment); do(r.relay); do(r.consumer) }

// during lets something run until stop is called, or the test ends.
func (r *race) during(run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		r.each(func(g *gate) { g.letGo(true) })
		cancel()
		assert.OK(r.t, <-ended)
	})
	r.t.Cleanup(stop)
	return stop
}

// course is one order, from when it is placed to when nothing is left to do.
type course struct {
	*race
	ends      ending
	order     string
	paid      atomic.Bool // the payment has ended
	begun     string      // the statement with which the relay's transaction began
	inHand    bool        // the relay has claimed the row, and does not settle it yet
	published bool
	inVain    bool // the relay found the row locked, and the payment that has it goes on

	ready, before []*gate // who may go on, and who might when last did
	last          *gate
	steps         []string
}

// run places an order, and lets it be paid in one of the ways while it times out. At each step choices says which of
// those that stand goes on; behind its end it is the first. among is how many there were.
func (r *race) run(goods int64, ends ending, choices []int) (among []int) {
	ctx, t := r.t.Context(), r.t
	c := &course{race: r, ends: ends, order: fmt.Sprint("order-", goods)}
	require.OK(t, r.placing.Transaction(func(tx *gorm.DB) error {
		body := fmt.Sprintf(`{"order_sn":"%s","items":[{"sku_id":%d,"quantity":2}]}`, c.order, goods)
		return errors.Join(r.place(ctx, tx, c.order, goods), outbox.Put(ctx, tx.Statement.ConnPool,
			outbox.Message{Tag: timeoutTag, Key: c.order, Body: []byte(body), Delay: time.Millisecond}))
	}))
	r.each((*gate).close)
	inTime, payErr := false, error(nil)
	go func() {
		defer c.paid.Store(true)
		payErr = r.paying.WithContext(ctx).Transaction(func(tx *gorm.DB) (err error) {
			if inTime, err = r.cancel(ctx, tx.Statement.ConnPool, timeoutTag, c.order); err != nil || ends == moreTime {
				return err
			}
			if err := r.confirm(ctx, tx, c.order); err != nil || ends == commits {
				return err
			}
			return errRollsBack
		}, &sql.TxOptions{Isolation: r.isolation})
		inTime = inTime && payErr == nil
	}()
	stop := r.during(require.Get(relay.New(relay.Config{DB: r.relaying, AMQPURLs: []string{r.broker.URL},
		Exchange: r.route.Exchange, RoutingKey: r.route.Key, Logger: slog.New(slog.NewTextHandler(r.logs, nil))}))(t).Run)
	waited := c.look()
	for ; len(c.ready) > 0; waited = c.look() || waited {
		choice := 0
		if len(among) < len(choices) {
			choice = choices[len(among)]
		}
		if among = append(among, len(c.ready)); choice >= len(c.ready) {
			t.Fatalf("%s, choices %v: of %v there were more before, after %q", ends, choices, among, c.steps)
		}
		c.goOn(c.ready[choice])
	}
	r.each(func(g *gate) { g.letGo(true) })
	c.wait("the payment has ended", c.paid.Load)
	// The lease of a row ends that was locked when the relay came to settle it.
	r.exec("UPDATE rollbackd_outbox SET next_at = UTC_TIMESTAMP(6) WHERE msg_tag = ?", timeoutTag)
	c.wait("nothing is left to do", func() bool {
		return r.count("SELECT COUNT(*) FROM rollbackd_outbox WHERE msg_tag = ?", timeoutTag) == 0 && (inTime || c.ended())
	})
	stop()
	want := back
	switch {
	case payErr == nil && ends == commits:
		want = paid
	case inTime:
		want = open
	}
	got := stack.One[string](t, r.db, r.stands, c.order)
	heard := r.count("SELECT COUNT(*) FROM consumer_log WHERE msg_key = ?", c.order) > 0
	refused, undone := errors.Is(payErr, stock.ErrReleased), errors.Is(payErr, errRollsBack)
	events, told := r.count("SELECT COUNT(*) FROM rollbackd_outbox WHERE msg_tag = ?", releasedTag), 0
	if want == back {
		told = 1
	}
	if got != want || events != told || inTime && (c.published || heard) || payErr != nil && !refused && !undone {
		t.Errorf("%s, choices %v: cancelled in time %v, the payment ended with %v, published %v, heard of %v; the shop has "+
			"%s, want %s; %d events, want %d", ends, choices, inTime, payErr, c.published, heard, got, want, events, told)
	}
	r.exec("DELETE FROM rollbackd_outbox WHERE msg_tag = ?", releasedTag)
	for n, is := range map[*int]bool{&r.inTime: inTime, &r.late: !inTime && payErr == nil, &r.refused: refused,
		&r.undone: undone, &r.told: want == back, &r.waited: waited} {
		if is {
			*n++
		}
	}
	return among
}

// look waits until everybody stands, rests, or waits for a row of another. It finds out who may go on, and reports
// whether somebody waits. Of two steps that have no row in common, where one comes right after the other, only one
// order is tried: what the relay does and what the message does; what the relay does and that the payment asks for the
// shop's row; what the message does and what the payment does in the outbox. That the handler puts its event is no step
// of its own: it waits for nobody there, or would be found waiting.
func (c *course) look() (waits bool) {
	left := "SELECT COUNT(*) FROM rollbackd_outbox WHERE msg_tag = ? AND (owner IS NULL OR next_at <= UTC_TIMESTAMP(6))"
	rests := map[*gate]func() bool{
		c.payment:  c.paid.Load,
		c.relay:    func() bool { return !c.inHand && c.count(left, timeoutTag) == 0 },
		c.consumer: func() bool { return !c.published || c.ended() },
	}
	var ready []*gate
	same := 0 // looks: a statement that has just begun and a wait that has just ended add up for a moment
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
		if waits = inside > 0; !all || inside != c.waiting() {
			same = 0
			return false
		}
		same++
		return same == 2
	})
	at, _ := c.payment.look()
	apart := map[*gate]bool{
		c.relay: c.last == c.consumer,
		c.payment: c.last == c.relay && strings.Contains(at, c.words) ||
			c.last == c.consumer && (strings.Contains(at, "INSERT") || c.ends == moreTime),
	}
	c.ready = slices.DeleteFunc(slices.Clone(ready), func(g *gate) bool {
		return apart[g] && slices.Contains(c.before, g) || g == c.relay && c.inVain && !c.paid.Load()
	})
	c.before = ready
	return waits
}

// goOn lets the statement go on that stands at a gate.
func (c *course) goOn(g *gate) {
	at, _ := g.look()
	claims := g == c.relay && !strings.Contains(c.begun, "owner = ")
	switch {
	case g == c.relay && at != "COMMIT" && at != "ROLLBACK":
		c.begun = at
	case claims && at == "COMMIT":
		c.inHand, c.published = true, true
	case claims:
		c.inVain = true
	}
	c.last, c.steps = g, append(c.steps, fmt.Sprintf("%.10s: %.25s", g.words[0], at))
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
	status := stack.RowsOf(c.t, c.db, "SHOW ENGINE INNODB STATUS")[0]["Status"]
	_, now, _ := strings.Cut(status, "\nTRANSACTIONS\n") // before it stands the last deadlock, which is over
	return len(c.waits.FindAllString(now, -1))
}

func (c *course) wait(what string, yes func() bool) {
	c.t.Helper()
	if !poll.During(c.t.Context(), time.Minute, time.Millisecond, yes) {
		c.each(func(g *gate) { at, in := g.look(); c.t.Logf("at the gate of %q stands %q, inside %v", g.words, at, in) })
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
// wait for each other, and whose payment rolls back in each of them, then a timeout that was taken back in time is
// never sent; else it is, and the goods are either given back, once, with one event of it, and the payment is refused,
// or paid for. No row of the outbox is left.
func TestAPaymentMeetsItsTimeoutAtEveryStep(t *testing.T) {
	t.Parallel()
	for name, tl := range tills {
		t.Run(name, func(t *testing.T) {
			r := newRace(t, tl)
			n := int64(0)
			for _, ends := range []ending{commits, moreTime, rollsBack} {
				for choices := []int{}; choices != nil; {
					n++
					choices = next(choices, r.run(n, ends, choices))
				}
			}
			t.Logf("%d courses: %d in time, %d late, %d refused, %d rolled back, %d told; in %d of them one waited for a row "+
				"of another", n, r.inTime, r.late, r.refused, r.undone, r.told, r.waited)
			assert.That(t, min(r.inTime, r.late, r.refused, r.undone, r.told, r.waited) != 0 && n >= 90, "some never came")
		})
	}
}
