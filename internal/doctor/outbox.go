package doctor

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/rights"
	"github.com/rollbackd/rollbackd/outbox"
)

// lateMessage is since when the oldest message may be due before somebody should look.
const lateMessage = 5 * time.Minute

// outbox looks at the table of messages that a relay sends.
func (a *area) outbox(ctx context.Context, pool *sql.DB) {
	if a.failed("outbox", outbox.CheckSchema(ctx, pool), "`"+a.program+" migrate --outbox` by an account that may make "+
		"tables, then the rights of this one: see "+rightsPage) {
		return
	}
	s, err := outbox.Rows{DB: pool}.Survey(ctx)
	if a.failed("outbox", err, again) {
		return
	}
	oldest := s.Lag.Round(time.Second).String()
	a.tell("outbox", warnIf(s.Lag > lateMessage, "the oldest message has been due for "+oldest, "is a relay running, `"+
		a.program+" relay` or `run` with ROLLBACKD_OUTBOX=on? `"+a.program+" outbox list` says why a message waits"),
		fine(fmt.Sprintf("%d messages are due, %d wait for their time; the oldest has been due for %s", s.Due+s.Refused,
			s.Waiting, oldest)))
	a.tell("parked", warnIf(s.Parked > 0, fmt.Sprintf("%d messages of the outbox could not be sent, and wait for a person",
		s.Parked), "`"+a.program+" outbox list` says why; then `outbox retry` or `outbox drop`"))
	a.tell("routing key", warnIf(a.RoutingKey() == "", "the first of ROLLBACKD_ROUTING_KEYS is a pattern: a message that "+
		"names no routing key is parked", "put the key first that producers publish with, or name one in each message"))
}

// relayRights tries those of a relay's account.
func (a *area) relayRights(ctx context.Context, pool *sql.DB) {
	a.tryRights(ctx, pool, rights.Names{}, []rights.Role{rights.Relay}, rights.MySQL(rights.Names{}, rights.Relay))
}

// publishes looks whether a relay may publish to the exchange, and whether there is one.
func (a *area) publishes(ctx context.Context, conn *rabbit.Conn) {
	err := conn.MayPublish(ctx, a.Exchange)
	gone, ok := errors.AsType[*rabbit.BrokerError](err)
	a.tell("exchange",
		failIf(ok && gone.Code == 404, fmt.Sprintf("%q does not exist", a.Exchange), "the consumer's `"+a.program+
			" migrate` makes it; or name another one in ROLLBACKD_EXCHANGE"),
		failIf(err != nil, fmt.Sprint(err), "give the user the write permission on "+a.Exchange+": see "+rightsPage),
		fine(a.Exchange+" may be published to"))
}
