package deploy_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/outbox"
)

var variable = regexp.MustCompile(`\bROLLBACKD_[A-Z0-9_]+`)

func TestEveryVariableUsedIsASettingOfTheProgram(t *testing.T) {
	known := make(map[string]bool)
	for _, v := range config.Variables() {
		known[v.Name], known[v.Name+"_FILE"] = true, true
	}
	used := 0
	require.OK(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(path, ".go") {
			return err
		}
		for _, name := range variable.FindAllString(read(t, path), -1) {
			used++
			if !known[name] && name != "ROLLBACKD_SERVICE_" { // Kubernetes' own
				t.Errorf("%s uses %s, which is no setting", path, name)
			}
		}
		return nil
	}))
	assert.AtLeast(t, used, 20, "only variables found: the pattern is wrong")
}

// Messages that meet locks of others come back after a retry delay, each time for longer while HANDLER_TIMEOUT ends in
// the wait: an alert whose look back is shorter than the longest delay would forget the contention between two of them.
func TestTheAlertOnContentionLooksBackFurtherThanARetryDelay(t *testing.T) {
	text := read(t, "prometheus/alerts.yaml")
	rule := regexp.MustCompile(
		`expr: sum by \(job\) \(increase\(rollbackd_contention_total\[(\w+)\]\)\) > 0\n\s+for: (\w+)`)
	found := rule.FindStringSubmatch(text)
	require.That(t, found != nil, "there is no alert on contention")
	lookBack, lasts := require.Get(time.ParseDuration(found[1]))(t), require.Get(time.ParseDuration(found[2]))(t)
	cfg := settings(t)
	assert.AtLeast(t, lookBack, 2*slices.Max(cfg.RetryDelays), "the look back")
	assert.AtLeast(t, lasts, 2*lookBack, "it fires after") // one wait is seen for the look back
}

// Given the alerts, then each says what it means and leads to its section of the runbooks; each section is an alert's.
func TestEachAlertHasItsRunbook(t *testing.T) {
	sections := make(map[string]bool)
	for _, m := range regexp.MustCompile(`(?m)^## (\w+)\n\n\S`).FindAllStringSubmatch(read(t, "../docs/runbooks.md"), -1) {
		sections[m[1]] = true
	}
	alerts := strings.Split(read(t, "prometheus/alerts.yaml"), "- alert: ")[1:]
	assert.AtLeast(t, len(alerts), 20, "only alerts found: the pattern is wrong")
	for _, text := range alerts {
		alert, _, _ := strings.Cut(text, "\n")
		const runbooks = "runbook_url: https://github.com/rollbackd/rollbackd/blob/main/docs/runbooks.md#"
		for _, has := range []string{"severity: ", "summary: ", "description: ",
			runbooks + strings.ToLower(alert) + "\n"} {
			assert.Has(t, text, has, "%s lacks", alert)
		}
		assert.That(t, sections[alert], "%s has no section", alert)
		delete(sections, alert)
	}
	for section := range sections {
		t.Errorf("%s is no alert", section)
	}
}

// An alert on a label value that never occurs is silent for ever.
func TestAlertsUseLabelValuesOfTheProgram(t *testing.T) {
	var outcomes []string
	for _, o := range consumer.Outcomes() {
		outcomes = append(outcomes, o.String())
	}
	known := map[string][]string{
		"outcome": outcomes,
		"name": {consumer.DependencyRabbitMQ, consumer.DependencyMySQL, consumer.DependencyRedis,
			consumer.DependencyLock},
		"why":    {"max_dead_rate", "not_consumed", "ends_connections", "person"},
		"result": {"confirmed", "done", "failed", consumer.CallLater.String()},
		"kind":   {"main", "retry", "backstop", "dead"},
		"state":  {string(outbox.Parked)},
	}
	matchers := regexp.MustCompile(`[{,]\s*([a-z_]+)(?:=|!=)"([^"]*)"`).FindAllStringSubmatch(read(t,
		"prometheus/alerts.yaml"), -1)
	require.That(t, len(matchers) >= 5, "only %d label matchers found: the pattern is wrong", len(matchers))
	for _, m := range matchers {
		if !slices.Contains(known[m[1]], m[2]) {
			t.Errorf("an alert asks for %s=%q, which does not occur", m[1], m[2])
		}
	}
}

// number is what a file says behind a pattern.
func number(t *testing.T, path, pattern string) int64 {
	t.Helper()
	found := regexp.MustCompile(pattern).FindStringSubmatch(read(t, path))
	require.That(t, found != nil, "%s has no %s", path, pattern)
	return require.Get(strconv.ParseInt(found[1], 10, 64))(t)
}

// A stop that does not wait for the drain kills a process that holds claims: their messages then wait for the lease.
func TestTheUnitsStopWaitsLongerThanTheDrain(t *testing.T) {
	cfg := settings(t)
	wait := time.Duration(number(t, "systemd/rollbackd.service", `TimeoutStopSec=(\d+)`)) * time.Second
	assert.AtLeast(t, wait, cfg.DrainTimeout+5*time.Second, "a stop waits only")
}

// The daemon takes 200 MiB with the default budget, and 310 were measured with four bodies of 60 MB.
func TestEveryLimitHasRoomForTheMemoryBudget(t *testing.T) {
	cfg := settings(t)
	needs := 136<<20 + int64(cfg.MemoryBudget) + int64(cfg.Lanes)*(60_000_000+60_000_000/4)
	for path, pattern := range map[string]string{
		"compose.yaml":               `mem_limit: (\d+)m`,
		"helm/rollbackd/values.yaml": `limits: {memory: (\d+)Mi}`,
		"systemd/rollbackd.service":  `MemoryMax=(\d+)M`,
	} {
		assert.AtLeast(t, number(t, path, pattern)<<20, needs, "%s allows only", path)
	}
}

// Given the newest version of the changelog, then the chart is of that one, and so is the image that it takes.
func TestTheChartIsOfTheNewestVersion(t *testing.T) {
	newest := regexp.MustCompile(`(?m)^## \[(\d+\.\d+\.\d+)\]`).FindStringSubmatch(read(t, "../CHANGELOG.md"))
	require.That(t, newest != nil, "the changelog has no version")
	text := read(t, "helm/rollbackd/Chart.yaml")
	for _, line := range []string{"version: " + newest[1], "appVersion: " + newest[1]} {
		assert.That(t, strings.Contains(text, "\n"+line+"\n"), "the chart lacks %q", line)
	}
}

func TestUnitRunsTheInstalledNameAndStopsAtABadConfiguration(t *testing.T) {
	unit := read(t, "systemd/rollbackd.service")
	for _, line := range []string{"ExecStart=/usr/bin/rollbackd run", "RestartPreventExitStatus=2",
		"EnvironmentFile=/etc/rollbackd/rollbackd.env"} {
		assert.Has(t, unit, "\n"+line+"\n", "unit lacks %q", line)
	}
}

func TestImageIsStaticAndNotRoot(t *testing.T) {
	dockerfile := read(t, "Dockerfile")
	stages := regexp.MustCompile(`(?m)^FROM `).FindAllStringIndex(dockerfile, -1)
	require.Is(t, len(stages), 2, "Dockerfile has stages")
	build, final := dockerfile[:stages[1][0]], dockerfile[stages[1][0]:]
	for _, want := range []string{"CGO_ENABLED=0", "./cmd/rollbackd", "internal/cli.version=$VERSION"} {
		assert.Has(t, build, want, "build stage lacks")
	}
	for _, want := range []string{"FROM scratch", "USER 65532:65532", "/usr/bin/rollbackd", `CMD ["run"]`,
		"ca-certificates.crt"} {
		assert.Has(t, final, want, "final stage lacks")
	}
	// An image without a shell can only ask with its own binary.
	assert.That(t, regexp.MustCompile(`(?m)^HEALTHCHECK .* CMD \["/usr/bin/rollbackd", "probe"\]$`).MatchString(final),
		"the final stage asks nobody whether the daemon is alive")
	_, err := os.Stat("../cmd/rollbackd/main.go")
	assert.That(t, err == nil, "what the Dockerfile builds is not there: %v", err)
}

func TestReadmeNamesEveryFile(t *testing.T) {
	readme := read(t, "README.md")
	entries := require.Get(os.ReadDir("."))(t)
	for _, e := range entries {
		name := e.Name()
		if strings.HasSuffix(name, ".go") || strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".dockerignore") ||
			name == "README.md" {
			continue
		}
		assert.Has(t, readme, name, "README.md does not mention")
	}
}

// settings are those of the unit's environment file as systemd reads it: NAME=value lines, quotes around a value
// stripped. It must be a configuration that nobody warns of.
func settings(t *testing.T) config.Config {
	t.Helper()
	const path = "systemd/rollbackd.env"
	var env []string
	for line := range strings.Lines(read(t, path)) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		require.That(t, ok, "%s: %q is not NAME=value", path, line)
		env = append(env, name+"="+strings.Trim(value, "'"))
	}
	cfg, warnings, err := config.Load(env)
	require.That(t, err == nil && len(warnings) == 0, "error %v, warnings %v; want neither", err, warnings)
	return cfg
}

func read(t *testing.T, path string) string {
	t.Helper()
	content := require.Get(os.ReadFile(path))(t)
	return string(content)
}
