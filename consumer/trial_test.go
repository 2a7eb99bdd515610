package consumer_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// Each return of a message costs it one of the main queue's delivery limit. An outage of a night must not use that up.
func TestALongOutageChargesDeliveriesToAFewMessagesOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.Lanes, w.cfg.BatchSize, w.cfg.GiveBackAfter = 4, 15, 100*time.Millisecond
	var mu sync.Mutex
	counts := map[string]int64{}
	handle := w.handler
	w.handler = consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
		err := handle.Handle(ctx, tx, msgs)
		mu.Lock()
		defer mu.Unlock()
		for _, m := range msgs {
			counts[m.Key], _ = rabbit.Int(m.Headers["x-delivery-count"])
		}
		return err
	})
	all := keys("order", 60)
	w.publish("{}", all...)
	// given a table that is missing, although MySQL and the log are well, for longer than the deliveries are kept
	w.exec("RENAME TABLE effect TO gone")
	r := w.start()
	w.eventually("they were given back five times", func() bool {
		return strings.Count(w.logs.String(), `msg="deliveries given back"`) >= 5
	})
	w.exec("RENAME TABLE gone TO effect")
	w.ended(dedup.Success, all...)
	w.recovered(r)
	w.want("effects", w.effects(), once(all...))
	mu.Lock()
	defer mu.Unlock()
	often := 0
	for _, n := range counts {
		if n > 2 {
			often++
		}
	}
	if often > 2*w.cfg.Lanes { // the same few, if what comes back finds its place at the head of the queue
		t.Errorf("%d messages were delivered more than twice before, want no more than two per lane: %v", often, counts)
	}
	if counts["order-0059"] != 1 {
		t.Errorf("the last message was delivered %d times before, want once: every end of a session charges it once at most",
			counts["order-0059"])
	}
	if n := w.dead(); n != 0 {
		t.Errorf("%d letters, want none", n)
	}
}

func TestAClaimWhoseAnswerNeverCameIsGivenBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.oneBatch(1)
	w.cfg.GiveBackAfter, w.cfg.Lease, w.redisURL = 150*time.Millisecond, 3*time.Second, ""
	w.crashed(1, "key")
	w.publish("{}", "key")
	l := w.proxied()
	// given a claim that is committed, its answer lost, and MySQL out of reach for longer than the delivery is kept
	claimed := false
	committed := nthCommit(1)
	l.mysql.DropReply(func(piece []byte) bool {
		claimed = claimed || committed(piece)
		return claimed
	})
	var reachable atomic.Bool
	for range 100 {
		l.mysql.DropRequest(func([]byte) bool { return claimed && !reachable.Load() })
	}
	r := w.start()
	w.eventually("the delivery is given back", func() bool { return w.outcomes()["abandoned"] == 1 })
	reachable.Store(true)
	w.ended(dedup.Success, "key")
	w.recovered(r)
	w.end(map[string]int{"applied": 1, "abandoned": 1})
	// then the claim that never ran is no attempt: one crashed, one succeeded
	if row := w.row("key"); row.Attempts != 2 {
		t.Errorf("%d attempts, want 2", row.Attempts)
	}
}

func TestAnAttemptThatADependencyEndedIsNone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.oneBatch(1)
	w.cfg.GiveBackAfter, w.cfg.Lease = 100*time.Millisecond, time.Hour // so that nobody takes it over
	w.exec("RENAME TABLE effect TO gone")
	w.publish("{}", "key")
	w.exec(`INSERT INTO consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times, consumer_timestamp,
		created_at)
		VALUES (?, ?, 'key', 2, 1, UTC_TIMESTAMP(6) - INTERVAL 1 HOUR, UTC_TIMESTAMP(6))`, group, tag)
	w.start()
	w.eventually("it was claimed and given back", func() bool {
		row := w.row("key")
		return w.outcomes()["abandoned"] > 0 && row.Status == dedup.Failed && row.Attempts == 1 && row.Owner != ""
	})
	w.exec("RENAME TABLE gone TO effect")
	w.ended(dedup.Success, "key")
	if row := w.row("key"); row.Attempts != 2 {
		t.Errorf("%d attempts, want 2: the one that failed and the one that succeeded", row.Attempts)
	}
}
