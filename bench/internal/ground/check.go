package ground

import (
	"errors"
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
)

// Harvest is what a round has left behind, checked.
type Harvest struct {
	Applied int64 // success rows of this round
	Left    int64 // messages still in the main queue
	Dead    int64 // messages in the dead-letter queue
}

// ErrBroken says that a round broke the promise; whoever ran it, that is no figure, and no other round makes up for it.
var ErrBroken = errors.New("the promise is broken")

func broken(format string, args ...any) {
	must.OK(fmt.Errorf("%w: %w", ErrBroken, fmt.Errorf(format, args...)))
}

// Check holds the round to the promise, whoever ran it, after all its processes have ended:
//
//   - per sku, amount + reserved is what it was (the oracle's first rule): nothing was given back twice or half;
//   - both items of an order are released or none, and exactly as many orders as there are success rows;
//   - every release names the key of a success row;
//   - what is not applied is in a queue: nothing was lost.
//
// Rounds of other handlers than the built-in one have rules of their own, see checkHandler.
func (f *Field) Check() (h Harvest) {
	h.Applied = value[int64](f, successes) - f.sown.rowsBefore
	if f.sown.Handler != "" {
		f.checkHandler()
	} else {
		f.checkReservations(h.Applied)
	}
	if f.sown.Emits {
		f.checkEvents(h.Applied)
	}
	h.Left, h.Dead = f.checkQueues(h.Applied)
	return h
}

// checkReservations holds the tables of package stock to it.
func (f *Field) checkReservations(applied int64) {
	after := must.Get(oracle.ReadStock(f.ground.Ctx, f.DB))
	if len(after) != len(f.sown.before) {
		broken("there are %d goods, there were %d", len(after), len(f.sown.before))
	}
	for sku, g := range after {
		was := f.sown.before[sku]
		if g.Total() != was.Total() && !f.sown.grown {
			broken("sku %d has %d in all, had %d", sku, g.Total(), was.Total())
		}
		if g.Amount-was.Amount != g.Released {
			broken("sku %d got %d back, its reservations say %d", sku, g.Amount-was.Amount, g.Released)
		}
	}
	for what, query := range map[string]string{
		"items are released by messages whose rows do not say success": `SELECT COUNT(*) FROM stock_reservation AS r
			LEFT JOIN consumer_log AS l FORCE INDEX (PRIMARY) ON l.group_name = '` + Group + `' AND l.msg_tag = r.rollback_tag
			AND l.msg_key = r.rollback_key AND l.consumer_status = 1 WHERE r.status = 2 AND l.msg_key IS NULL`,
		"orders are released by half": "SELECT COUNT(*) FROM (SELECT order_sn FROM stock_reservation GROUP BY order_sn " +
			"HAVING SUM(status = 2) NOT IN (0, 2)) AS halves",
		"items are released more than the success rows say, or fewer": fmt.Sprintf(
			"SELECT ABS(COUNT(*) - %d) FROM stock_reservation WHERE status = 2", 2*applied),
	} {
		if n := value[int64](f, query); n > 0 {
			broken("%d %s", n, what)
		}
	}
}

// checkQueues waits until what was unacked is back and compares. What was published once and is not applied must be in
// a queue: where nothing fails in the main queue and exactly once; else in any of them, and at least once, because a
// copy is confirmed before the message is acked. Twins end without a row of their own, so they are not counted.
func (f *Field) checkQueues(applied int64) (left, dead int64) {
	fails := f.sown.PoisonEvery != 0 || f.sown.Mistaken
	var all int64
	if !f.ground.Within(time.Minute, func() bool {
		left, dead, all = f.ground.depths()
		open := f.published.Load() - applied
		return f.sown.Twice || f.sown.Unreserved || f.published.Load() == 0 || !fails && left == open || fails && all >= open
	}) {
		broken("of %d messages %d are applied, %d are in the queue, %d in all queues", f.published.Load(), applied, left, all)
	}
	return left, dead
}
