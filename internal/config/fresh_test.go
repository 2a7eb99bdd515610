package config

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

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
