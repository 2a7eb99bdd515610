package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Given a hundred thousand dead letters of which twelve are of one sku, when these are listed, exported, replayed and
// discarded by what is in them, then each command does it to the twelve alone and soon, and takes nothing from the
// queue; a daemon drops the stale letters later.
func TestAFewLettersAmongManyAreFoundByWhatIsInThem(t *testing.T) {
	t.Parallel()
	queued := 2000
	if os.Getenv("ROLLBACKD_TEST_BIG") != "" {
		queued = 100_000
	}
	var bodies []string
	for i := range 24 {
		bodies = append(bodies, fmt.Sprintf(`{"order_sn":"A-%02d","items":[{"sku_id":%d,"quantity":1}]}`, i, 770_001+i/12))
	}
	s := deadShop(t, bodies...)
	s.exec("CREATE TABLE digit AS SELECT 0 AS d UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 " +
		"UNION SELECT 5 UNION SELECT 6 UNION SELECT 7 UNION SELECT 8 UNION SELECT 9")
	s.exec("INSERT INTO consumer_log (group_name, msg_tag, msg_key, msg_body, properties, body_hash, consumer_status, " +
		"consumer_times, consumer_timestamp, created_at, dead_at, reason, remark) " +
		`SELECT 'stock-rollback', 'stock.rollback', CONCAT('B-', n), CONCAT('{"order_sn":"B-', n, '","items":[{"sku_id":', ` +
		`n, ',"quantity":1}],"note":"', REPEAT('-', 200), '"}'), '{}', REPEAT('#', 32), 3, 2, ` +
		"UTC_TIMESTAMP(6) - INTERVAL n SECOND, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) - INTERVAL n SECOND, 'exhausted', " +
		"'no stock' FROM (SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d AS n " +
		"FROM digit a, digit b, digit c, digit e, digit f) AS all_n")
	dead := rabbit.DeadQueue(s.queue)
	s.fill(dead, queued)
	depth := s.broker.Depth(dead)
	timed := func(args ...string) string {
		t.Helper()
		began := time.Now()
		stdout, stderr, code := runCLI(t, s.environ, "", args...)
		took := time.Since(began)
		t.Logf("%.2f s: %s", took.Seconds(), strings.Join(args, " "))
		if code != exitDone || took > 15*time.Second {
			t.Errorf("%v: exit %d after %v, %s", args, code, took, stderr)
		}
		return stdout
	}
	var listed []deadletter.Letter
	if err := json.Unmarshal([]byte(timed("dlq", "list", "--sku", "770001", "-o", "json")), &listed); err != nil ||
		len(listed) != 12 {
		t.Errorf("%d letters are listed, %v", len(listed), err)
	}
	assert.Is(t, strings.Count(timed("dlq", "export", "--sku", "770001"), "\n"), 12, "letters are exported")
	for _, do := range []struct {
		args []string
		want deadletter.Result
	}{
		{[]string{"replay", "--sku", "770001", "--dry-run"}, deadletter.Result{Replayed: 12}},
		{[]string{"replay", "--sku", "770001", "--limit", "2"}, deadletter.Result{Replayed: 2}},
		{[]string{"replay", "--order", "A-11"}, deadletter.Result{Replayed: 1}},
		{[]string{"discard", "--body", `"sku_id":770002`, "--why", "gone"}, deadletter.Result{Discarded: 12}},
	} {
		var got deadletter.Result
		text := timed(append([]string{"dlq"}, append(do.args, "-o", "json")...)...)
		if err := json.Unmarshal([]byte(text), &got); err != nil ||
			got.Replayed != do.want.Replayed || got.Discarded != do.want.Discarded || len(got.Left) > 0 {
			t.Errorf("%v: %v, %+v", do.args, err, got)
		}
	}
	first, _ := s.broker.Get(dead) // which acks it
	before, _ := first.Headers["x-delivery-count"].(int64)
	if before != 0 || first.Redelivered || s.broker.Depth(dead) != depth-1 {
		t.Errorf("the queue was read: %d letters of %d, the first with %v", s.broker.Depth(dead), depth, first.Headers)
	}
	s.environ = append(s.environ, "ROLLBACKD_HTTP_ADDR="+stack.FreeAddr(t))
	stop := s.daemon()
	s.eventually(3, "SELECT COUNT(*) FROM consumer_log_act WHERE work = 0 AND state = 'done'")
	s.eventually(100_000+9+3, "SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 3")
	stop()
}

// fill publishes letters of the rows B-N to the dead-letter queue.
func (s *shell) fill(queue string, n int) {
	s.t.Helper()
	p := rabbit.NewPublisher(rabbit.Config{URLs: []string{s.broker.URL}, Name: "test"})
	defer func() { _ = p.Close(s.t.Context()) }()
	for from := 0; from < n; from += 5000 {
		var batch []rabbit.Publishing
		for i := from; i < min(n, from+5000); i++ {
			batch = append(batch, rabbit.Publishing{Key: queue, Message: rabbit.Message{
				Type: "stock.rollback", MessageID: fmt.Sprint("B-", i), Body: []byte(`{}`),
			}})
		}
		for _, err := range p.Publish(s.t.Context(), batch) {
			if err != nil {
				s.t.Fatal(err)
			}
		}
	}
}
