package prometheus

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

const (
	folder     = "../../../deploy/prometheus"
	alertsFile = folder + "/alerts.yaml"
	rulesFile  = folder + "/rules.yaml"
	unitTests  = folder + "/alerts_test.yaml"
	dashboard  = "../../../deploy/grafana/rollbackd.json"
)

func promtool(t *testing.T, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed; make test-prometheus installs it: ", err)
	}
	if out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %v: %v\n%s", args, err, out)
	}
}

func TestPromtoolAcceptsTheRules(t *testing.T) {
	promtool(t, "check", "rules", alertsFile, rulesFile)
}

// fixed are annotations that are the same whatever is wrong: the unit tests would only repeat them.
var fixed = regexp.MustCompile(`(?m)^ {10}(summary|description|runbook_url): [^{\n]*\n`)

// Each alert fires after its time for what it is meant for, with its labels and what its annotations say of these, and
// not for what is sound.
func TestPromtoolRunsTheUnitTestsOfTheAlerts(t *testing.T) {
	text := read(t, unitTests)
	for _, alert := range alertNames(t) {
		assert.Has(t, text, "alertname: "+alert+", exp_alerts: []", "%s has no unit test of %s", unitTests, alert)
	}
	if os.Getenv("ROLLBACKD_TEST_PROMETHEUS") == "" {
		t.Skip("it takes eleven seconds of processor time: make test-prometheus runs it")
	}
	dir := t.TempDir()
	for path, text := range map[string]string{
		alertsFile: fixed.ReplaceAllString(read(t, alertsFile), ""), rulesFile: read(t, rulesFile), unitTests: text,
	} {
		write(t, filepath.Join(dir, filepath.Base(path)), text)
	}
	promtool(t, "test", "rules", filepath.Join(dir, filepath.Base(unitTests)))
}

// A rule is known by no job's name, which is somebody else's choice.
func TestNoRuleKnowsTheNameOfAJob(t *testing.T) {
	for _, file := range []string{alertsFile, rulesFile} {
		assert.Is(t, regexp.MustCompile(`job\s*(=|!=|=~|!~)`).FindString(read(t, file)), "", "%s asks for", file)
	}
}

// Every expression of the dashboard is one that Prometheus understands.
func TestPromtoolAcceptsTheDashboardsExpressions(t *testing.T) {
	var rules strings.Builder
	rules.WriteString("groups:\n  - name: dashboard\n    rules:\n")
	for i, expr := range dashboardExpressions(t) {
		quoted, err := json.Marshal(expr) // a JSON string is one of YAML
		require.OK(t, err)
		fmt.Fprintf(&rules, "      - record: dashboard:expression_%d\n        expr: %s\n", i, quoted)
	}
	path := filepath.Join(t.TempDir(), "dashboard.yaml")
	write(t, path, rules.String())
	promtool(t, "check", "rules", path)
}

func alertNames(t *testing.T) (names []string) {
	t.Helper()
	for _, m := range regexp.MustCompile(`(?m)^ +- alert: (\w+)$`).FindAllStringSubmatch(read(t, alertsFile), -1) {
		names = append(names, m[1])
	}
	require.That(t, len(names) >= 20, "only %d alerts found: the pattern is wrong", len(names))
	return names
}

// dashboardExpressions are those of all panels, with Grafana's variables replaced by what they may stand for.
func dashboardExpressions(t *testing.T) (all []string) {
	t.Helper()
	var board any
	require.OK(t, json.Unmarshal([]byte(read(t, dashboard)), &board))
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if expr, ok := v["expr"].(string); ok {
				all = append(all, strings.NewReplacer("$job", ".+", "$__rate_interval", "5m").Replace(expr))
			}
			for _, inner := range v {
				walk(inner)
			}
		case []any:
			for _, inner := range v {
				walk(inner)
			}
		}
	}
	walk(board)
	require.That(t, len(all) >= 10, "only %d expressions found in %s", len(all), dashboard)
	return all
}

// faster is how much shorter every time span of the rules is in the copy that the test's Prometheus reads.
const faster = 100

var span = regexp.MustCompile(`(for: |\[)(\d+)([smhd])(\n|\])`)

// sped is a file of rules whose spans are all shorter by the same factor, so that their proportions stay.
func sped(t *testing.T, file string) string {
	t.Helper()
	units := map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}
	n := 0
	text := span.ReplaceAllStringFunc(read(t, file), func(found string) string {
		m := span.FindStringSubmatch(found)
		n++
		count := require.Get(strconv.Atoi(m[2]))(t)
		d := time.Duration(count) * units[m[3]] / faster
		return m[1] + strconv.FormatInt(d.Milliseconds(), 10) + "ms" + m[4]
	})
	require.That(t, n >= 5, "only %d time spans found in %s: the pattern is wrong", n, file)
	return text
}

func read(t *testing.T, path string) string {
	t.Helper()
	text := require.Get(os.ReadFile(path))(t)
	return string(text)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	require.OK(t, os.WriteFile(path, []byte(text), 0o600))
}
