package ground

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Versions are the servers'.
func (g *Ground) Versions(ctx context.Context) (map[string]string, error) {
	f, err := g.open("")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var mysql string
	if err := f.DB.QueryRowContext(ctx, "SELECT VERSION()").Scan(&mysql); err != nil {
		return nil, fmt.Errorf("ask mysql for its version: %w", err)
	}
	info, err := g.redis.InfoMap(ctx, "server").Result()
	if err != nil {
		return nil, fmt.Errorf("ask redis for its version: %w", err)
	}
	return map[string]string{
		"mysql": mysql, "rabbitmq": fmt.Sprint(g.amqp.Properties["version"]), "redis": info["Server"]["redis_version"],
	}, nil
}

// Setup says how the servers are set up, where that is not their default.
func Setup() []string {
	return []string{
		"RabbitMQ: one quorum queue as the product declares it, persistent messages of about 130 bytes with a UUID as " +
			"message_id, published with confirms",
		"MySQL: innodb_flush_log_at_trx_commit=1, " + strings.NewReplacer("--loose-", "", "--", "").Replace(
			strings.Join(databaseOptions, ", ")) +
			", no binary log",
		"Redis: nothing on disk",
		"all clients: interpolateParams, READ COMMITTED",
	}
}

// Status reads some of MySQL's counters.
func (f *Field) Status(ctx context.Context, names ...string) (map[string]int64, error) {
	values := map[string]int64{}
	err := f.Each(ctx, "SHOW GLOBAL STATUS WHERE Variable_name IN ('"+strings.Join(names, "','")+"')",
		func(name string, value int64) error {
			values[name] = value
			return nil
		})
	if err == nil && len(values) != len(names) {
		err = fmt.Errorf("mysql tells %v, want %q", values, names)
	}
	return values, err
}

// Connections are those that each server has now. MySQL's are those of others than the field; RabbitMQ's and Redis's
// hold this program's too.
func (g *Ground) Connections(ctx context.Context, f *Field) (map[string]int, error) {
	status, err := f.Status(ctx, "Threads_connected")
	if err != nil {
		return nil, err
	}
	ofMySQL := int(status["Threads_connected"]) - f.DB.Stats().OpenConnections
	text, err := g.Stack.RabbitMQ.Eval(ctx, "length(rabbit_networking:connections())")
	if err != nil {
		return nil, err
	}
	ofRabbit, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		return nil, fmt.Errorf("count rabbitmq's connections: %w", err)
	}
	list, err := g.redis.ClientList(ctx).Result()
	if err != nil {
		return nil, fmt.Errorf("count redis's clients: %w", err)
	}
	return map[string]int{"mysql": ofMySQL, "rabbitmq": ofRabbit, "redis": strings.Count(list, "\n")}, nil
}

// RowBytes is what a row takes on disk with its indexes, of the tables to which a message adds or changes rows.
func (f *Field) RowBytes(ctx context.Context) (map[string]float64, error) {
	bytes := map[string]float64{}
	for _, table := range []string{"consumer_log", "stock_reservation"} {
		if err := f.exec(ctx, "ANALYZE TABLE "+table); err != nil {
			return nil, err
		}
		rows, err := f.count(ctx, "SELECT COUNT(*) FROM "+table)
		if err != nil {
			return nil, err
		}
		all, err := f.count(ctx, `SELECT data_length + index_length FROM information_schema.tables
			WHERE table_schema = DATABASE() AND table_name = ?`, table)
		if err != nil {
			return nil, err
		}
		bytes[table] = float64(all) / float64(max(rows, 1))
	}
	return bytes, nil
}

// Statement is one kind of statement and what it took.
type Statement struct {
	Text  string
	Count int64
	Total time.Duration
}

// ForgetStatements begins the account of statements anew.
func (f *Field) ForgetStatements(ctx context.Context) error {
	return f.exec(ctx, "TRUNCATE TABLE performance_schema.events_statements_summary_by_digest")
}

// Statements are the kinds of statement that took most time since, the dearest first. The time is what the server spent
// on each, waiting for locks and for the disk included.
func (f *Field) Statements(ctx context.Context) (all []Statement, err error) {
	err = f.query(ctx, func(rows *sql.Rows) error {
		var s Statement
		var picoseconds float64
		err := rows.Scan(&s.Text, &s.Count, &picoseconds)
		s.Total = time.Duration(picoseconds / 1000)
		all = append(all, s)
		return err
	}, `SELECT COALESCE(DIGEST_TEXT, ''), COUNT_STAR, SUM_TIMER_WAIT
		FROM performance_schema.events_statements_summary_by_digest WHERE SCHEMA_NAME = DATABASE() ORDER BY SUM_TIMER_WAIT
			DESC LIMIT 15`)
	return all, err
}

// query calls see for each row.
func (f *Field) query(ctx context.Context, see func(*sql.Rows) error, query string, args ...any) error {
	rows, err := f.DB.QueryContext(ctx, query, args...)
	if err == nil {
		defer rows.Close()
		for err == nil && rows.Next() {
			err = see(rows)
		}
		err = errors.Join(err, rows.Err())
	}
	if err != nil {
		return fmt.Errorf("%.60s…: %w", query, err)
	}
	return nil
}

// Each calls see for each row of a query with two columns.
func (f *Field) Each(ctx context.Context, query string, see func(string, int64) error) error {
	return f.query(ctx, func(rows *sql.Rows) error {
		var name string
		var n int64
		if err := rows.Scan(&name, &n); err != nil {
			return err
		}
		return see(name, n)
	}, query)
}

func (f *Field) exec(ctx context.Context, statement string) error {
	if _, err := f.DB.ExecContext(ctx, statement); err != nil {
		return fmt.Errorf("%.60s…: %w", statement, err)
	}
	return nil
}

func (f *Field) count(ctx context.Context, query string, args ...any) (n int64, err error) {
	if err := f.DB.QueryRowContext(ctx, query, args...).Scan(&n); err != nil {
		return 0, fmt.Errorf("%.60s…: %w", query, err)
	}
	return n, nil
}
