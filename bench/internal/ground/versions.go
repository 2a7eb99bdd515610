package ground

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
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
	o, err := redis.ParseURL(g.Stack.Redis.URL())
	if err != nil {
		return nil, fmt.Errorf("read redis's URL: %w", err)
	}
	client := redis.NewClient(o)
	defer client.Close()
	info, err := client.Info(ctx, "server").Result()
	if err != nil {
		return nil, fmt.Errorf("ask redis for its version: %w", err)
	}
	versions := map[string]string{"mysql": mysql, "rabbitmq": fmt.Sprint(g.amqp.Properties["version"])}
	for line := range strings.Lines(info) {
		if version, ok := strings.CutPrefix(line, "redis_version:"); ok {
			versions["redis"] = strings.TrimSpace(version)
		}
	}
	return versions, nil
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
