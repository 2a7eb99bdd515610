package relay_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/rights"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/outbox"
	"github.com/rollbackd/rollbackd/outbox/relay"
)

// open opens a pool under another DSN.
func (w *world) open(dsn string) *sql.DB {
	w.Helper()
	g := require.First(mysqldb.Open(w.Context(), dsn, mysqldb.Options{}))(w)
	db := require.Get(g.DB())(w)
	w.Cleanup(func() { _ = db.Close() })
	return db
}

// tryPut puts one message, in a transaction of its own.
func (w *world) tryPut(m outbox.Message) error {
	tx, err := w.db.BeginTx(w.Context(), nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	if err := outbox.Put(w.Context(), tx, m); err != nil {
		return err
	}
	return tx.Commit()
}

// sent is what the queue holds, as key=body, with how often it came.
func (w *world) sent() map[string]int {
	w.Helper()
	came := map[string]int{}
	for _, d := range w.broker.GetAll(w.queue) {
		came[d.MessageId+"="+string(d.Body)]++
	}
	return came
}

// Given producers that put the same few keys again and again, with a new body as soon as the outbox takes it, while two
// relays send and delete them, then every body that was committed arrives.
func TestEveryBodyThatIsPutUnderAKeyArrives(t *testing.T) {
	w := newWorld(t)
	cfg := w.config()
	cfg.Lease = 3 * time.Second // a Put that meets the relay's DELETE has its row passed by until the lease ends
	for range 2 {
		w.relay(cfg)
	}
	const keys, bodies = 4, 25
	var producers sync.WaitGroup
	for key := range keys {
		producers.Go(func() {
			for body := range bodies {
				m := outbox.Message{Tag: "t", Key: fmt.Sprint("k", key), Body: []byte(fmt.Sprint(body))}
				assert.That(t, poll.Within(time.Minute, func() bool {
					err := w.tryPut(m)
					assert.That(t, err == nil || errors.Is(err, outbox.ErrConflict), "put: %v", err)
					return err == nil
				}), "%s=%s was not taken within a minute", m.Key, m.Body)
			}
		})
	}
	producers.Wait()
	poll.Until(t, "an empty outbox", func() bool { return w.count("TRUE") == 0 })
	assert.Is(t, len(w.sent()), keys*bodies, "bodies came")
}

// gate lets a client's bytes wait in a proxy from the first piece on with the last of these words, once the others were
// said, until it is opened.
type gate struct {
	reached <-chan struct{}
	opened  chan struct{}
}

func newGate(wire *stack.TCPProxy, words ...string) gate {
	opened := make(chan struct{})
	return gate{wire.HoldRequest(func(piece []byte) bool {
		if bytes.Contains(piece, []byte(words[0])) {
			words = words[1:]
		}
		return len(words) == 0
	}, opened), opened}
}

func (w *world) await(what string, happened <-chan struct{}) {
	w.Helper()
	select {
	case <-happened:
	case <-time.After(time.Minute):
		w.Fatalf("still not after a minute: %s", what)
	}
}

// Given a message that a relay has under way, when its key is put once more, then with the same body nothing is to be
// done, and another body is a conflict until the row is gone.
func TestAKeyIsTakenWhileItsMessageIsUnderWay(t *testing.T) {
	w := newWorld(t)
	wire := stack.Proxy(t, stack.Addr(t, w.broker.URL))
	cfg := w.config()
	cfg.AMQPURLs = []string{wire.Through(w.broker.URL)}
	under := newGate(wire, "the first body")
	w.put(outbox.Message{Tag: "t", Key: "k", Body: []byte("the first body")})
	w.relay(cfg)
	w.await("the message to be under way", under.reached)
	again := w.tryPut(outbox.Message{Tag: "t", Key: "k", Body: []byte("the first body")})
	other := w.tryPut(outbox.Message{Tag: "t", Key: "k", Body: []byte("another")})
	close(under.opened)
	assert.That(t, again == nil && errors.Is(other, outbox.ErrConflict), "the same body: %v; another one: %v", again,
		other)
	poll.Until(t, "an empty outbox", func() bool { return w.count("TRUE") == 0 })
	w.must(w.tryPut(outbox.Message{Tag: "t", Key: "k", Body: []byte("another")}))
	poll.Until(t, "an empty outbox", func() bool { return w.count("TRUE") == 0 })
	came := w.sent()
	assert.That(t, len(came) == 2 && came["k=the first body"] == 1 && came["k=another"] == 1, "%v came", came)
}

// Given a relay that has deleted a row and is about to commit that, when the key is put again, with the same body or
// another one, then Put waits for the commit, and what it puts is a message of its own, which is sent.
func TestAKeyThatIsPutWhileItsRowIsDeletedIsANewMessage(t *testing.T) {
	for _, body := range []string{"the first body", "another"} {
		t.Run(body, func(t *testing.T) {
			w := newWorld(t)
			wire := stack.Proxy(t, stack.Addr(t, w.dsn))
			cfg := w.config()
			cfg.DB = w.open(wire.Through(w.dsn))
			deleted := newGate(wire, "DELETE o FROM", "COMMIT")
			w.put(outbox.Message{Tag: "t", Key: "k", Body: []byte("the first body")})
			w.relay(cfg)
			w.await("the row to be deleted", deleted.reached)

			tx := require.Get(w.db.BeginTx(t.Context(), nil))(w)
			defer func() { _ = tx.Rollback() }() // after a commit it does nothing
			var conn int64
			w.must(tx.QueryRowContext(t.Context(), "SELECT CONNECTION_ID()").Scan(&conn))
			put := make(chan error, 1)
			go func() {
				put <- outbox.Put(t.Context(), tx, outbox.Message{Tag: "t", Key: "k", Body: []byte(body)})
			}()
			waits := poll.Within(3*time.Second, func() (waits bool) { // less than Put waits for a lock
				return w.db.QueryRowContext(t.Context(), "SELECT waits FROM "+stack.Transactions+" WHERE conn = ?", conn).
					Scan(&waits) == nil && waits
			})
			close(deleted.opened)
			err := <-put
			require.That(t, err == nil && waits, "put: %v, it had waited for the relay: %v", err, waits)
			w.must(tx.Commit())
			poll.Until(t, "an empty outbox", func() bool { return w.count("TRUE") == 0 })
			came := w.sent()
			assert.That(t, (body != "the first body" || came["k="+body] == 2) && came["k=the first body"] != 0 &&
				came["k="+body] != 0, "%v came", came)
		})
	}
}

// told is what relays write to their log.
type told struct {
	mu    sync.Mutex
	lines []string // guarded by mu
}

// Write takes a line.
func (l *told) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, string(p))
	return len(p), nil
}

// times is how often each message of a level was written.
func (l *told) times(level slog.Level) map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[string]int{}
	for _, line := range l.lines {
		var said struct{ Level, Msg string }
		if json.Unmarshal([]byte(line), &said) == nil && said.Level == level.String() {
			all[said.Msg]++
		}
	}
	return all
}

// Given messages under way, when the producer's MySQL is killed and comes back, or takes no writes for a while as a
// primary does that is demoted, then the relay goes on by itself, all that was committed arrives, and the log says once
// what is away.
func TestTheProducersMySQLFailsOver(t *testing.T) {
	for name, fault := range map[string]struct {
		begin, end func(w *world, server *stack.Server)
	}{
		"killed": {
			func(_ *world, server *stack.Server) { _ = server.Kill() },  // has failed the test already
			func(_ *world, server *stack.Server) { _ = server.Start() }, // likewise
		},
		"read-only": {
			func(w *world, _ *stack.Server) { w.exec("SET GLOBAL read_only = 1") },
			func(w *world, _ *stack.Server) { w.exec("SET GLOBAL read_only = 0") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := stack.OwnMySQL(t)
			w := newWorldIn(t, stack.AMQP(t), server.Database(t))
			var grants []string // of an account that a server that is read-only refuses
			for _, r := range rights.MySQL(rights.Names{Outbox: true}, rights.Relay) {
				grants = append(grants, r.Privilege+" ON "+r.Table)
			}
			var log told
			cfg := w.config()
			cfg.DB, cfg.Lease = w.open(stack.Restricted(t, w.dsn, grants...)), 6*time.Second
			cfg.Logger = slog.New(slog.NewJSONHandler(&log, nil))
			r, stop := w.start(cfg)
			const batches, each = 40, 25
			for i := range batches {
				if i == batches/2 {
					poll.Until(t, "the first to be sent", func() bool { return w.count("TRUE") < each*batches/4 })
					w.put(messages("under way", 1000)...)
					fault.begin(w, server)
					w.misses(r, "mysql: ")
					fault.end(w, server)
				}
				w.put(messages(fmt.Sprint("m", i), each)...)
			}
			poll.Until(t, "an empty outbox", func() bool { return w.count("TRUE") == 0 })
			w.misses(r, "")
			w.must(stop())
			assert.Is(t, len(w.sent()), batches*each+1000, "messages came")
			said := log.times(slog.LevelError)
			for what, times := range said {
				if times != 1 && !strings.HasPrefix(what, "RabbitMQ") { // which a busy machine makes wait for a confirm
					t.Errorf("the log says %d times: %s", times, what)
				}
			}
			assert.That(t, len(said) != 0, "the log says nothing of it")
		})
	}
}

// Given a table that a newer release has changed in a way that this one can live with, then relay and Put work as
// before; and one that this release cannot use is said with what to do.
func TestATableOfAnotherReleaseIsUsedOrRefusedInWords(t *testing.T) {
	const newer = "INSERT INTO rollbackd_schema (set_name, version, applied_at, oldest) VALUES " +
		"('outbox', 2, UTC_TIMESTAMP(6), "
	for name, c := range map[string]struct {
		change []string
		words  []string // empty: it works
	}{
		"a column more, that may be NULL": {
			[]string{"ALTER TABLE rollbackd_outbox ADD COLUMN more INT NULL FIRST", newer + "1)"}, nil,
		},
		"a column more, with a default": {
			[]string{"ALTER TABLE rollbackd_outbox ADD COLUMN more INT NOT NULL DEFAULT 7 AFTER msg_key", newer + "1)"}, nil,
		},
		"a step that this release cannot live with": {
			[]string{newer + "2)"}, []string{"install a newer rollbackd"},
		},
		"a step less": {
			[]string{"DELETE FROM rollbackd_schema"}, []string{"rollbackd migrate --outbox", "0001_outbox.sql is not applied"},
		},
		"a column less": {
			[]string{"ALTER TABLE rollbackd_outbox DROP COLUMN failed_at"}, []string{"rollbackd migrate --outbox", "failed_at"},
		},
		"no table": {
			[]string{"DROP TABLE rollbackd_outbox"}, []string{"rollbackd migrate --outbox", "rollbackd_outbox"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			change := func() {
				for _, statement := range c.change {
					w.exec(statement)
				}
			}
			if len(c.words) == 0 {
				stop := w.relay(w.config())
				change()
				for i, prefix := range []string{"before", "after"} { // when the relay was started
					w.put(messages(prefix, 10)...)
					w.put(outbox.Message{Tag: "t", Key: prefix, RoutingKey: "nowhere"})
					poll.Until(t, "the others to be sent", func() bool {
						return w.count("msg_tag <> 't'") == 0 && w.count("reason IS NOT NULL") == i+1
					})
					stop()
					stop = w.relay(w.config())
				}
				assert.Is(t, w.broker.Depth(w.queue), 20, "messages came")
				return
			}
			change()
			r := require.Get(relay.New(w.config()))(w)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err := r.Run(ctx)
			require.That(t, errors.Is(err, outbox.ErrSchema), "the relay says %v", err)
			for _, words := range c.words {
				assert.Has(t, err.Error(), words, "the relay says %q", err)
			}
		})
	}
}
