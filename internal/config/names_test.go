package config

import (
	"strings"
	"testing"
)

func TestUnknownNameWarnsWithTheNearestKnownOne(t *testing.T) {
	for name, want := range map[string]string{
		"ROLLBACKD_PREFECTH":       "ROLLBACKD_PREFETCH",
		"ROLLBACKD_MAX_ATEMPTS":    "ROLLBACKD_MAX_ATTEMPTS",
		"ROLLBACKD_AMQP_URLS":      "ROLLBACKD_AMQP_URL",
		"ROLLBACKD_REDIS_URI":      "ROLLBACKD_REDIS_URL",
		"ROLLBACKD_RETRY_DELAY":    "ROLLBACKD_RETRY_DELAYS",
		"ROLLBACKD_MYSQL_DNS_FILE": "ROLLBACKD_MYSQL_DSN_FILE",
		"ROLLBACKD_log_level":      "ROLLBACKD_",
	} {
		_, warnings, err := Load(append(environ(nil), name+"=hunter2"))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if len(warnings) != 1 || warnings[0].Variable != name || !strings.Contains(warnings[0].What, "nearest one is "+want) {
			t.Errorf("%s: warnings %v, want one that names %s", name, warnings, want)
		}
		if len(warnings) > 0 && strings.Contains(warnings[0].String(), "hunter2") {
			t.Errorf("%s: the warning shows the value", name)
		}
	}
}

func TestUnknownNameWarnsAlsoWhenSomethingElseIsWrong(t *testing.T) {
	_, warnings, err := Load([]string{"ROLLBACKD_AMPQ_URL=amqp://localhost"})
	if err == nil || len(warnings) != 1 || !strings.HasSuffix(warnings[0].What, "ROLLBACKD_AMQP_URL") {
		t.Errorf("warnings %v, error %v; want the misspelt name beside the missing one", warnings, err)
	}
}

func TestNamesOfTestsAndKubernetesDoNotWarn(t *testing.T) {
	_, warnings, err := Load(append(environ(nil),
		"ROLLBACKD_TEST_AMQP_URL=x", "ROLLBACKD_SERVICE_HOST=10.0.0.1", "ROLLBACKD_SERVICE_PORT=8080",
		"ROLLBACKD_SERVICE_PORT_HTTP=8080",
		"ROLLBACKD_ADMIN_SERVICE_HOST=10.0.0.2", "ROLLBACKD_PORT=tcp://10.0.0.1:8080",
		"ROLLBACKD_PORT_8080_TCP_ADDR=10.0.0.1"))
	if err != nil || len(warnings) != 0 {
		t.Errorf("warnings %v, error %v; want none", warnings, err)
	}
}

func TestEdits(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"abc", "abc", 0}, {"abc", "", 3}, {"abc", "abd", 1}, {"abc", "acb", 1}, {"abc", "bc", 1},
		{"bc", "abc", 1}, {"kitten", "sitting", 3},
	} {
		if got := edits(tc.a, tc.b); got != tc.want {
			t.Errorf("edits(%q, %q) = %d, want %d", tc.a, tc.b, got, tc.want)
		}
	}
}
