package ground

import (
	"fmt"

	"github.com/rollbackd/rollbackd/dedup"
)

// Letter is one of the dead rows of a full log.
type Letter struct {
	Key, Order, Error string
	Reason            dedup.Reason
}

const (
	// fullDead is how many dead rows a full log has. They died in the last twenty days.
	fullDead = 100_000
	// kindsOfError is how many kinds of errors they have; each error names its order besides.
	kindsOfError = 23
)

// LetterOf is the n-th dead row, from 0 to fullDead-1.
func LetterOf(n int) Letter {
	order := fmt.Sprintf("dead-%d", n)
	return Letter{
		Key: fmt.Sprintf("letter-%d", n), Order: order, Reason: dedup.ReasonExhausted,
		Error: fmt.Sprintf("shelf %c of order %s is locked", 'a'+n%kindsOfError, order),
	}
}

// fillDead writes the rows that [LetterOf] says. Their messages are in no queue: pages show rows.
func (f *Field) fillDead() {
	const body = `CONCAT('{"order_sn":"dead-', n, '","reason":"payment_timeout","items":[{"sku_id":1,"quantity":2}]}')`
	f.exec(fmt.Sprintf(
		`INSERT IGNORE INTO consumer_log (group_name, msg_tag, msg_key, msg_id, msg_body, properties, body_hash,
			consumer_status, consumer_times, replays, consumer_timestamp, created_at, dead_at, reason, remark)
		SELECT '%s', '%s', CONCAT('letter-', n), CONCAT('letter-', n), %[3]s, '{"content_type":"application/json"}',
			UNHEX(SHA2(%[3]s, 256)), 3, 5, 0, at, at, at, '%[4]s',
			CONCAT('shelf ', CHAR(ASCII('a') + n MOD %[5]d), ' of order dead-', n, ' is locked')
		FROM (SELECT n, UTC_TIMESTAMP(6) - INTERVAL (3600 + n * 17) SECOND AS at FROM %[6]s WHERE n < %[7]d) AS dead`,
		Group, RoutingKey, body, dedup.ReasonExhausted, kindsOfError, numbers, fullDead))
}
