package relay_test

import (
	"database/sql"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/outbox"
	"github.com/rollbackd/rollbackd/outbox/relay"
)

// fill makes rows that are due in an hour and later, a thousand of them at each moment, 50 ms apart.
func (w *world) fill(rows int) {
	w.Helper()
	for from := 0; from < rows; from += 1000 {
		w.exec("INSERT INTO rollbackd_outbox (msg_tag, msg_key, body, due_at) WITH RECURSIVE d AS (SELECT 0 AS n UNION ALL "+
			"SELECT n + 1 FROM d WHERE n < 9) SELECT 't', LPAD(? + a.n + 10*b.n + 100*c.n, 7, '0'), '{}', "+
			"UTC_TIMESTAMP(6) + INTERVAL 1 HOUR + INTERVAL ? * 50 MICROSECOND FROM d a, d b, d c", from, from)
	}
}

// polls measures polls. A message is put before each tenth, which must find it, and nothing else may be found. median
// is that of all but the first twenty.
func (w *world) polls(r *relay.Relay, when string, n int) (median time.Duration) {
	w.Helper()
	took := make([]time.Duration, n)
	for i := range took {
		var want []string
		if i%10 == 9 {
			want = []string{fmt.Sprint(when, i)}
			w.put(outbox.Message{Tag: "new", Key: want[0], Value: 1})
		}
		began := time.Now()
		keys, err := r.Poll(w.Context())
		took[i] = time.Since(began)
		require.OK(w, err)
		assert.Equal(w, keys, want, "%s, poll %d found", when, i)
		for _, key := range keys {
			w.exec("DELETE FROM rollbackd_outbox WHERE msg_tag = 'new' AND msg_key = ?", key)
		}
		<-time.After(10 * time.Millisecond) // the rest of a relay that is at work
	}
	late := slices.Sorted(slices.Values(took[20:]))
	at := func(percent int) time.Duration { return late[len(late)*percent/100].Round(10 * time.Microsecond) }
	w.Logf("%s: a poll takes %v, 90 %% up to %v, 99 %% up to %v; the first 20 up to %v", when, at(50), at(90), at(99),
		slices.Max(took[:20]).Round(10*time.Microsecond))
	return late[len(late)/2]
}

// Given rows that wait for later, and then are claimed and removed while a transaction is open that is older, then each
// poll finds what was put before it, what was put before all that by a transaction that commits only now is found soon,
// and a poll takes 10 ms at most. ROLLBACKD_TEST_BIG=1 makes a million of them, and prints what a poll takes.
func TestAPollIsCheapWhateverWaitsOrWasRemoved(t *testing.T) {
	w := newWorld(t)
	n := 10_000
	if os.Getenv("ROLLBACKD_TEST_BIG") != "" {
		n = 1_000_000
	}
	r := require.Get(relay.New(w.config()))(w)
	w.polls(r, "empty", 100)
	w.fill(n)
	worst := w.polls(r, fmt.Sprint("beside ", n, " that wait"), 220)

	patient, err := sql.Open("mysql", w.dsn) // whose transactions may send nothing for as long as they like
	require.OK(w, err)
	defer patient.Close()
	late := require.Get(patient.BeginTx(t.Context(), nil))(w)
	defer func() { _ = late.Rollback() }()
	require.OK(w, outbox.Put(t.Context(), late, outbox.Message{Tag: "late", Key: "late", Value: 1}))
	each := func(do string) {
		for i := 0; i < n; i += 1000 {
			w.exec(fmt.Sprintf("%s WHERE msg_tag = 't' AND msg_key BETWEEN '%07d' AND '%07d'", do, i, i+999))
		}
	}
	each("UPDATE rollbackd_outbox SET next_at = next_at - INTERVAL 2 HOUR")
	old := require.Get(patient.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead}))(w)
	defer func() { _ = old.Rollback() }()
	_, err = old.ExecContext(t.Context(), "SELECT COUNT(*) FROM rollbackd_outbox WHERE msg_tag = ''") // its snapshot
	require.OK(w, err)
	each("UPDATE rollbackd_outbox SET owner = 'x', next_at = UTC_TIMESTAMP(6) + INTERVAL 5 SECOND")
	each("DELETE FROM rollbackd_outbox")
	worst = max(worst, w.polls(r, fmt.Sprint("after ", n, " were removed"), 500))
	require.OK(w, late.Commit())
	committed := time.Now()
	for found := []string{}; !slices.Contains(found, "late"); <-time.After(10 * time.Millisecond) {
		require.That(t, time.Since(committed) <= 5*time.Minute, "what was committed late is not found within five minutes")
		found = require.Get(r.Poll(t.Context()))(w)
	}
	t.Logf("what was committed late is found after %v", time.Since(committed).Round(time.Millisecond))
	assert.That(t, worst <= 10*time.Millisecond || n <= 10_000, "a poll takes %v, want 10ms at most", worst)
}

// Given a look that took long by chance, when a transaction commits whose message was due long before it, then polls
// find that when fifty times as long as the look took is over.
func TestALateCommitIsFoundSoonAfterOneSlowLook(t *testing.T) {
	w := newWorld(t)
	r := require.Get(relay.New(w.config()))(w)
	other := require.Get(w.db.Conn(t.Context()))(w)
	defer other.Close()
	stack.Exec(t, other, "LOCK TABLES rollbackd_outbox WRITE")
	slow := make(chan error, 1)
	go func() {
		_, err := r.Poll(t.Context())
		slow <- err
	}()
	waits := func() int {
		return stack.Number(t, other, "SELECT COUNT(*) FROM information_schema.processlist "+
			"WHERE state LIKE 'Waiting for table metadata lock' AND db = DATABASE()")
	}
	poll.Until(t, "the look to wait", func() bool { return waits() > 0 })
	for began := time.Now(); time.Since(began) < 100*time.Millisecond && waits() > 0; { // so that it is dear for sure
	}
	stack.Exec(t, other, "UNLOCK TABLES")
	require.OK(w, <-slow)
	w.exec("INSERT INTO rollbackd_outbox (msg_tag, msg_key, body, due_at) " +
		"VALUES ('t', 'late', '{}', UTC_TIMESTAMP(6) - INTERVAL 1 MINUTE)")
	poll.Until(t, "the message to be found", func() bool {
		keys := require.Get(r.Poll(t.Context()))(w)
		return slices.Equal(keys, []string{"late"})
	})
}
