package daemon_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// twoQueues is a world whose daemons have a second queue, points, with a log, a group and a handler of its own.
// `migrate` has made both.
func twoQueues(t *testing.T, pairs ...string) (w *world, points string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "points.sql")
	require.OK(t, os.WriteFile(file, []byte("INSERT INTO points (account) VALUES (:account);"), 0o600))
	w = emptyWorld(t, append([]string{
		"QUEUES", "stock,points", "POINTS__GROUP", "points", "POINTS__LOG_TABLE", "points_log", "POINTS__HANDLER", "sql",
		"POINTS__SQL_FILE", file, "POINTS__ROUTING_KEYS", "points.refund",
		"POINTS__QUEUE", stack.AMQP(t).Name("points.refund"),
	}, pairs...)...)
	points = w.env["POINTS__QUEUE"]
	w.broker.Track(w.config().All()[1].TopologyConfig().Queues()...)
	w.exits(w.command("migrate"), 0, time.Minute)
	require.OK(t, oracle.Audit(t.Context(), w.db))
	w.exec("CREATE TABLE points (account VARCHAR(40) NOT NULL) ENGINE=InnoDB")
	return w, points
}

// refund publishes messages for the second queue.
func (w *world) refund(n int) {
	for i := range n {
		w.broker.Publish(w.route.Exchange, "points.refund", stack.Message{
			MessageId: fmt.Sprint("account ", i), Body: fmt.Appendf(nil, `{"account":"a%d"}`, i), DeliveryMode: 2,
		})
	}
}

func (w *world) refunded() int { return w.count("SELECT COUNT(*) FROM points") }

// Given a daemon of two queues, each with a handler, a group and a log of its own, when the table of one handler is
// taken away, then the other queue is consumed as ever, /readyz says whose queue waits; and when the table is back, its
// messages are applied.
func TestATableThatIsMissingStopsItsQueueAlone(t *testing.T) {
	t.Parallel()
	w, points := twoQueues(t)
	orders := w.open(50)
	daemon := w.start()
	w.ready(daemon)
	w.exec("RENAME TABLE points TO elsewhere")
	w.refund(10)
	w.eventually("/readyz names the queue that waits", func() bool {
		_, said := w.readyz(daemon)
		return slices.ContainsFunc(slices.Concat(said.Waiting, said.Degraded), func(why string) bool {
			return strings.HasPrefix(why, "mysql of "+points+": ")
		}) || !said.Ready && len(said.Queues) == 2 && !said.Queues[1].Ready && said.Queues[0].Ready
	})
	w.publish(w.route.Rollbacks(orders)...)
	w.eventually("the other queue is consumed", func() bool { return w.rows(dedup.Success) == 50 })
	w.exec("RENAME TABLE elsewhere TO points")
	w.eventually("the points are back", func() bool { return w.refunded() == 10 })
	is(w, "rows of the second log", w.count("SELECT COUNT(*) FROM points_log WHERE group_name = 'points'"), 10)
	_, said := w.readyz(daemon)
	if len(said.Queues) != 2 || said.Queues[0].Queue != w.env["QUEUE"] || said.Queues[1].Queue != points ||
		said.Queues[1].Group != "points" {
		t.Errorf("/readyz says %+v, want both queues", said)
	}
	w.ended(50)
	w.rest(daemon)
}
