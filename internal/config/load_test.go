package config

import (
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// required is the least environment that Load accepts.
func required() map[string]string {
	return map[string]string{
		"ROLLBACKD_AMQP_URL":  "amqp://guest:guest@localhost:5672/",
		"ROLLBACKD_MYSQL_DSN": "root:secret@tcp(127.0.0.1:3306)/shop",
		"ROLLBACKD_REDIS_URL": "redis://localhost:6379/0",
	}
}

// environ is the required environment with some variables changed; the value unset takes one away.
func environ(changes map[string]string) []string {
	env := required()
	maps.Copy(env, changes)
	var list []string
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if env[name] != unset {
			list = append(list, name+"="+env[name])
		}
	}
	return list
}

const unset = "\x00unset"

func load(t *testing.T, changes map[string]string) Config {
	t.Helper()
	cfg, warnings, err := Load(environ(changes))
	if err != nil {
		t.Fatalf("Load: %v", err)
	}
	if len(warnings) > 0 {
		t.Fatalf("Load warns: %v", warnings)
	}
	return cfg
}

// problems loads a bad environment and returns its problems.
func problems(t *testing.T, changes map[string]string) []Problem {
	t.Helper()
	cfg, _, err := Load(environ(changes))
	bad, ok := errors.AsType[*Error](err)
	if !ok {
		t.Fatalf("Load = %v, want *Error", err)
	}
	if !cmp.Equal(fieldValues(cfg), fieldValues(Config{})) {
		t.Errorf("Load returns %v together with an error, want the zero Config", fieldValues(cfg))
	}
	return bad.Problems
}

func TestDefaultsAreThoseOfTheDocumentation(t *testing.T) {
	got := fieldValues(load(t, nil))
	want := fieldValues(Config{
		AMQPURLs: URLs{"amqp://guest:guest@localhost:5672/"}, MySQLDSN: "root:secret@tcp(127.0.0.1:3306)/shop",
		RedisURL: "redis://localhost:6379/0", Group: "stock-rollback", Exchange: "stock", Queue: "stock.rollback",
		RoutingKeys: []string{"stock.rollback"}, KeyFrom: "header:x-message-key,property:message_id,body:sha256",
		LogTable: "consumer_log", Handler: "stock", EmptyRollback: "retry", MaxAttempts: 5,
		RetryDelays: []time.Duration{time.Second, 5 * time.Second, 30 * time.Second, 2 * time.Minute},
		Lanes:       4, BatchSize: 1000, BatchLinger: 2 * time.Millisecond, Prefetch: 2000,
		Lease: 30 * time.Second, HandlerTimeout: 10 * time.Second, LockTTL: 10 * time.Second, DoneTTL: 5 * time.Minute,
		LockOnError: "proceed", DrainTimeout: 25 * time.Second, MaxDeadRate: Rate{Count: 100, Per: time.Minute},
		BrakePause: 5 * time.Minute, HTTPAddr: "127.0.0.1:8080", LogLevel: slog.LevelInfo, LogFormat: "auto",
		LogRetention: 720 * time.Hour, MaxReplays: 10,
	})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
}

func TestEveryVariableReachesItsField(t *testing.T) {
	got := fieldValues(load(t, map[string]string{
		"ROLLBACKD_AMQP_URL":  "amqp://a:p,w@h1:5672/v, amqps://b@h2/%2f",
		"ROLLBACKD_MYSQL_DSN": "u@unix(/run/mysqld.sock)/db", "ROLLBACKD_REDIS_URL": "rediss://:pw@h:6380/1",
		"ROLLBACKD_GROUP": "g é", "ROLLBACKD_EXCHANGE": "ex", "ROLLBACKD_QUEUE": "q", "ROLLBACKD_ROUTING_KEYS": "a.*, b.#",
		"ROLLBACKD_KEY_FROM": "json:/order_sn,body:sha256", "ROLLBACKD_LOG_TABLE": "trade_mq_consumer_log", "ROLLBACKD_HANDLER": "stock",
		"ROLLBACKD_EMPTY_ROLLBACK": "refuse", "ROLLBACKD_MAX_ATTEMPTS": "3", "ROLLBACKD_RETRY_DELAYS": "100ms, 90s",
		"ROLLBACKD_LANES": "1", "ROLLBACKD_BATCH_SIZE": "10", "ROLLBACKD_BATCH_LINGER": "0", "ROLLBACKD_PREFETCH": "11",
		"ROLLBACKD_LEASE": "6s", "ROLLBACKD_HANDLER_TIMEOUT": "5s", "ROLLBACKD_LOCK_TTL": "3s", "ROLLBACKD_DONE_TTL": "1h",
		"ROLLBACKD_LOCK_ON_ERROR": "pause", "ROLLBACKD_DRAIN_TIMEOUT": "7s", "ROLLBACKD_MAX_DEAD_RATE": "7/2m", "ROLLBACKD_BRAKE_PAUSE": "8s",
		"ROLLBACKD_HTTP_ADDR": ":0", "ROLLBACKD_ADMIN_TOKEN": "abcdefghijklmnop", "ROLLBACKD_LOG_LEVEL": "warn", "ROLLBACKD_LOG_FORMAT": "json",
		"ROLLBACKD_LOG_RETENTION": "0", "ROLLBACKD_MAX_REPLAYS": "2", "ROLLBACKD_COMPENSATE_AFTER": "15m",
		"ROLLBACKD_DEAD_LETTER_WEBHOOK": "https://example.com/x", "ROLLBACKD_DEAD_LETTER_WEBHOOK_SECRET": "s t",
	}))
	want := fieldValues(Config{
		AMQPURLs: URLs{"amqp://a:p,w@h1:5672/v", "amqps://b@h2/%2f"}, MySQLDSN: "u@unix(/run/mysqld.sock)/db",
		RedisURL: "rediss://:pw@h:6380/1", Group: "g é", Exchange: "ex", Queue: "q", RoutingKeys: []string{"a.*", "b.#"},
		KeyFrom: "json:/order_sn,body:sha256", LogTable: "trade_mq_consumer_log", Handler: "stock", EmptyRollback: "refuse",
		MaxAttempts: 3, RetryDelays: []time.Duration{100 * time.Millisecond, 90 * time.Second}, Lanes: 1, BatchSize: 10,
		BatchLinger: 0, Prefetch: 11, Lease: 6 * time.Second, HandlerTimeout: 5 * time.Second, LockTTL: 3 * time.Second, DoneTTL: time.Hour,
		LockOnError: "pause", DrainTimeout: 7 * time.Second, MaxDeadRate: Rate{Count: 7, Per: 2 * time.Minute}, BrakePause: 8 * time.Second,
		HTTPAddr: ":0", AdminToken: "abcdefghijklmnop", LogLevel: slog.LevelWarn, LogFormat: "json", LogRetention: 0, MaxReplays: 2,
		CompensateAfter: 15 * time.Minute, DeadLetterWebhook: "https://example.com/x", DeadLetterWebhookSecret: "s t",
	})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
}

func TestOffAndEmptyLeaveTheFieldZero(t *testing.T) {
	cfg := load(t, map[string]string{
		"ROLLBACKD_REDIS_URL": "off", "ROLLBACKD_HTTP_ADDR": "off", "ROLLBACKD_MAX_DEAD_RATE": "off", "ROLLBACKD_COMPENSATE_AFTER": "off",
		"ROLLBACKD_ADMIN_TOKEN": "", "ROLLBACKD_DEAD_LETTER_WEBHOOK": "", "ROLLBACKD_DEAD_LETTER_WEBHOOK_SECRET": "",
	})
	if cfg.RedisURL != "" || cfg.HTTPAddr != "" || cfg.MaxDeadRate != (Rate{}) || cfg.CompensateAfter != 0 ||
		cfg.AdminToken != "" || cfg.DeadLetterWebhook != "" || cfg.DeadLetterWebhookSecret != "" {
		t.Errorf("fields switched off are not zero: %#v", fieldValues(cfg))
	}
}

func TestPrefetchFollowsTheBatchSize(t *testing.T) {
	if got := load(t, map[string]string{"ROLLBACKD_BATCH_SIZE": "7"}).Prefetch; got != 14 {
		t.Errorf("Prefetch = %d, want twice the batch size 7", got)
	}
}

func TestValueComesFromAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dsn")
	write(t, path, "root:pw@tcp(db)/shop\r\n")
	cfg := load(t, map[string]string{"ROLLBACKD_MYSQL_DSN": unset, "ROLLBACKD_MYSQL_DSN_FILE": path})
	if cfg.MySQLDSN != "root:pw@tcp(db)/shop" {
		t.Errorf("MySQLDSN = %q, want the file's content without its line end", cfg.MySQLDSN)
	}
}

func TestFileThatGivesNoValueIsRefused(t *testing.T) {
	dir := t.TempDir()
	empty, large := filepath.Join(dir, "empty"), filepath.Join(dir, "large")
	write(t, empty, "\n")
	write(t, large, strings.Repeat("x", maxFileBytes+1))
	for name, tc := range map[string]struct {
		env  map[string]string
		want string
	}{
		"missing":         {map[string]string{"ROLLBACKD_GROUP_FILE": filepath.Join(dir, "none")}, "no such file"},
		"directory":       {map[string]string{"ROLLBACKD_GROUP_FILE": dir}, "is a directory"},
		"empty name":      {map[string]string{"ROLLBACKD_GROUP_FILE": ""}, "the name is empty"},
		"empty content":   {map[string]string{"ROLLBACKD_GROUP_FILE": empty}, "is empty"},
		"too large":       {map[string]string{"ROLLBACKD_GROUP_FILE": large}, "at most 65536 are allowed"},
		"both":            {map[string]string{"ROLLBACKD_GROUP_FILE": empty, "ROLLBACKD_GROUP": "g"}, "ROLLBACKD_GROUP_FILE are both set"},
		"both, one empty": {map[string]string{"ROLLBACKD_GROUP_FILE": empty, "ROLLBACKD_GROUP": ""}, "are both set"},
	} {
		t.Run(name, func(t *testing.T) {
			got := problems(t, tc.env)
			if len(got) != 1 || got[0].Variable != "ROLLBACKD_GROUP" || !strings.Contains(got[0].String(), tc.want) {
				t.Errorf("problems = %v, want one of ROLLBACKD_GROUP saying %q", got, tc.want)
			}
		})
	}
}

func TestAllProblemsAreReportedAtOnceInTheOrderOfTheDocumentation(t *testing.T) {
	got := problems(t, map[string]string{
		"ROLLBACKD_LOG_LEVEL": "loud", "ROLLBACKD_AMQP_URL": unset, "ROLLBACKD_LEASE": "10s", "ROLLBACKD_GROUP": "", "ROLLBACKD_LANES": "x",
	})
	var names []string
	for _, p := range got {
		names = append(names, p.Variable)
	}
	want := []string{"ROLLBACKD_AMQP_URL", "ROLLBACKD_GROUP", "ROLLBACKD_LANES", "ROLLBACKD_LEASE", "ROLLBACKD_LOG_LEVEL"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	_, _, err := Load(environ(map[string]string{"ROLLBACKD_LANES": "x", "ROLLBACKD_GROUP": ""}))
	wantText := `ROLLBACKD_GROUP is set but empty: give a value, or leave it out for the default, for example ROLLBACKD_GROUP=stock-rollback
ROLLBACKD_LANES="x" is not a whole number, for example ROLLBACKD_LANES=4`
	if err.Error() != wantText {
		t.Errorf("error is\n%s\nwant\n%s", err, wantText)
	}
}

func TestNothingSetIsRefusedWithTheRequiredNames(t *testing.T) {
	t.Setenv("AMQP_URL", "amqp://from-the-process-environment")
	_, _, err := Load(nil)
	bad, ok := errors.AsType[*Error](err)
	if !ok || len(bad.Problems) != 3 {
		t.Fatalf("Load(nil) = %v, want the three required variables", err)
	}
	for i, name := range []string{"ROLLBACKD_AMQP_URL", "ROLLBACKD_MYSQL_DSN", "ROLLBACKD_REDIS_URL"} {
		if p := bad.Problems[i]; p.Variable != name || p.What != "is not set" {
			t.Errorf("problem %d = %v, want %s is not set", i, p, name)
		}
	}
}

func TestOtherProgramsVariablesAreNotRead(t *testing.T) {
	if _, _, err := Load(append(environ(nil), "LANES=7", "nonsense", "=C:=x")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LANES", "9")
	if got := load(t, nil).Lanes; got != 4 {
		t.Errorf("Lanes = %d, want the default: only names with the prefix count", got)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
