package deadletter_test

import (
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestLettersThatMayPassComeBackByThemselvesAndTheOthersStay(t *testing.T) {
	w := newWorld(t)
	for _, reason := range dedup.Reasons() {
		w.dead(reason, names(string(reason), 3)...)
	}
	w.cured()
	w.compensate(deadletter.CompensateOptions{After: time.Second})
	w.wantEffects(9)
	w.wantStatus(dedup.Success, 1, 9)
	w.WantQueues(0, 15)
	w.wantStatus(dedup.Dead, 0, 15)
	for _, reason := range []dedup.Reason{dedup.ReasonExhausted, dedup.ReasonCrashed, dedup.ReasonDeliveryLimit} {
		by := w.events(identity(names(string(reason), 1)[0]))[1].By
		assert.Has(t, by, "compensation by ", "%s: it says that nobody asked", reason)
	}
}

func TestALetterInItsCoolDownStaysAndOneThatWasReplayedTooOftenIsParkedOnce(t *testing.T) {
	w := newWorld(t)
	w.most = 3
	w.dead(dedup.ReasonExhausted, "young", "old", "twice replayed", "too often")
	for key, is := range map[string]struct{ replays, minutes int }{
		"old": {0, 61}, "twice replayed": {2, 3*60 + 55}, "too often": {3, 24 * 60},
	} {
		w.Exec("UPDATE consumer_log SET replays = ?, consumer_timestamp = consumer_timestamp - INTERVAL ? MINUTE WHERE "+
			"msg_key = ?", is.replays, is.minutes, key)
	}
	w.wantTally(w.replayDue(time.Hour), "replayed 1, not selected 2, parked 1, left 1, parked")
	w.wantRow(identity("old"), dedup.Failed, 1)
	assert.Is(t, w.replayDue(time.Hour).Parked, 0, "the second time it is left alone: parked")
	w.WantQueues(1, 3)
}

func TestCompensationWaitsForServersThatAreAway(t *testing.T) {
	w := newWorld(t)
	w.bookmarked()
	w.dead(dedup.ReasonExhausted, "k")
	w.MoveBack(time.Hour)
	mysql, broker := w.proxied(), stack.Proxy(t, stack.Addr(t, w.amqpURL))
	mysql.Refuse(true)
	broker.Refuse(true)
	w.amqpURL = broker.Through(w.amqpURL)
	told := new(listener)
	w.compensate(deadletter.CompensateOptions{After: time.Second, Per: time.Second, Notifier: told})
	mysql.Refuse(false)
	w.wantTold(told, "k")
	broker.Refuse(false)
	w.WantQueues(1, 0)
}

func TestCompensationNeedsItsQueueOnlyWhenALetterIsDue(t *testing.T) {
	w := newWorld(t).dead(dedup.ReasonPermanent, "k")
	w.MoveBack(time.Hour)
	w.Broker.Delete(rabbit.DeadQueue(w.Queue))
	assert.Is(t, w.replayDue(time.Second).Found, 0, "w.replayDue(time.Second).Found")
}

// A daemon that drains waits for letters in hand, but not as long as a person would.
func TestLettersInHandHoldNobodyUpForLong(t *testing.T) {
	w := newWorld(t).dead(dedup.ReasonExhausted, "k")
	w.MoveBack(time.Hour)
	// given a reopen that waits for a lock, and an answer to it that never comes
	tx, err := w.Pool.BeginTx(t.Context(), nil)
	w.Must(err)
	defer tx.Rollback() // it has changed nothing
	require.Get(tx.ExecContext(t.Context(), "SELECT 1 FROM consumer_log FOR UPDATE"))(w.T)
	proxy := w.proxied()
	w.dsn += "?readTimeout=50s"
	stop := w.compensate(deadletter.CompensateOptions{After: time.Second})
	w.Eventually("the reopen waits", func() (string, bool) {
		return "", w.Number("SELECT COUNT(*) FROM "+stack.Processes+" WHERE db = DATABASE() AND info LIKE "+
			"'UPDATE `consumer_log`%'") > 0
	})
	proxy.Hold(true)
	began := time.Now()
	stop()
	assert.AtMost(t, time.Since(began), 30*time.Second, "it took to stop")
}

func (w *world) replayDue(after time.Duration) deadletter.Result {
	w.T.Helper()
	return require.First(w.letters().ReplayDue(w.T.Context(), deadletter.CompensateOptions{After: after}))(w.T)
}
