package config

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/rollbackd/rollbackd/dedup"
)

func TestBadValueIsRefusedWithNameValueAndExample(t *testing.T) {
	long := strings.Repeat("x", 201)
	for _, tc := range []struct{ key, value, want string }{
		{"AMQP_URL", "localhost:5672", "must begin with amqp:// or amqps://"},
		{"AMQP_URL", "http://localhost", "must begin with amqp:// or amqps://"},
		{"AMQP_URL", "amqp://", "has no valid host"},
		{"AMQP_URL", "amqp://u:p@h1,h2:5672/", "has no valid host"},
		{"AMQP_URL", "amqp://u:p@h:99999/", "port"},
		{"AMQP_URL", "amqp://u:p@h:0/", "port"},
		{"AMQP_URL", "amqp://u:p/w@h/", "percent-encode"},
		{"AMQP_URL", "amqp://u:p#w@h/", "percent-encode"},
		{"AMQP_URL", "amqp://u:p%w@h/", "percent-encode"},
		{"AMQP_URL", "amqp://u:1/w@h/", "percent-encode"},
		{"AMQP_URL", "amqp://h/v w", "has a space"},
		{"AMQP_URL", "amqp://h1/,redis://h2/", "URL 2 of 2 must begin with"},
		{"AMQP_URL", "amqp://h/?heartbeat=soon", "heartbeat"},
		{"AMQP_URL", "AMQP://h/", "must start with amqp://"},
		{"AMQP_URL", "", "is set but empty"},
		{"MYSQL_DSN", "mysql://root:pw@localhost/shop", "is a URL"},
		{"MYSQL_DSN", "root:pw@tcp(localhost:3306)", "is not of the form"},
		{"MYSQL_DSN", "root:pw@tcp(localhost:3306)/", "names no database"},
		{"MYSQL_DSN", "root:pw@tcp(localhost:3306)/?parseTime=true", "names no database"},
		{"MYSQL_DSN", "root:pw@tcp(localhost:3306)/shop?timeout=5", "has a parameter"},
		{"MYSQL_DSN", "tcp(localhost:3306)/shop", "names no user"},
		{"REDIS_URL", "localhost:6379", "neither redis:// nor rediss://"},
		{"REDIS_URL", "OFF", "neither redis:// nor rediss://"},
		{"REDIS_URL", "redis://h/notanumber", "no database number"},
		{"REDIS_URL", "redis://h/0?colour=red", "unknown parameter"},
		{"REDIS_URL", "redis://h1,h2", "say cluster=true"},
		{"REDIS_URL", "redis://h1,redis://h2,redis://h3", "names 3 servers that know nothing of each other"},
		{"REDIS_URL", "redis://h1,redis://h2:x", "URL 2 of 2"},
		{"LOCK", "etcd", "must be redis, redlock, zookeeper, mysql or off"},
		{"ZOOKEEPER_URL", "zk1:2181", "must begin with zookeeper://"},
		{"ZOOKEEPER_URL", "zookeeper://", "address 1 is not host:port"},
		{"ZOOKEEPER_URL", "zookeeper://zk1:2181,zk2:x", "address 2 is not host:port"},
		{"ZOOKEEPER_URL", "zookeeper://hunter2@zk1", "before the @ stand user:password"},
		{"ZOOKEEPER_URL", "zookeeper://zk1/a/", "without a slash at its end"},
		{"REDIS_URL", "redis://u:p/w@h/0", "is not host:port"},
		{"REDIS_URL", "redis://password@h/0", "has no colon: write user:password, or :password"},
		{"MYSQL_DSN", "root/secret@tcp(localhost:3306)/shop", "has a user that looks like something else"},
		{"MYSQL_DSN", "Server=db;Uid=root;Pwd=s3cret;Database=shop", "is not of the form"},
		{"MYSQL_DSN", "u:p@tcp(h)/shop\nsecond", "second line"},
		{"DEAD_LETTER_WEBHOOK_SECRET", "a\nb\nc", "has 3 lines"},
		{"DEAD_LETTER_WEBHOOK_SECRET", "\n", "has 0 lines"},
		{"GROUP", strings.Repeat("g", 101), "has 101 bytes, at most 100 are allowed"},
		{"GROUP", "a\nb", "control character"},
		{"GROUP", "a\xff", "not valid UTF-8"},
		{"EXCHANGE", "amq.topic", "begins with amq."},
		{"EXCHANGE", long, "at most 200"},
		{"QUEUE", "amq.gen", "begins with amq."},
		{"QUEUE", long, "at most 200"},
		{"QUEUE", "a\tb", "control character"},
		{"ROUTING_KEYS", "a,,b", "entry 2 is empty"},
		{"ROUTING_KEYS", "a,b,a", "entry 3 is there twice"},
		{"ROUTING_KEYS", "a," + strings.Repeat("k", 256), "entry 2 has 256 bytes"},
		{"KEY_FROM", "cookie:x", `key source "cookie:x"`},
		{"KEY_FROM", "header:", `key source "header:"`},
		{"KEY_FROM", "body:sha256,property:message_id", "never used"},
		{"KEY_FROM", "json:order_sn", `key source "json:order_sn"`},
		{"LOG_TABLE", "consumer-log", "is no identifier"},
		{"LOG_TABLE", "shop.consumer_log", "is no identifier"},
		{"LOG_TABLE", "x`; DROP TABLE stock", "is no identifier"},
		{"LOG_TABLE", strings.Repeat("t", 42), "at most 41"},
		{"LOG_TABLE", "stock", "another table"},
		{"LOG_TABLE", "rollbackd_meta", "another table"},
		{"HANDLER", "grpc", "must be stock, sql or http"},
		{"HTTP_TARGET", "stock.example.com", "must begin with http:// or https://"},
		{"HTTP_TARGET", "https://u:p@h/", "without user, password and fragment"},
		{"HTTP_TIMEOUT", "1ms", "must be 100ms to 10m"},
		{"HTTP_CONCURRENCY", "0", "must be 1 to 10000"},
		{"HTTP_TOKEN", "two words", "printable ASCII without spaces"},
		{"SQL_FILE", "a\nb", "has a control character"},
		{"EMPTY_ROLLBACK", "ignore", "must be retry or refuse"},
		{"MAX_ATTEMPTS", "0", "must be 1 to 100"},
		{"MAX_ATTEMPTS", "101", "must be 1 to 100"},
		{"MAX_ATTEMPTS", "99999999999999999999", "too large"},
		{"RETRY_DELAYS", "1s,5,30s,2m", "entry 2 has no unit"},
		{"RETRY_DELAYS", "1s,5s,5s,2m", "must grow: entry 3"},
		{"RETRY_DELAYS", "5s,1s,30s,2m", "must grow: entry 2"},
		{"RETRY_DELAYS", "1s,5s", "too few delays (2): MAX_ATTEMPTS (5) needs at least 4"},
		{"RETRY_DELAYS", "99ms,5s,30s,2m", "entry 1 must be 100ms to 24h"},
		{"RETRY_DELAYS", "1s,5s,30s,25h", "entry 4 must be 100ms to 24h"},
		{"RETRY_DELAYS", "1s,5s,30s,60s500us", "entry 4 is not whole milliseconds"},
		{"RETRY_DELAYS", "1s,2s,3s,4s,5s,6s,7s,8s,9s,10s,11s,12s,13s,14s,15s,16s,17s,18s,19s,20s,21s", "at most 20"},
		{"LANES", "0", "must be 1 to 256"},
		{"BATCH_SIZE", "0", "must be 1 to 10000"},
		{"BATCH_SIZE", "-5", "must be 1 to 10000"},
		{"BATCH_SIZE", "10001", "must be 1 to 10000"},
		{"BATCH_LINGER", "11s", "must be 0s to 10s"},
		{"BATCH_LINGER", "-1ms", "must be 0s to 10s"},
		{"PREFETCH", "0", "must be 1 to 65535"},
		{"PREFETCH", "-1", "must be 1 to 65535"},
		{"PREFETCH", "70000", "must be 1 to 65535"},
		{"PREFETCH", "999", "is less than BATCH_SIZE (1000)"},
		{"MEMORY_BUDGET", "64", "has no unit"},
		{"MEMORY_BUDGET", "64MB", "is not a size"},
		{"MEMORY_BUDGET", "1.5GiB", "is not a size"},
		{"MEMORY_BUDGET", "1MiB", "must be 4MiB to 64GiB"},
		{"MEMORY_BUDGET", "-64MiB", "is outside"},
		{"MEMORY_BUDGET", "9223372036854775807GiB", "is outside"},
		{"LEASE", "30", "has no unit"},
		{"LEASE", "10s", "must be longer than HANDLER_TIMEOUT (10s)"},
		{"LEASE", "2h", "must be 1s to 1h"},
		{"HANDLER_TIMEOUT", "ten seconds", "is not a duration"},
		{"HANDLER_TIMEOUT", "11m", "must be 2s to 10m"},
		{"HANDLER_TIMEOUT", "1999ms", "must be 2s to 10m"},
		{"LOCK_TTL", "999ms", "must be 1s to 10m"},
		{"LOCK_TTL", "11m", "must be 1s to 10m"},
		{"DONE_TTL", "0s", "must be 1s to 24h"},
		{"LOCK_ON_ERROR", "fail", "must be proceed or pause"},
		{"DRAIN_TIMEOUT", "0", "must be 100ms to 1h"},
		{"MAX_DEAD_RATE", "100", "COUNT/DURATION"},
		{"MAX_DEAD_RATE", "many/60s", "the count is not a whole number"},
		{"MAX_DEAD_RATE", "100/60", "the duration has no unit"},
		{"MAX_DEAD_RATE", "0/60s", "the count must be 1 to 1000000"},
		{"MAX_DEAD_RATE", "1/2h", "the duration must be 1s to 1h"},
		{"BRAKE_PAUSE", "0", "must be 1s to 24h"},
		{"HTTP_ADDR", "8080", "is not host:port"},
		{"HTTP_ADDR", "localhost:http", "port"},
		{"HTTP_ADDR", "localhost:65536", "port"},
		{"ADMIN_TOKEN", "two words in the token", "without spaces"},
		{"ADMIN_PROXY", "X-User everywhere", "an address or a network"},
		{"ADMIN_PROXY", "X-User", "must be"},
		{"ADMIN_PROXY", "X-User 10.0.0.0/8 a=b c", "must be"},
		{"ADMIN_PROXY", "X-User 10.0.0.0/8 groups", "GROUPHEADER"},
		{"ADMIN_PROXY", "X: 10.0.0.0/8", "must be HEADER"},
		{"UI_HIDE_BODIES", "on", "must be yes or no"},
		{"UI_REDACT", "/a,b", "entry 2 is no JSON pointer"},
		{"BASE_PATH", "/rollbackd/", "must be a path"},
		{"BASE_PATH", "/a/../b", "must be a path"},
		{"BASE_PATH", "rollbackd", "must be a path"},
		{"LOG_LEVEL", "INFO+2", "must be debug, info, warn or error"},
		{"LOG_LEVEL", "loud", "must be debug, info, warn or error"},
		{"LOG_FORMAT", "xml", "must be auto, text or json"},
		{"LOG_RETENTION", "1h", "must be 0 (keeps all) or 24h to 87600h"},
		{"LOG_RETENTION", "-1h", "must be 0 (keeps all) or 24h to 87600h"},
		{"MAX_REPLAYS", "0", "must be 1 to 1000"},
		{"COMPENSATE_AFTER", "10ms", "must be 1s to 720h or off"},
		{"COMPENSATE_AFTER", "0", "must be 1s to 720h or off"},
		{"DEAD_LETTER_WEBHOOK", "ftp://example.com", "must begin with http:// or https://"},
		{"DEAD_LETTER_WEBHOOK_SECRET", "x", "there is no DEAD_LETTER_WEBHOOK"},
	} {
		t.Run(tc.key+"="+tc.value, func(t *testing.T) {
			name := Prefix + tc.key
			got := problems(t, map[string]string{name: tc.value})
			if len(got) != 1 || got[0].Variable != name {
				t.Fatalf("problems = %v, want one, of %s", got, name)
			}
			line := got[0].String()
			if !strings.Contains(line, tc.want) || !strings.Contains(line, ", for example "+name+"=") {
				t.Errorf("problem is %q, want it to say %q and to give an example", line, tc.want)
			}
			if strings.Contains(line, "\n") || !utf8.ValidString(line) {
				t.Errorf("problem %q is not one printable line", line)
			}
		})
	}
}

func TestRetryDelaysMustFitIntoTheRetention(t *testing.T) {
	got := problems(t, map[string]string{"ROLLBACKD_LOG_RETENTION": "24h", "ROLLBACKD_RETRY_DELAYS": "1h,2h,3h,20h"})
	if len(got) != 1 || !strings.Contains(got[0].String(), "longer than all RETRY_DELAYS together (26h)") {
		t.Errorf("problems = %v, want LOG_RETENTION shorter than the retries refused", got)
	}
	load(t, map[string]string{"ROLLBACKD_LOG_RETENTION": "0", "ROLLBACKD_RETRY_DELAYS": "1h,2h,3h,20h"})
}

func TestOneMistakeIsOneLine(t *testing.T) {
	// HANDLER_TIMEOUT cannot be parsed, so LEASE must not be compared with it.
	if got := problems(t, map[string]string{
		"ROLLBACKD_HANDLER_TIMEOUT": "10", "ROLLBACKD_BATCH_SIZE": "none", "ROLLBACKD_MAX_ATTEMPTS": "many",
	}); len(got) != 3 {
		t.Errorf("problems = %v, want three", got)
	}
}

func TestExamplesOfEveryVariableAreAccepted(t *testing.T) {
	for handler, others := range map[string]string{HandlerSQL: "ROLLBACKD_HTTP_T", HandlerHTTP: "ROLLBACKD_SQL_"} {
		all := make(map[string]string)
		for _, v := range Variables() {
			if !strings.HasPrefix(v.Name, others) && v.key != "ZOOKEEPER_URL" { // which warn that they have no effect
				all[v.Name] = v.Example
			}
		}
		all["ROLLBACKD_HANDLER"] = handler
		for _, url := range []string{"ROLLBACKD_AMQP_URL", "ROLLBACKD_REDIS_URL"} { // certificates want what is encrypted
			scheme, rest, _ := strings.Cut(all[url], "://")
			all[url] = scheme + "s://" + rest
		}
		load(t, all)
	}
}

func TestRedisClusterAndSentinelsAreAccepted(t *testing.T) {
	for _, u := range []string{"redis://u:p@h1:7000,h2:7001?cluster=true",
		"rediss://:p@h1,h2/3?master=lock&sentinel_password=q", "redis://[::1]:6379/0"} {
		if got := load(t, map[string]string{"ROLLBACKD_REDIS_URL": u}).RedisURL; got != u {
			t.Errorf("RedisURL = %q, want %q", got, u)
		}
	}
}

func TestLongestTableNameIsAcceptedByTheLog(t *testing.T) {
	cfg := load(t, map[string]string{"ROLLBACKD_LOG_TABLE": strings.Repeat("t", 41)})
	db, _, err := dedup.Open(t.Context(), cfg.MySQLDSN, dedup.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pool, err := db.DB()
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err := dedup.NewLog(db, cfg.LogOptions()); err != nil {
		t.Errorf("the log refuses what config accepts: %v", err)
	}
}

func TestDoubtfulSettingsWarn(t *testing.T) {
	for name, tc := range map[string]struct{ value, want string }{
		"ROLLBACKD_DRAIN_TIMEOUT": {"1s", "ROLLBACKD_DRAIN_TIMEOUT is shorter than HANDLER_TIMEOUT (10s)"},
		"ROLLBACKD_SQL_FILE":      {"a.sql", "ROLLBACKD_SQL_FILE has no effect: HANDLER is stock"},
		"ROLLBACKD_HTTP_TARGET":   {"http://h/", "ROLLBACKD_HTTP_TARGET has no effect: HANDLER is stock"},
		"ROLLBACKD_ADMIN_TOKEN":   {"tiny", "ROLLBACKD_ADMIN_TOKEN has fewer than 16 characters"},
	} {
		_, warnings, err := Load(environ(map[string]string{name: tc.value}))
		if err != nil || len(warnings) != 1 || !strings.HasPrefix(warnings[0].String(), tc.want) {
			t.Errorf("%s=%s: warnings %v, error %v; want one warning %q", name, tc.value, warnings, err, tc.want)
		}
	}
}

func TestHandlerHTTPNeedsItsTarget(t *testing.T) {
	for want, extra := range map[string][]string{
		"ROLLBACKD_HTTP_TARGET is needed by HANDLER=http": {"ROLLBACKD_HTTP_TARGET", ""},
		"must be at most HANDLER_TIMEOUT (10s)":           {"ROLLBACKD_HTTP_TIMEOUT", "11s"},
		"and HTTP_TLS_KEY_FILE belong together":           {"ROLLBACKD_HTTP_TLS_CERT_FILE", "/etc/client.pem"},
	} {
		env := map[string]string{"ROLLBACKD_HANDLER": "http", "ROLLBACKD_HTTP_TARGET": "http://shop/rollbacks"}
		env[extra[0]] = extra[1]
		got := problems(t, env)
		if len(got) != 1 || got[0].Variable != extra[0] || !strings.Contains(got[0].String(), want) {
			t.Errorf("problems %v, want one: %s", got, want)
		}
	}
	cfg := load(t, map[string]string{"ROLLBACKD_HANDLER": "http", "ROLLBACKD_HTTP_TARGET": "http://shop/rollbacks"})
	if cfg.HTTPTarget != "http://shop/rollbacks" || len(cfg.Migrations().Extra) != 0 {
		t.Errorf("the target is %q, and %d migrations are the handler's; want none", cfg.HTTPTarget,
			len(cfg.Migrations().Extra))
	}
}

func TestHandlerSQLNeedsItsFile(t *testing.T) {
	got := problems(t, map[string]string{"ROLLBACKD_HANDLER": "sql"})
	if len(got) != 1 || !strings.HasPrefix(got[0].String(), "ROLLBACKD_SQL_FILE is needed by HANDLER=sql") {
		t.Errorf("problems %v, want that the file is needed", got)
	}
	cfg := load(t, map[string]string{"ROLLBACKD_HANDLER": "sql", "ROLLBACKD_SQL_FILE": "/etc/handler.sql"})
	if cfg.SQLFile != "/etc/handler.sql" || len(cfg.Migrations().Extra) != 0 {
		t.Errorf("the file is %q, and %d migrations are the handler's; want none", cfg.SQLFile, len(cfg.Migrations().Extra))
	}
}
