package browser

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// token lets into the pages.
const token = "the-token-of-the-test"

// world is a daemon on queues and a schema of its own, whose pages stand below a path as behind a proxy.
type world struct {
	t      *testing.T
	broker *stack.Broker
	db     *sql.DB
	queue  string
	at     string // the address of its pages, without a slash at its end
	sent   int
}

const basePath = "/shop/rollbackd"

func newWorld(t *testing.T, more ...string) *world {
	t.Helper()
	w := &world{t: t, broker: stack.AMQP(t)}
	exchange := w.broker.Name("stock")
	if w.queue = w.broker.Name("stock.rollback"); *pictures != "" { // on a virtual host of its own
		exchange, w.queue = "stock", "stock.rollback"
	}
	dsn := stack.MySQL(t)
	env := []string{
		"PATH=" + os.Getenv("PATH"),
		"ROLLBACKD_AMQP_URL=" + w.broker.URL, "ROLLBACKD_MYSQL_DSN=" + dsn, "ROLLBACKD_REDIS_URL=" + stack.Redis(t),
		"ROLLBACKD_QUEUE=" + w.queue, "ROLLBACKD_EXCHANGE=" + exchange, "ROLLBACKD_LOG_FORMAT=json",
		"ROLLBACKD_RETRY_DELAYS=100ms,200ms", "ROLLBACKD_MAX_ATTEMPTS=3", "ROLLBACKD_MAX_DEAD_RATE=off",
		"ROLLBACKD_HTTP_ADDR=127.0.0.1:0", "ROLLBACKD_BASE_PATH=" + basePath, "ROLLBACKD_ADMIN_TOKEN=" + token,
	}
	env = append(env, more...)
	require.Get(program.Run(t.Context(), program.Shared(t), env, "migrate"))(t)
	w.db = require.Get(require.First(dedup.Open(t.Context(), dsn, dedup.OpenOptions{}))(t).DB())(t)
	t.Cleanup(func() { _ = w.db.Close() })
	daemon := program.Serve(t, program.Options{Path: program.Shared(t), Args: []string{"run"}, Env: env})
	t.Cleanup(func() {
		stopping, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()
		code, err := daemon.Stop(stopping)
		assert.That(t, err == nil && code == 0, "the daemon ended with %d, %v", code, err)
	})
	starting, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	addr := require.Get(daemon.Addr(starting))(t)
	w.at = "http://" + addr + basePath
	return w
}

// letter is a message and why it will be dead.
type letter struct {
	key, tag, body string
	headers        map[string]any
	reason         dedup.Reason
}

// die publishes messages and waits until all of them are dead, each for its reason.
func (w *world) die(letters ...letter) {
	w.t.Helper()
	for _, l := range letters {
		w.broker.Publish("", w.queue, stack.Message{
			MessageId: l.key, Type: cmp.Or(l.tag, "stock.rollback"), Body: []byte(l.body), Headers: l.headers, DeliveryMode: 2,
		})
	}
	poll.Until(w.t, fmt.Sprintf("%d more letters are dead", len(letters)), func() bool {
		return w.count("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 3") >= w.sent+len(letters)
	})
	w.sent += len(letters)
	for _, l := range letters {
		if l.reason == dedup.ReasonConflict || l.reason == dedup.ReasonUnidentified {
			continue // under a key of its own
		}
		var got dedup.Reason
		err := w.db.QueryRowContext(w.t.Context(), "SELECT reason FROM consumer_log WHERE msg_key = ?",
			[]byte(l.key)).Scan(&got)
		require.That(w.t, err == nil && got == l.reason, "%q is dead for %q, %v; want %q", l.key, got, err, l.reason)
	}
}

// reserve makes an order that has taken its goods, as a shop's service does.
func (w *world) reserve(order string, sku, quantity int64) {
	w.t.Helper()
	w.exec("INSERT INTO stock_reservation (order_sn, sku_id, quantity, status) VALUES (?, ?, ?, 1)", []byte(order), sku,
		quantity)
}

// amount is what is on stock.
func (w *world) amount(sku int64) int {
	w.t.Helper()
	return w.count("SELECT amount FROM stock WHERE sku_id = ?", sku)
}

func (w *world) exec(query string, args ...any) {
	w.t.Helper()
	stack.Exec(w.t, w.db, query, args...)
}

func (w *world) count(query string, args ...any) int {
	w.t.Helper()
	return stack.Number(w.t, w.db, query, args...)
}

func TestMain(m *testing.M) { stack.Main(m, func() error { return closeChromium() }, program.Remove) }

// patience is how long a test waits for something that takes no time on an idle machine.
const patience = time.Minute

// chromium is the one browser of this test process, started at first use. Each test has a profile of its own in it.
var chromium = sync.OnceValues(startChromium)

// closeChromium ends it, if it was started.
var closeChromium = func() error { return nil }

// startChromium starts it with a profile in a new folder, which chromedp removes. It asks nothing of any network: what
// is not on the loopback address cannot even be looked up.
func startChromium() (context.Context, error) {
	path, err := exec.LookPath("chromium")
	if err != nil {
		return nil, fmt.Errorf("make test-browser installs it: %w", err)
	}
	home, err := os.MkdirTemp("", "rollbackd-chromium-")
	if err != nil {
		return nil, err
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], // no-sandbox is added for root, who cannot have one
		chromedp.ExecPath(path), chromedp.NoInheritEnv, chromedp.Env("HOME="+home, "PATH="+os.Getenv("PATH")),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-domain-reliability", true),
		chromedp.Flag("no-pings", true), chromedp.Flag("no-proxy-server", true),
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"),
		chromedp.WindowSize(wide, high),
	)
	all, release := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, cancel := chromedp.NewContext(all)
	closeChromium = func() error {
		ending, stop := context.WithTimeout(ctx, patience)
		defer stop()
		err := chromedp.Cancel(ending) // it closes by itself; after the time it is killed
		cancel()
		release()
		return errors.Join(err, os.RemoveAll(home))
	}
	if err := chromedp.Do(ctx); err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	return ctx, nil
}
