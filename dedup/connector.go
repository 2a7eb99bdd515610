package dedup

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"
)

// sessionConnector gives every new connection its session settings. The driver could set variables itself, but not the
// isolation level under one name: MariaDB 10.11 knows no transaction_isolation, MySQL 8 no tx_isolation.
type sessionConnector struct {
	driver.Connector
	statements []string
}

func sessionStatements(o OpenOptions) []string {
	// Strict: a value that does not fit is an error, never cut. All the rest is what MySQL 8 has by default, less what
	// forbids a user's GROUP BY.
	const mode = "STRICT_ALL_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
	// English: which index a duplicate met stands only in the text of the error.
	return []string{
		fmt.Sprintf("SET SESSION autocommit = 1, sql_mode = '%s', time_zone = '+00:00', lc_messages = 'en_US', innodb_lock_wait_timeout = %d",
			mode, int64((o.LockWait+time.Second-1)/time.Second)),
		"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
	}
}

// Connect opens a connection and sets it up.
func (c *sessionConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	for _, text := range c.statements {
		if err := execOn(ctx, conn, text); err != nil {
			return nil, errors.Join(fmt.Errorf("set up the session: %w", err), conn.Close())
		}
	}
	watched, err := watch(conn)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return watched, nil
}

func execOn(ctx context.Context, conn driver.Conn, text string) error {
	e, ok := conn.(driver.ExecerContext)
	if !ok {
		return errors.New("the driver cannot execute a plain statement")
	}
	_, err := e.ExecContext(ctx, text, nil)
	return err
}
