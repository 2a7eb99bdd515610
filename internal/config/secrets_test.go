package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"testing"
)

func TestShownValuesMaskSecrets(t *testing.T) {
	for _, tc := range []struct{ key, raw, want string }{
		{"AMQP_URL", "amqp://u:hunter2@h:5672/v", "amqp://u:***@h:5672/v"},
		{"AMQP_URL", "amqp://u:a@h1/,amqps://u:b@h2/", "amqp://u:***@h1/,amqps://u:***@h2/"},
		{"AMQP_URL", "amqp://h:5672", "amqp://h:5672"},
		{"AMQP_URL", "amqp://u:a/b@h", "amqp://u:***@h"},
		{"AMQP_URL", "amqp://u:a@b@h", "amqp://u:***@h"},
		{"AMQP_URL", "amqp://u:a,b@h", "amqp://u:***@h"},
		{"AMQP_URL", "amqp://u:a,x://b@h", "amqp://u:***@h"},
		{"AMQP_URL", "amqp://u:hunter2", "amqp://u:***"},
		{"AMQP_URL", "u:hunter2@h", "u:***"},
		{"AMQP_URL", "amqps://h/?cacertfile=/ca.pem&password=x", "amqps://h/?cacertfile=/ca.pem&password=***"},
		{"MYSQL_DSN", "u:p@tcp(h:3306)/d?x=y", "u:***@tcp(h:3306)/d?x=y"},
		{"MYSQL_DSN", "u:p@w/:@tcp(h)/d", "u:***@tcp(h)/d"},
		{"MYSQL_DSN", "u:hunter2/d", "u:***"},
		{"MYSQL_DSN", "u:hunter2tcp(h:3306)/d", "u:***(h:3306)/d"},
		{"MYSQL_DSN", "u@unix(/s)/d", "u@unix(/s)/d"},
		{"MYSQL_DSN", "mysql://u:p@h/d", "mysql:***@h/d"},
		{"REDIS_URL", "redis://:p@h/0", "redis://:***@h/0"},
		{"REDIS_URL", "redis://h1:1,[::1]:2,h3/0?master=m", "redis://h1:1,[::1]:2,h3/0?master=m"},
		{"REDIS_URL", "redis://h1,h2/0?master=m&sentinel_password=p", "redis://h1,h2/0?master=m&sentinel_password=***"},
		{"REDIS_URL", "redis://u:hunter2,h2:1", "redis://u:***"},
		{"REDIS_URL", "off", "off"},
		{"ADMIN_TOKEN", "hunter2", "***"},
		{"ADMIN_TOKEN", "", ""},
		{"DEAD_LETTER_WEBHOOK", "https://u:p@example.com/T0/B1/x?y=z", "https://example.com/***"},
		{"DEAD_LETTER_WEBHOOK", "https://example.com", "https://example.com"},
		{"DEAD_LETTER_WEBHOOK", "example.com/x", "***"},
		{"DEAD_LETTER_WEBHOOK_SECRET", "hunter2", "***"},
		{"GROUP", "a:b@c", "a:b@c"},
	} {
		l := loader{variables: Variables()}
		if got := l.variable(tc.key).show(tc.raw); got != tc.want {
			t.Errorf("%s=%s is shown as %q, want %q", tc.key, tc.raw, got, tc.want)
		}
	}
}

// FuzzPasswordIsNeverShown gives any password, encoded or not, to URL and DSN: it must not stand in what Load says.
func FuzzPasswordIsNeverShown(f *testing.F) {
	for _, seed := range []string{"hunter2", "p@ss:w/rd#", "a,amqp://b", "%zz", "x y", "\n", "(h)/"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, password string) {
		const marker = "s3cr3tMARK"
		password = marker + strings.Trim(password, "@") + marker
		for _, pw := range []string{password, url.PathEscape(password)} {
			cfg, warnings, err := Load([]string{
				"ROLLBACKD_AMQP_URL=amqp://u:" + pw + "@h/", "ROLLBACKD_MYSQL_DSN=u:" + pw + "@tcp(h:1)/d", "ROLLBACKD_REDIS_URL=redis://u:" + pw + "@h/",
				"ROLLBACKD_ADMIN_TOKEN=" + pw, "ROLLBACKD_DEAD_LETTER_WEBHOOK=https://u:" + pw + "@h/" + pw, "ROLLBACKD_DEAD_LETTER_WEBHOOK_SECRET=" + pw,
			})
			if said := fmt.Sprint(cfg, warnings, err); strings.Contains(said, marker) {
				t.Errorf("password %q is shown in %s", pw, said)
			}
		}
	})
}

func TestConfigPrintsWithoutSecretsInEveryForm(t *testing.T) {
	cfg := load(t, map[string]string{
		"ROLLBACKD_AMQP_URL": "amqp://u:hunter2@h/", "ROLLBACKD_MYSQL_DSN": "u:hunter2@tcp(h:1)/d", "ROLLBACKD_REDIS_URL": "redis://:hunter2@h/",
		"ROLLBACKD_ADMIN_TOKEN": "hunter2hunter2hunter2", "ROLLBACKD_DEAD_LETTER_WEBHOOK": "https://h/hunter2", "ROLLBACKD_DEAD_LETTER_WEBHOOK_SECRET": "hunter2",
	})
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("start", "config", cfg)
	asJSON, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for form, text := range map[string]string{
		"%v": fmt.Sprintf("%v", cfg), "%+v": fmt.Sprintf("%+v", cfg), "%#v": fmt.Sprintf("%#v", cfg), "%s": cfg.String(),
		"pointer": fmt.Sprintf("%+v", &cfg), "log": log.String(), "JSON": string(asJSON),
	} {
		if strings.Contains(text, "hunter2") || !strings.Contains(text, "***") {
			t.Errorf("%s shows a secret or no mask: %s", form, text)
		}
	}
}
