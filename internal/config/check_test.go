package config

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/golden"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// Given each environment of testdata/load.txt, then Load says what stands below it. A line is the least environment
// with these settings besides, KEY="value", or without them, KEY. -update rewrites what is said.
func TestWhatLoadSays(t *testing.T) {
	golden.Says(t, "testdata/load.txt", func(line string) string {
		_, warnings, err := Load(environ(settingsOf(t, line)))
		said := []string{}
		for _, w := range warnings {
			said = append(said, "warning: "+w.String())
		}
		if bad, ok := errors.AsType[*Error](err); ok {
			for _, p := range bad.Problems {
				said = append(said, p.String())
				if !strings.HasPrefix(p.String(), p.Variable) || !strings.Contains(p.String(), ", for example "+p.Variable+"=") {
					t.Errorf("%s: problem %q does not name %s with an example", line, p, p.Variable)
				}
			}
		} else if len(warnings) == 0 {
			said = append(said, "ok")
		}
		for _, one := range said {
			assert.That(t, !strings.Contains(one, "\n") && !strings.Contains(one, "hunter2") && utf8.ValidString(one),
				"%s: %q is not one printable line without secrets", line, one)
		}
		return strings.Join(said, "\n")
	})
}

// settingsOf reads KEY="value" KEY …
func settingsOf(t *testing.T, line string) map[string]string {
	t.Helper()
	env := map[string]string{}
	for line != "" {
		key := line[:strings.IndexAny(line+" ", "= ")]
		line = line[len(key):]
		env[Prefix+key] = unset
		if rest, ok := strings.CutPrefix(line, "="); ok {
			quoted, err := strconv.QuotedPrefix(rest)
			require.That(t, err == nil, "%s: %v", line, err)
			env[Prefix+key], _ = strconv.Unquote(quoted)
			line = rest[len(quoted):]
		}
		line = strings.TrimSpace(line)
	}
	return env
}

func TestExamplesOfEveryVariableAreAccepted(t *testing.T) {
	for handler, others := range map[string]string{HandlerSQL: "ROLLBACKD_HTTP_T", HandlerHTTP: "ROLLBACKD_SQL_"} {
		all := make(map[string]string)
		for _, v := range Variables() {
			// those that warn that they have no effect, and one that the handler refuses
			if !strings.HasPrefix(v.Name, others) && v.key != "ZOOKEEPER_URL" && v.key != "EMIT" {
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
