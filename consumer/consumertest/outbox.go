package consumertest

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rollbackd/rollbackd/outbox"
)

// Outbox takes the place of a transaction, as [outbox.Tx], and keeps what [outbox.Put] puts and [outbox.Cancel] does
// not take back. Any other statement has changed one row. The zero value is empty.
type Outbox struct {
	messages   []outbox.Message
	statements []Statement
}

// Messages are those that were put and not cancelled, in the order of the puts, each with what was said of it.
// Its Body is what is sent, also where a Value was put.
func (o *Outbox) Messages() []outbox.Message { return slices.Clone(o.messages) }

// Statements are the others, in their order.
func (o *Outbox) Statements() []Statement { return slices.Clone(o.statements) }

// How the statements of package outbox begin, and how many values a row has. A test compares them with what it sends.
const (
	putting    = "INSERT INTO rollbackd_outbox (msg_tag, msg_key, body, content_type, "
	cancelling = "INSERT INTO rollbackd_outbox (msg_tag, msg_key, body, owner, "
	removing   = "DELETE FROM rollbackd_outbox WHERE "
	perRow     = 9
)

// isOutbox reports whether a statement is one of package outbox's.
func isOutbox(query string) bool { return strings.Contains(query, " rollbackd_outbox ") }

// outOfRange is what MySQL says when another body waits under a key.
const outOfRange = 1690

// ExecContext is called by package outbox, and by whoever puts.
func (o *Outbox) ExecContext(_ context.Context, query string, args ...any) (sql.Result, error) {
	at := func(tag, key any) int {
		return slices.IndexFunc(o.messages, func(m outbox.Message) bool {
			return m.Tag == string(tag.([]byte)) && m.Key == string(key.([]byte))
		})
	}
	switch {
	case !isOutbox(query):
		o.statements = append(o.statements, Statement{query, args})
		return driver.RowsAffected(1), nil
	case strings.HasPrefix(query, putting) && len(args)%perRow == 0:
		for row := range slices.Chunk(args, perRow) {
			i := at(row[0], row[1])
			switch {
			case i < 0:
				m, err := messageOf(row)
				if err != nil {
					return nil, err
				}
				o.messages = append(o.messages, m)
			case !bytes.Equal(o.messages[i].Body, row[2].([]byte)):
				return nil, &mysql.MySQLError{Number: outOfRange, SQLState: [5]byte([]byte("22003")),
					Message: "DOUBLE value is out of range"}
			}
		}
		return driver.RowsAffected(len(args) / perRow), nil
	case strings.HasPrefix(query, cancelling):
		return driver.RowsAffected(1), nil
	case strings.HasPrefix(query, removing) && strings.HasSuffix(query, "owner IS NULL"):
		i := at(args[0], args[1])
		if i < 0 {
			return driver.RowsAffected(0), nil
		}
		o.messages = slices.Concat(o.messages[:i], o.messages[i+1:]) // others may have the old ones
		return driver.RowsAffected(1), nil
	case strings.HasPrefix(query, removing):
		return driver.RowsAffected(1), nil
	}
	return nil, fmt.Errorf("consumertest: no statement for the outbox: %s", query)
}

func messageOf(row []any) (m outbox.Message, err error) {
	text := func(i int) string { b, _ := row[i].([]byte); return string(b) }
	m = outbox.Message{
		Tag: text(0), Key: text(1), Body: bytes.Clone(row[2].([]byte)), ContentType: text(3), Exchange: text(5),
		RoutingKey: text(6), Delay: time.Duration(row[8].(int64)) * time.Microsecond,
	}
	if exchange, _ := row[5].([]byte); exchange != nil && len(exchange) == 0 {
		m.Exchange = outbox.DefaultExchange
	}
	if headers, _ := row[4].([]byte); headers != nil {
		err = json.Unmarshal(headers, (*outbox.Headers)(&m.Headers))
	}
	if at, ok := row[7].(string); ok && err == nil {
		m.NotBefore, err = time.Parse("2006-01-02 15:04:05.000000", at)
	}
	return m, err
}
