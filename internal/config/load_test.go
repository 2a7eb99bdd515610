package config

import (
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/lock"
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
	engine := consumer.Defaults()
	engine.AMQPURLs = []string{"amqp://guest:guest@localhost:5672/"}
	engine.MySQLDSN = "root:secret@tcp(127.0.0.1:3306)/shop"
	engine.RedisURL, engine.Prefetch = "redis://localhost:6379/0", 2000
	engine.Group, engine.RoutingKeys = "stock-rollback", []string{"stock.rollback"}
	want := fieldValues(Config{
		Config: engine, Handler: "stock", EmptyRollback: "retry", HTTPAddr: "127.0.0.1:8080", LogLevel: slog.LevelInfo,
		LogFormat: "auto", HTTPTimeout: 5 * time.Second, HTTPConcurrency: 64,
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
		"ROLLBACKD_TOPOLOGY": "check", "ROLLBACKD_RABBITMQ_API_URL": "https://a:p@h:15671/prefix",
		"ROLLBACKD_KEY_FROM": "json:/order_sn,body:sha256", "ROLLBACKD_LOG_TABLE": "trade_mq_consumer_log",
		"ROLLBACKD_HANDLER":        "http",
		"ROLLBACKD_EMPTY_ROLLBACK": "refuse", "ROLLBACKD_MAX_ATTEMPTS": "3", "ROLLBACKD_RETRY_DELAYS": "100ms, 90s",
		"ROLLBACKD_HTTP_TARGET": "http://h/x", "ROLLBACKD_HTTP_TIMEOUT": "4s", "ROLLBACKD_HTTP_CONCURRENCY": "3",
		"ROLLBACKD_HTTP_TOKEN": "t", "ROLLBACKD_HTTP_HMAC_SECRET": "s", "ROLLBACKD_HTTP_TLS_CA_FILE": "ca",
		"ROLLBACKD_HTTP_TLS_CERT_FILE": "cert", "ROLLBACKD_HTTP_TLS_KEY_FILE": "key",
		"ROLLBACKD_LANES": "1", "ROLLBACKD_BATCH_SIZE": "10", "ROLLBACKD_BATCH_LINGER": "0", "ROLLBACKD_PREFETCH": "11",
		"ROLLBACKD_MEMORY_BUDGET": "5120KiB",
		"ROLLBACKD_LEASE":         "6s", "ROLLBACKD_HANDLER_TIMEOUT": "5s", "ROLLBACKD_LOCK_TTL": "3s",
		"ROLLBACKD_DONE_TTL":      "1h",
		"ROLLBACKD_LOCK_ON_ERROR": "pause", "ROLLBACKD_DRAIN_TIMEOUT": "7s", "ROLLBACKD_MAX_DEAD_RATE": "7/2m",
		"ROLLBACKD_BRAKE_PAUSE": "8s",
		"ROLLBACKD_HTTP_ADDR":   ":0", "ROLLBACKD_ADMIN_TOKEN": "abcdefghijklmnop", "ROLLBACKD_LOG_LEVEL": "warn",
		"ROLLBACKD_ADMIN_TOKENS_FILE": "tokens", "ROLLBACKD_ADMIN_PROXY": "x-user 10.0.0.1/8 x-groups=g",
		"ROLLBACKD_BASE_PATH": "/x/y", "ROLLBACKD_UI_HIDE_BODIES": "yes", "ROLLBACKD_UI_REDACT": "/a~1b/*,/c",
		"ROLLBACKD_LOG_FORMAT":    "json",
		"ROLLBACKD_LOG_RETENTION": "0", "ROLLBACKD_MAX_REPLAYS": "2", "ROLLBACKD_COMPENSATE_AFTER": "15m",
		"ROLLBACKD_DEAD_LETTER_WEBHOOK": "https://example.com/x", "ROLLBACKD_DEAD_LETTER_WEBHOOK_SECRET": "s t",
	}))
	want := fieldValues(Config{
		Config: consumer.Config{
			AMQPURLs: []string{"amqp://a:p,w@h1:5672/v", "amqps://b@h2/%2f"}, MySQLDSN: "u@unix(/run/mysqld.sock)/db",
			Lock: lock.KindRedis, RedisURL: "rediss://:pw@h:6380/1", Group: "g é", Exchange: "ex", Queue: "q",
			RoutingKeys: []string{"a.*", "b.#"}, Topology: consumer.TopologyCheck,
			RabbitMQAPIURL: "https://a:p@h:15671/prefix",
			KeyFrom:        "json:/order_sn,body:sha256", LogTable: "trade_mq_consumer_log",
			MaxAttempts: 3, RetryDelays: []time.Duration{100 * time.Millisecond, 90 * time.Second}, Lanes: 1, BatchSize: 10,
			BatchLinger: consumer.Off, Prefetch: 11, MemoryBudget: 5 << 20, Lease: 6 * time.Second,
			HandlerTimeout: 5 * time.Second, LockTTL: 3 * time.Second, DoneTTL: time.Hour, LockOnError: "pause",
			DrainTimeout: 7 * time.Second, MaxDead: 7, MaxDeadWindow: 2 * time.Minute, BrakePause: 8 * time.Second,
			LogRetention: consumer.Off, MaxReplays: 2, CompensateAfter: 15 * time.Minute,
		},
		HTTPTarget: "http://h/x", HTTPTimeout: 4 * time.Second, HTTPConcurrency: 3, HTTPToken: "t", HTTPHMACSecret: "s",
		HTTPTLSCAFile: "ca", HTTPTLSCertFile: "cert", HTTPTLSKeyFile: "key",
		Handler: "http", EmptyRollback: "refuse", HTTPAddr: ":0", AdminToken: "abcdefghijklmnop",
		AdminTokensFile: "tokens", BasePath: "/x/y", UIHideBodies: true, UIRedact: [][]string{{"a/b", "*"}, {"c"}},
		AdminProxy: Proxy{
			Header: "X-User", Peers: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, GroupHeader: "X-Groups", Group: "g",
		},
		LogLevel: slog.LevelWarn, LogFormat: "json",
		DeadLetterWebhook: "https://example.com/x", DeadLetterWebhookSecret: "s t",
	})
	if diff := cmp.Diff(want, got, prefixes); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
}

func TestOffAndEmptySwitchOff(t *testing.T) {
	cfg := load(t, map[string]string{
		"ROLLBACKD_REDIS_URL": "off", "ROLLBACKD_HTTP_ADDR": "off", "ROLLBACKD_MAX_DEAD_RATE": "off",
		"ROLLBACKD_COMPENSATE_AFTER": "off",
		"ROLLBACKD_ADMIN_TOKEN":      "", "ROLLBACKD_DEAD_LETTER_WEBHOOK": "", "ROLLBACKD_DEAD_LETTER_WEBHOOK_SECRET": "",
	})
	if cfg.RedisURL != "" || cfg.HTTPAddr != "" || cfg.MaxDead != consumer.Off || cfg.CompensateAfter != 0 ||
		cfg.AdminToken != "" || cfg.DeadLetterWebhook != "" || cfg.DeadLetterWebhookSecret != "" {
		t.Errorf("fields are not switched off: %#v", fieldValues(cfg))
	}
}

// There are two ways to say that there is no lock, and a lock that is not in Redis needs none.
func TestALockThatIsNotInRedisNeedsNoRedis(t *testing.T) {
	without := func(kind string) []string {
		all := environ(map[string]string{"ROLLBACKD_LOCK": kind})
		return slices.DeleteFunc(all, func(entry string) bool { return strings.HasPrefix(entry, "ROLLBACKD_REDIS_URL=") })
	}
	for kind, sets := range map[lock.Kind]int{lock.KindMySQL: 2, lock.KindOff: 1} {
		cfg, warnings, err := Load(without(string(kind)))
		if err != nil || len(warnings) != 0 || cfg.Lock != kind || len(cfg.Migrations().Extra) != sets {
			t.Errorf("LOCK=%s without a Redis: %v, %v, lock %q, %d sets of migrations beside the log's", kind, err, warnings,
				cfg.Lock, len(cfg.Migrations().Extra))
		}
		cfg, warnings, err = Load(environ(map[string]string{"ROLLBACKD_LOCK": string(kind)}))
		if err != nil || len(warnings) != 1 || cfg.RedisURL != "" ||
			!strings.Contains(warnings[0].String(), "REDIS_URL has no effect: LOCK is "+string(kind)) {
			t.Errorf("LOCK=%s with a Redis: %v, %v, Redis %q; want a warning, and that nobody asks it", kind, err, warnings,
				cfg.RedisURL)
		}
	}
	const want = "ROLLBACKD_REDIS_URL is not set"
	if _, _, err := Load(without("zookeeper")); err == nil ||
		!strings.Contains(err.Error(), "ROLLBACKD_ZOOKEEPER_URL is not set") {
		t.Errorf("LOCK=zookeeper without its servers: %v", err)
	}
	if _, _, err := Load(without("redis")); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("LOCK=redis without a Redis: %v", err)
	}
	if cfg := load(t, map[string]string{"ROLLBACKD_REDIS_URL": "off"}); cfg.Lock != lock.KindOff {
		t.Errorf("REDIS_URL=off: the lock is %q, want off", cfg.Lock)
	}
}

// Two masters are worth less than one, because both are needed; and an even number less than the one below it.
func TestRedlockNeedsAnOddNumberOfMasters(t *testing.T) {
	for list, want := range map[string]string{
		"redis://a/0":                                      "names 1: LOCK=redlock needs an odd number",
		"redis://a/0,redis://b/0":                          "names 2:",
		"redis://a,rediss://b,redis://c,redis://:p@d":      "names 4:",
		"redis://a, rediss://b, redis://:p@c?cluster=true": "",
		"redis://a,redis://b,redis://:p@a:6379/1":          "names a:6379 twice",
		"redis://s?master=a,redis://s?master=b,redis://c":  "",
	} {
		cfg, _, err := Load(environ(map[string]string{"ROLLBACKD_LOCK": "redlock", "ROLLBACKD_REDIS_URL": list}))
		if want == "" && (err != nil || cfg.RedisURL != list) || want != "" && (err == nil || !strings.Contains(err.Error(),
			want)) {
			t.Errorf("%s: %v, %q; want %q", list, err, cfg.RedisURL, want)
		}
	}
	cfg := load(t, map[string]string{
		"ROLLBACKD_LOCK": "redlock", "ROLLBACKD_REDIS_URL": "rediss://a,rediss://b,rediss://c",
		"ROLLBACKD_REDIS_TLS_CA_FILE": "/ca",
	})
	const want = "rediss://a?ssl_ca_certs=%2Fca,rediss://b?ssl_ca_certs=%2Fca,rediss://c?ssl_ca_certs=%2Fca"
	if cfg.RedisURL != want {
		t.Errorf("with a CA the masters are %q, want %q", cfg.RedisURL, want)
	}
}

func TestPrefetchFollowsTheBatchSize(t *testing.T) {
	if got := load(t, map[string]string{"ROLLBACKD_BATCH_SIZE": "7"}).Prefetch; got != 14 {
		t.Errorf("Prefetch = %d, want twice the batch size 7", got)
	}
}

// Given a file as editors leave it, then what nobody sees in it is no part of the value: a byte order mark would be the
// beginning of the user's name, or of a password that stands alone.
func TestValueComesFromAFile(t *testing.T) {
	const dsn = "root:pw@tcp(db)/shop"
	for name, content := range map[string]string{
		"a line's end": dsn + "\r\n", "a byte order mark": "\ufeff" + dsn, "both": "\ufeff" + dsn + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "dsn")
			write(t, path, content)
			cfg := load(t, map[string]string{"ROLLBACKD_MYSQL_DSN": unset, "ROLLBACKD_MYSQL_DSN_FILE": path})
			if cfg.MySQLDSN != dsn {
				t.Errorf("MySQLDSN = %q, want %q", cfg.MySQLDSN, dsn)
			}
			if fresh := cfg.Fresh("MYSQL_DSN", func(w Warning) { t.Error(w) })(); fresh != dsn {
				t.Errorf("read again it is %q, want %q", fresh, dsn)
			}
		})
	}
}

func TestFileThatGivesNoValueIsRefused(t *testing.T) {
	dir := t.TempDir()
	empty, large := filepath.Join(dir, "empty"), filepath.Join(dir, "large")
	mark, wide := filepath.Join(dir, "mark"), filepath.Join(dir, "wide")
	write(t, empty, "\n")
	write(t, mark, "\ufeff\n")
	write(t, wide, "\xff\xfeg\x00") // UTF-16
	write(t, large, strings.Repeat("x", maxFileBytes+1))
	for name, tc := range map[string]struct {
		env  map[string]string
		want string
	}{
		"missing":       {map[string]string{"ROLLBACKD_GROUP_FILE": filepath.Join(dir, "none")}, "no such file"},
		"directory":     {map[string]string{"ROLLBACKD_GROUP_FILE": dir}, "is a directory"},
		"empty name":    {map[string]string{"ROLLBACKD_GROUP_FILE": ""}, "the name is empty"},
		"empty content": {map[string]string{"ROLLBACKD_GROUP_FILE": empty}, "is empty"},
		"only a mark":   {map[string]string{"ROLLBACKD_GROUP_FILE": mark}, "is empty"},
		"UTF-16":        {map[string]string{"ROLLBACKD_GROUP_FILE": wide}, "ROLLBACKD_GROUP"},
		"too large":     {map[string]string{"ROLLBACKD_GROUP_FILE": large}, "at most 65536 are allowed"},
		"both": {map[string]string{"ROLLBACKD_GROUP_FILE": empty, "ROLLBACKD_GROUP": "g"},
			"ROLLBACKD_GROUP_FILE are both set"},
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

// A file that never ends, or never begins, is refused in time, and costs no memory.
func TestFileWithoutAnEndIsRefused(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	got := problems(t, map[string]string{"ROLLBACKD_GROUP_FILE": "/dev/zero"})
	if len(got) != 1 || !strings.Contains(got[0].String(), "neither a file nor a pipe") {
		t.Errorf("an endless device: %v", got)
	}
	if _, err := readWithin(pipe, 20*time.Millisecond); err == nil || !strings.Contains(err.Error(), "nobody writes") {
		t.Errorf("a pipe into which nobody writes: %v", err)
	}
	// Opened for writing, and nothing comes.
	w, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, err := readWithin(pipe, 20*time.Millisecond); err == nil || !strings.Contains(err.Error(), "nobody writes") {
		t.Errorf("a pipe that stays open: %v", err)
	}
	if err := w.SetWriteDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	go func() { // more than is allowed, and no end
		for {
			if _, err := w.Write(make([]byte, 4096)); err != nil {
				return
			}
		}
	}()
	if _, err := readWithin(pipe, 20*time.Second); err == nil ||
		!strings.Contains(err.Error(), "at most 65536 are allowed") {
		t.Errorf("a pipe without an end: %v", err)
	}
}

func TestValueComesFromAPipe(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	go func() { written <- os.WriteFile(pipe, []byte("root:pw@tcp(db)/shop\n"), 0) }()
	cfg := load(t, map[string]string{"ROLLBACKD_MYSQL_DSN": unset, "ROLLBACKD_MYSQL_DSN_FILE": pipe})
	if err := <-written; err != nil || cfg.MySQLDSN != "root:pw@tcp(db)/shop" {
		t.Errorf("MySQLDSN = %q, %v", cfg.MySQLDSN, err)
	}
}

// Where the name of a secret's file is asked for, people put the secret.
func TestSecretInPlaceOfAFileIsNotShown(t *testing.T) {
	for _, name := range []string{"root:hunter2@tcp(db)/shop", "hunter2", "/hunter2@h", "hunter2\n/x"} {
		got := problems(t, map[string]string{"ROLLBACKD_MYSQL_DSN": unset, "ROLLBACKD_MYSQL_DSN_FILE": name})
		if len(got) != 1 || strings.Contains(got[0].String(), "hunter2") {
			t.Errorf("problems = %v", got)
		}
	}
	got := problems(t, map[string]string{"ROLLBACKD_MYSQL_DSN": unset, "ROLLBACKD_MYSQL_DSN_FILE": "/run/secrets/none"})
	if len(got) != 1 || !strings.Contains(got[0].String(), `"/run/secrets/none": no such file`) {
		t.Errorf("problems = %v, want the name of a file that is missing", got)
	}
}

func TestSecondLineOfASecretFileIsRefusedAndNotShown(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dsn")
	write(t, path, "root:pw@tcp(db)/shop\nhunter2\n")
	got := problems(t, map[string]string{"ROLLBACKD_MYSQL_DSN": unset, "ROLLBACKD_MYSQL_DSN_FILE": path})
	if len(got) != 1 || !strings.Contains(got[0].String(), "second line") || strings.Contains(got[0].String(), "hunter2") {
		t.Errorf("problems = %v, want one that says: second line", got)
	}
}

func TestAllProblemsAreReportedAtOnceInTheOrderOfTheDocumentation(t *testing.T) {
	got := problems(t, map[string]string{
		"ROLLBACKD_LOG_LEVEL": "loud", "ROLLBACKD_AMQP_URL": unset, "ROLLBACKD_LEASE": "10s", "ROLLBACKD_GROUP": "",
		"ROLLBACKD_LANES": "x",
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
	wantText := `ROLLBACKD_GROUP is set but empty: give a value, or leave it out for the default, ` +
		`for example ROLLBACKD_GROUP=stock-rollback
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
		if p := bad.Problems[i]; p.Variable != name || !strings.HasPrefix(p.String(), name+" is not set,") {
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
