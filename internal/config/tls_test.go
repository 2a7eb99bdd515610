package config

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
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
		"REDIS_URL", "rediss://:p@h:1", "REDIS_TLS_CA_FILE", "ca&b.pem", "HTTP_TLS_CA_FILE", "/etc/http.pem"))
	want := []string{
		"amqps://u:p@a/?heartbeat=5&cacertfile=%2Fetc%2Fca.pem&certfile=%2Fetc%2Fc.pem&keyfile=%2Fetc%2Fk.pem",
		"amqps://u:p@b?cacertfile=%2Fetc%2Fca.pem&certfile=%2Fetc%2Fc.pem&keyfile=%2Fetc%2Fk.pem",
	}
	assert.Equal(t, cfg.AMQPURLs, want, "AMQPURLs")
	assert.Is(t, cfg.MySQLDSN, "u:p?x@tcp(h:3306)/d?timeout=5s&ssl-ca=/etc/my ca.pem&tls-sni-servername=db.test",
		"MySQLDSN")
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
