package config

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/golden"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/lock"
)

// Load asks other packages whether a URL is good; none of them may leave a client behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// environ is the least environment that Load accepts with some variables changed; the value unset takes one away.
func environ(changes map[string]string) []string {
	env := set("AMQP_URL", "amqp://guest:guest@localhost:5672/", "MYSQL_DSN", "root:secret@tcp(127.0.0.1:3306)/shop",
		"REDIS_URL", "redis://localhost:6379/0")
	maps.Copy(env, changes)
	list := []string{"LANES=7", "nonsense", "=C:=x"} // of other programs
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
	require.OK(t, err)
	require.That(t, len(warnings) == 0, "Load warns: %v", warnings)
	return cfg
}

// problems loads a bad environment and returns its problems.
func problems(t *testing.T, changes map[string]string) []Problem {
	t.Helper()
	cfg, _, err := Load(environ(changes))
	bad, ok := errors.AsType[*Error](err)
	require.That(t, ok, "Load = %v, want *Error", err)
	assert.That(t, cmp.Equal(fieldValues(cfg), fieldValues(Config{})),
		"Load returns %v together with an error, want the zero Config", fieldValues(cfg))
	return bad.Problems
}

// Given the settings of testdata/fields.txt, then the fields have the values that stand below them. -update rewrites
// these.
func TestEveryVariableReachesItsField(t *testing.T) {
	const path = "testdata/fields.txt"
	text := require.Get(os.ReadFile(path))(t)
	settings, _, _ := strings.Cut(string(text), "\t")
	got := settings
	values := fieldValues(load(t, settingsOf(t, strings.ReplaceAll(settings, "\n", " "))))
	for _, field := range slices.Sorted(maps.Keys(values)) {
		got += fmt.Sprintf("\t%s=%+v\n", field, values[field])
	}
	golden.Is(t, path, got)
}

func TestOffAndEmptySwitchOff(t *testing.T) {
	cfg := load(t, set("REDIS_URL", "off", "HTTP_ADDR", "off", "MAX_DEAD_RATE", "off", "COMPENSATE_AFTER", "off",
		"ADMIN_TOKEN", "", "DEAD_LETTER_WEBHOOK", "", "DEAD_LETTER_WEBHOOK_SECRET", ""))
	assert.That(t, cfg.RedisURL == "" && cfg.HTTPAddr == "" && cfg.MaxDead == consumer.Off && cfg.CompensateAfter == 0 &&
		cfg.AdminToken == "" && cfg.DeadLetterWebhook == "" && cfg.DeadLetterWebhookSecret == "",
		"fields are not switched off: %#v", fieldValues(cfg))
}

func TestALockThatIsNotInRedisHasNoRedis(t *testing.T) {
	for kind, sets := range map[string]int{"mysql": 2, "off": 1} {
		cfg, _, err := Load(environ(map[string]string{"ROLLBACKD_LOCK": kind}))
		assert.That(t, err == nil && cfg.RedisURL == "" && len(cfg.Migrations().Extra) == sets,
			"LOCK=%s: %v, Redis %q, %d sets of migrations beside the log's", kind, err, cfg.RedisURL,
			len(cfg.Migrations().Extra))
	}
	assert.Is(t, load(t, map[string]string{"ROLLBACKD_REDIS_URL": "off"}).Lock, lock.KindOff, "REDIS_URL=off: the lock")
	cfg := load(t, set("LOCK", "redlock", "REDIS_URL", "rediss://a,rediss://b,rediss://c", "REDIS_TLS_CA_FILE", "/ca"))
	const want = "rediss://a?ssl_ca_certs=%2Fca,rediss://b?ssl_ca_certs=%2Fca,rediss://c?ssl_ca_certs=%2Fca"
	assert.Is(t, cfg.RedisURL, want, "with a CA the masters")
}

// Given a file as editors leave it, then what nobody sees in it is no part of the value: a byte order mark would be the
// beginning of the user's name, or of a password that stands alone.
func TestValueComesFromAFile(t *testing.T) {
	const dsn = "root:pw@tcp(db)/shop"
	for name, content := range map[string]string{
		"a line's end": dsn + "\r\n", "a byte order mark": "\ufeff" + dsn, "both": "\ufeff" + dsn + "\n",
	} {
		path := filepath.Join(t.TempDir(), "dsn")
		write(t, path, content)
		cfg := load(t, set("MYSQL_DSN", unset, "MYSQL_DSN_FILE", path))
		assert.Is(t, cfg.MySQLDSN, dsn, "%s: MySQLDSN", name)
		assert.Is(t, cfg.Fresh("MYSQL_DSN", func(w Warning) { t.Error(w) })(), dsn, "%s: read again it", name)
	}
}

func TestFileThatGivesNoValueIsRefused(t *testing.T) {
	dir := t.TempDir()
	large := strings.Repeat("x", maxFileBytes+1)
	file := func(name, text string) string {
		write(t, filepath.Join(dir, name), text)
		return filepath.Join(dir, name)
	}
	empty := file("empty", "\n")
	for name, tc := range map[string]struct {
		env  map[string]string
		want string
	}{
		"missing":         {set("GROUP_FILE", filepath.Join(dir, "none")), "no such file"},
		"directory":       {set("GROUP_FILE", dir), "is a directory"},
		"empty name":      {set("GROUP_FILE", ""), "the name is empty"},
		"empty content":   {set("GROUP_FILE", empty), "is empty"},
		"only a mark":     {set("GROUP_FILE", file("mark", "\ufeff\n")), "is empty"},
		"UTF-16":          {set("GROUP_FILE", file("wide", "\xff\xfeg\x00")), "ROLLBACKD_GROUP"},
		"too large":       {set("GROUP_FILE", file("large", large)), "at most 65536 are allowed"},
		"both":            {set("GROUP_FILE", empty, "GROUP", "g"), "ROLLBACKD_GROUP_FILE are both set"},
		"both, one empty": {set("GROUP_FILE", empty, "GROUP", ""), "are both set"},
	} {
		got := problems(t, tc.env)
		assert.That(t, len(got) == 1 && got[0].Variable == "ROLLBACKD_GROUP" && strings.Contains(got[0].String(), tc.want),
			"%s: problems = %v, want one of ROLLBACKD_GROUP saying %q", name, got, tc.want)
	}
}

// A file that never ends, or never begins, is refused in time, and costs no memory.
func TestFileWithoutAnEndIsRefused(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	require.OK(t, syscall.Mkfifo(pipe, 0o600))
	got := problems(t, map[string]string{"ROLLBACKD_GROUP_FILE": "/dev/zero"})
	assert.That(t, len(got) == 1 && strings.Contains(got[0].String(), "neither a file nor a pipe"), "endless: %v", got)
	_, err := readWithin(pipe, 20*time.Millisecond)
	assert.Has(t, fmt.Sprint(err), "nobody writes", "a pipe into which nobody writes")
	// Opened for writing, and nothing comes.
	w := require.Get(os.OpenFile(pipe, os.O_RDWR, 0))(t)
	defer w.Close()
	_, err = readWithin(pipe, 20*time.Millisecond)
	assert.That(t, err != nil && strings.Contains(err.Error(), "nobody writes"), "a pipe that stays open: %v", err)
	require.OK(t, w.SetWriteDeadline(time.Now().Add(20*time.Second)))
	go func() { // more than is allowed, and no end
		for {
			if _, err := w.Write(make([]byte, 4096)); err != nil {
				return
			}
		}
	}()
	_, err = readWithin(pipe, 20*time.Second)
	assert.Has(t, fmt.Sprint(err), "at most 65536 are allowed", "a pipe without an end")
}

func write(t *testing.T, path, content string) {
	t.Helper()
	require.OK(t, os.WriteFile(path, []byte(content), 0o600))
}

// Only a login may change while a process runs; whatever else a file says, the last good value holds and one warning
// says why.
func TestAFileThatIsReadAgainChangesTheLoginAlone(t *testing.T) {
	for _, c := range []struct{ key, first, good, other, bad string }{
		{"MYSQL_DSN", "u:a@tcp(h:1)/d?timeout=5s", "v:b@tcp(h:1)/d?timeout=5s", "u:c@tcp(h:1)/other?timeout=5s", "u:hunter2"},
		// a default that is written out is no other server
		{"MYSQL_DSN", "u:a@tcp(h:3306)/d", "u:b@tcp(h)/d", "u:c@tcp(h2:1)/d", "hunter2\n2"},
		{"AMQP_URL", "amqp://u:a@h1/,amqp://u:a@h2/v", "amqp://u:b@h1/,amqp://u:b@h2/v", "amqp://u:b@h1/",
			"amqp://u:hunter2"},
		{"REDIS_URL", "redis://:a@h/1", "redis://u:b@h/1", "redis://:c@h/2", "redis://hunter2@h/1"},
		{"REDIS_URL", "redis://:a@h/1", "redis://:b@h/1", "rediss://:b@h/1", "hunter2"},
	} {
		t.Run(c.key, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "secret")
			write(t, path, c.first+"\n")
			cfg := load(t, map[string]string{"ROLLBACKD_" + c.key: unset, "ROLLBACKD_" + c.key + "_FILE": path})
			var warnings []string
			current := cfg.Fresh(c.key, func(w Warning) { warnings = append(warnings, w.String()) })
			expect := func(when, want string, warned int) {
				t.Helper()
				for range 2 { // it warns once
					if got := current(); got != want || len(warnings) != warned {
						t.Errorf("%s: %q after %q, want %q after %d warnings", when, got, warnings, want, warned)
					}
				}
			}
			expect("unchanged", c.first, 0)
			write(t, path, c.good+"\n")
			expect("another login", c.good, 0)
			write(t, path, c.other+"\n")
			expect("another server", c.good, 1)
			write(t, path, c.bad+"\n")
			expect("malformed", c.good, 2)
			require.OK(t, os.Remove(path))
			expect("gone", c.good, 3)
			write(t, path, c.first+"\n")
			expect("good again", c.first, 3)
			write(t, path, c.other+"\n")
			expect("another server again", c.first, 4)
			for i, what := range []string{"another server", "malformed", "no such file", "another server"} {
				assert.That(t, strings.HasPrefix(warnings[i], "ROLLBACKD_"+c.key+"_FILE ") && strings.Contains(warnings[i], what) &&
					!strings.Contains(warnings[i], "hunter2"), "warning %d is %q, want one that says %q", i+1, warnings[i], what)
			}
		})
	}
}

func TestAPipeIsReadOnce(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	require.OK(t, syscall.Mkfifo(pipe, 0o600))
	go func() { _ = os.WriteFile(pipe, []byte("u:a@tcp(h:1)/d\n"), 0) }()
	cfg := load(t, map[string]string{"ROLLBACKD_MYSQL_DSN": unset, "ROLLBACKD_MYSQL_DSN_FILE": pipe})
	warn := func(w Warning) { t.Errorf("it warns: %s", w) }
	got := cfg.Fresh("MYSQL_DSN", warn)()
	assert.That(t, got == "u:a@tcp(h:1)/d" && cfg.MySQLDSN == got, "a pipe: %q, and then %q", cfg.MySQLDSN, got)
	assert.Is(t, cfg.Fresh("AMQP_URL", warn)(), cfg.AMQPURLs[0], "a variable")
}

// set are settings beside those that load gives.
func set(pairs ...string) map[string]string {
	env := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		env["ROLLBACKD_"+pairs[i]] = pairs[i+1]
	}
	return env
}

// Given certificates in settings, then every URL and the DSN name them, together with what they name themselves; what
// is shown stays as it was given.
func TestCertificatesOfSettingsStandInTheURLs(t *testing.T) {
	cfg := load(t, set(
		"AMQP_URL", "amqps://u:p@a/?heartbeat=5,amqps://u:p@b?cacertfile=%2Fetc%2Fca.pem",
		"AMQP_TLS_CA_FILE", "/etc/ca.pem", "AMQP_TLS_CERT_FILE", "/etc/c.pem", "AMQP_TLS_KEY_FILE", "/etc/k.pem",
		"MYSQL_DSN", "u:p?x@tcp(h:3306)/d?timeout=5s&ssl-ca=/etc/my ca.pem", "MYSQL_TLS_SERVER_NAME", "db.test",
		"REDIS_URL", "rediss://:p@h:1", "REDIS_TLS_CA_FILE", "ca&b.pem", "HTTP_TLS_CA_FILE", "/etc/http.pem"))
	want := []string{
		"amqps://u:p@a/?heartbeat=5&cacertfile=%2Fetc%2Fca.pem&certfile=%2Fetc%2Fc.pem&keyfile=%2Fetc%2Fk.pem",
		"amqps://u:p@b?cacertfile=%2Fetc%2Fca.pem&certfile=%2Fetc%2Fc.pem&keyfile=%2Fetc%2Fk.pem",
	}
	assert.Equal(t, cfg.AMQPURLs, want, "AMQPURLs")
	assert.Is(t, cfg.MySQLDSN, "u:p?x@tcp(h:3306)/d?timeout=5s&ssl-ca=/etc/my ca.pem&tls-sni-servername=db.test", "DSN")
	assert.Is(t, cfg.RedisURL, "rediss://:p@h:1?ssl_ca_certs=ca%26b.pem", "RedisURL")
	files := []string{"/etc/c.pem", "/etc/ca.pem", "/etc/http.pem", "/etc/my ca.pem", "ca&b.pem"}
	assert.Equal(t, slices.Sorted(maps.Keys(cfg.CertificateEnds())), files, "files with certificates")
	shown := cfg.String()
	assert.That(t, strings.Contains(shown, "ROLLBACKD_AMQP_TLS_CA_FILE=/etc/ca.pem\n") &&
		strings.Contains(shown, "ROLLBACKD_REDIS_URL=rediss://:***@h:1\n"), "shown is\n%s", shown)
}

// Given an AMQP URL in a file and certificates in settings, when the password in the file is changed, then the URL as
// it is now names the certificates too.
func TestAFreshURLNamesItsCertificates(t *testing.T) {
	path := filepath.Join(t.TempDir(), "url")
	write(t, path, "amqps://u:a@h/")
	cfg := load(t, set("AMQP_TLS_CA_FILE", "/ca.pem", "AMQP_URL", unset, "AMQP_URL_FILE", path))
	now := cfg.FreshAMQPURLs(func(w Warning) { t.Error(w) })
	write(t, path, "amqps://u:b@h/")
	assert.Equal(t, now(), []string{"amqps://u:b@h/?cacertfile=%2Fca.pem"}, "the URLs")
}
