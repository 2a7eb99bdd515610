package ground

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Status reads some of MySQL's counters.
func (f *Field) Status(ctx context.Context, names ...string) (map[string]int64, error) {
	values := map[string]int64{}
	err := f.each(ctx, "SHOW GLOBAL STATUS WHERE Variable_name IN ('"+strings.Join(names, "','")+"')",
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
	ofRedis, err := g.redisClients(ctx)
	return map[string]int{"mysql": ofMySQL, "rabbitmq": ofRabbit, "redis": ofRedis}, err
}

func (g *Ground) redisClients(ctx context.Context) (int, error) {
	o, err := redis.ParseURL(g.Stack.Redis.URL())
	if err != nil {
		return 0, fmt.Errorf("read redis's URL: %w", err)
	}
	client := redis.NewClient(o)
	defer client.Close()
	list, err := client.ClientList(ctx).Result()
	if err != nil {
		return 0, fmt.Errorf("count redis's clients: %w", err)
	}
	return len(slices.Collect(strings.Lines(list))), nil
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
