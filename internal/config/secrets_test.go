package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/golden"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// Given each setting of testdata/shown.txt, KEY=value, then it is shown as stands below it. -update rewrites that.
func TestShownValuesMaskSecrets(t *testing.T) {
	golden.Says(t, "testdata/shown.txt", func(line string) string {
		key, raw, _ := strings.Cut(line, "=")
		all := Variables()
		return all[slices.IndexFunc(all, func(v Variable) bool { return v.key == key })].show(raw)
	})
}

// shapes are how people write servers and their passwords: rightly, and in other programs' forms.
var shapes = []string{
	"amqp://u:%s@h/", "amqps://%s@h/", "amqp://u:p@h1/,amqp://u:%s@h2/", "amqp://u:p@h/?password=%s&heartbeat=5",
	"amqp://u:%s@h1,h2/",
	"u:%s@tcp(h:1)/d", "%s@tcp(h:1)/d", "root/%s@tcp(h:1)/d", "u:%s@tcp(h:1)", "u:%s@h:3306/d",
	"u:p@tcp(h:1)/d?password=%s&timeout=5s", "u;%s@tcp(h:1)/d",
	"Server=h;Port=3306;Uid=u;Pwd=%s;Database=d", "Server=tcp(h);Pwd=%s;Database=a/b",
	"host=h user=u password=%s dbname=d", "mysql://u:%s@h/d",
	"jdbc:mysql://h/d?user=u&password=%s", "mysql -hh -uu -p%s d", "u:p@tcp(h:1)/d?x=%s",
	"redis://u:%s@h/", "redis://:%s@h:6379/0", "redis://%s@h/0", "rediss://u:%s@h1,h2/0?master=m",
	"redis://h1,h2/0?master=m&sentinel_password=%s", "h:6379,password=%s",
	"https://u:%s@h/x", "https://h/x/%s", "https://h/?token=%s", "%s", "off %s",
	"amqp://u:p@h/\n%s", "u:p@tcp(h:1)/d\n%s", "redis://:p@h/0\n%s", "redis://:p@h/0\r\n%s\n", "https://h/\n%s",
	"%s\n%[1]s",
}

// alone are the shapes in which the password stands where a user would.
var alone = regexp.MustCompile(`(//|^)%s(@|$)`)

// FuzzPasswordIsNeverShown gives any password, encoded or not, in any shape, to each secret setting: it must not stand
// in what Load says.
func FuzzPasswordIsNeverShown(f *testing.F) {
	for _, seed := range []string{"hunter2", "p@ss:w/rd#", "a,amqp://b", "%zz", "x y", "\n", "?master=", "(h)/",
		"p@h?master=x",
		"a;b=c", "p)/d?timeout=", "@tcp(h)/"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, password string) {
		const marker = "s3cr3tMARK"
		all := Variables()
		password = marker + strings.Trim(password, "@") + marker
		for _, format := range shapes {
			for _, pw := range slices.Compact([]string{password, url.PathEscape(password)}) {
				switch {
				case strings.HasSuffix(format, "%s") && strings.Contains(pw, "@"):
					continue // what follows is a host or a database then, and they are shown
				case alone.MatchString(format) && strings.Contains(pw, ":"):
					continue // what stands before the colon is a user then
				case strings.Contains(pw, "://"):
					continue // several URLs, in some shapes
				}
				checkHidden(t, all, fmt.Sprintf(format, pw), marker)
			}
		}
	})
}

// checkHidden gives the value to all secret settings among these.
func checkHidden(t *testing.T, all []Variable, value, marker string) {
	t.Helper()
	var environ []string
	for _, v := range all {
		if v.secret != nil {
			environ = append(environ, v.Name+"="+value)
		}
		// Each alone too: Load shows a value that is good only where all are.
		if shown := v.show(value); v.secret != nil && value != "" && strings.Contains(shown, marker) {
			t.Errorf("%s=%q is shown as %q", v.Name, value, shown)
		}
	}
	cfg, warnings, err := Load(environ)
	said := fmt.Sprint(cfg, warnings, err)
	assert.That(t, !strings.Contains(said, marker), "%q is shown in %s", value, said)
}

func TestConfigPrintsWithoutSecretsInEveryForm(t *testing.T) {
	cfg := load(t, set("AMQP_URL", "amqp://u:hunter2@h/", "MYSQL_DSN", "u:hunter2@tcp(h:1)/d", "REDIS_URL",
		"redis://:hunter2@h/", "ADMIN_TOKEN", "hunter2hunter2hunter2", "DEAD_LETTER_WEBHOOK", "https://h/hunter2",
		"DEAD_LETTER_WEBHOOK_SECRET", "hunter2"))
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("start", "config", cfg)
	asJSON := require.Get(json.Marshal(cfg))(t)
	for form, text := range map[string]string{
		"%v": fmt.Sprintf("%v", cfg), "%+v": fmt.Sprintf("%+v", cfg), "%#v": fmt.Sprintf("%#v", cfg), "%s": cfg.String(),
		"pointer": fmt.Sprintf("%+v", &cfg), "log": log.String(), "JSON": string(asJSON),
	} {
		assert.That(t, !strings.Contains(text, "hunter2") && strings.Contains(text, "***"),
			"%s shows a secret or no mask: %s", form, text)
	}
}
