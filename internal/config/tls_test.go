package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

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
		"REDIS_URL", "rediss://:p@h:1", "REDIS_TLS_CA_FILE", "ca&b.pem"))
	want := []string{
		"amqps://u:p@a/?heartbeat=5&cacertfile=%2Fetc%2Fca.pem&certfile=%2Fetc%2Fc.pem&keyfile=%2Fetc%2Fk.pem",
		"amqps://u:p@b?cacertfile=%2Fetc%2Fca.pem&certfile=%2Fetc%2Fc.pem&keyfile=%2Fetc%2Fk.pem",
	}
	if !slices.Equal(cfg.AMQPURLs, want) {
		t.Errorf("AMQPURLs = %q, want %q", cfg.AMQPURLs, want)
	}
	if want := "u:p?x@tcp(h:3306)/d?timeout=5s&ssl-ca=/etc/my ca.pem&tls-sni-servername=db.test"; cfg.MySQLDSN != want {
		t.Errorf("MySQLDSN = %q, want %q", cfg.MySQLDSN, want)
	}
	if want := "rediss://:p@h:1?ssl_ca_certs=ca%26b.pem"; cfg.RedisURL != want {
		t.Errorf("RedisURL = %q, want %q", cfg.RedisURL, want)
	}
	if shown := cfg.String(); !strings.Contains(shown, "ROLLBACKD_AMQP_TLS_CA_FILE=/etc/ca.pem\n") ||
		!strings.Contains(shown, "ROLLBACKD_REDIS_URL=rediss://:***@h:1\n") {
		t.Errorf("shown is\n%s", shown)
	}
}

// Given settings of certificates that contradict the URL or DSN, then the first of them is refused, and says why.
func TestCertificatesThatContradictAreRefused(t *testing.T) {
	for _, tc := range []struct {
		env  map[string]string
		name string
		want string
	}{
		{set("AMQP_TLS_CA_FILE", "/a"), "AMQP_TLS_CA_FILE", "begins with amqp://, which is not encrypted: write amqps://"},
		{set("REDIS_TLS_CA_FILE", "/a"), "REDIS_TLS_CA_FILE",
			"begins with redis://, which is not encrypted: write rediss://"},
		{set("AMQP_URL", "amqps://h/,amqp://i/", "AMQP_TLS_SERVER_NAME", "n"), "AMQP_TLS_SERVER_NAME", "not encrypted"},
		{set("AMQP_URL", "amqps://h/?cacertfile=/b", "AMQP_TLS_CA_FILE", "/a"), "AMQP_TLS_CA_FILE",
			"ROLLBACKD_AMQP_TLS_CA_FILE and cacertfile in ROLLBACKD_AMQP_URL differ: keep one"},
		{set("AMQP_URL", "amqps://h/", "AMQP_TLS_CERT_FILE", "/a"), "AMQP_TLS_CERT_FILE", "belong together"},
		{set("MYSQL_DSN", "u:p@tcp(h)/d?ssl-cert=/b&ssl-key=k", "MYSQL_TLS_CERT_FILE", "/a", "MYSQL_TLS_KEY_FILE", "k"),
			"MYSQL_TLS_CERT_FILE", "ssl-cert in ROLLBACKD_MYSQL_DSN differ"},
		{set("MYSQL_DSN", "u:p@tcp(h)/d?tls=false", "MYSQL_TLS_CA_FILE", "/a"), "MYSQL_TLS_CA_FILE", "says tls=false"},
		{set("MYSQL_DSN", "u:p@tcp(h)/d?tls=preferred", "MYSQL_TLS_CA_FILE", "/a"), "MYSQL_TLS_CA_FILE",
			"says tls=preferred, which goes on without encryption"},
		{set("MYSQL_DSN", "u:p@tcp(h)/d?tls=skip-verify", "MYSQL_TLS_CA_FILE", "/a"), "MYSQL_TLS_CA_FILE",
			"looks at no certificate, and a CA is named"},
		{set("MYSQL_DSN", "u:p@unix(/s)/d", "MYSQL_TLS_CA_FILE", "/a"), "MYSQL_TLS_CA_FILE", "Unix socket"},
		{set("MYSQL_TLS_KEY_FILE", "/a"), "MYSQL_TLS_KEY_FILE", "belong together"},
		{set("REDIS_URL", "rediss://h?ssl_keyfile=/b&ssl_certfile=/c", "REDIS_TLS_KEY_FILE", "/a"), "REDIS_TLS_KEY_FILE",
			"ssl_keyfile in ROLLBACKD_REDIS_URL differ"},
		{set("AMQP_URL", "amqp://h/?cacertfile=/b"), "AMQP_URL", "names certificates"},
		{set("AMQP_URL", "amqps://h/?certfile=/b"), "AMQP_URL", "names only one of certfile and keyfile"},
		{set("REDIS_URL", "redis://h?ssl_ca_certs=/b"), "REDIS_URL", "names certificates"},
		{set("MYSQL_DSN", "u:p@tcp(h)/d?ssl-ca="), "MYSQL_DSN", "has ssl-ca without a value"},
		{set("AMQP_URL", "amqps://h/", "AMQP_TLS_SERVER_NAME", "https://h"), "AMQP_TLS_SERVER_NAME", "without a port"},
	} {
		got := problems(t, tc.env)
		if len(got) != 1 || got[0].Variable != "ROLLBACKD_"+tc.name || !strings.Contains(got[0].String(), tc.want) {
			t.Errorf("%v: problems %v, want one of %s: %s", tc.env, got, tc.name, tc.want)
		}
	}
}

func TestCertificatesForNoRedisAreAWarning(t *testing.T) {
	_, warnings, err := Load(environ(set("REDIS_URL", "off", "REDIS_TLS_CA_FILE", "/a")))
	if err != nil || len(warnings) != 1 || !strings.Contains(warnings[0].String(), "REDIS_URL is off") {
		t.Errorf("warnings %v, error %v; want one that it has no effect", warnings, err)
	}
}

// Given an AMQP URL in a file and certificates in settings, when the password in the file is changed, then the URL as
// it is now names the certificates too.
func TestAFreshURLNamesItsCertificates(t *testing.T) {
	path := filepath.Join(t.TempDir(), "url")
	write(t, path, "amqps://u:a@h/")
	env := set("AMQP_TLS_CA_FILE", "/ca.pem", "AMQP_URL_FILE", path)
	env["ROLLBACKD_AMQP_URL"] = unset
	cfg := load(t, env)
	now := cfg.FreshAMQPURLs(func(w Warning) { t.Error(w) })
	if err := os.WriteFile(path, []byte("amqps://u:b@h/"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, want := now(), []string{"amqps://u:b@h/?cacertfile=%2Fca.pem"}; !slices.Equal(got, want) {
		t.Errorf("the URLs are %q, want %q", got, want)
	}
}
