package repo

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// results is what the documents show of bench/results.json.
type results struct {
	Run struct {
		Started  string `json:"started"`
		Complete bool   `json:"complete"`
	} `json:"run"`
	Machine struct {
		CPU      string            `json:"cpu"`
		Cores    int               `json:"cores"`
		MemoryGB int               `json:"memory_gb"`
		Fsync    float64           `json:"fsync_us"`
		Versions map[string]string `json:"versions"`
	} `json:"machine"`
	Contestants []struct {
		Name      string             `json:"name"`
		PerSecond float64            `json:"per_second"`
		CPU       map[string]float64 `json:"cpu_us_per_delivery"`
	} `json:"contestants"`
}

type shownFigure struct {
	What    string  `json:"what"`
	Unit    string  `json:"unit"`
	Value   float64 `json:"value"`
	Goal    string  `json:"goal"`
	Reached *bool   `json:"reached"`
	Cause   string  `json:"cause"`
}

// shown are the figures in docs/scaling.md, in this order.
var shown = []string{
	"vs_plain", "vs_classic", "vs_watermill", "duplicates_50", "log_5m", "poison", "hot_goods", "redis_off",
	"lock_redlock", "lock_zookeeper", "lock_mysql",
	"failing_1", "failing_5", "failing_20", "all_failing", "classic_failing", "replay", "contended", "mysql_1ms",
	"mysql_1ms_failing_5", "latency_p50_ms", "latency_p99_ms", "latency_failing_5_p99_ms", "start_ms", "rss_mib",
	"large_bodies_rss_mib", "two_daemons", "cpu_us_per_message",
}

// summary are those in README.
var summary = []string{"vs_plain", "vs_classic", "vs_watermill", "latency_p99_ms", "rss_mib"}

func TestThePagesShowTheFiguresOfTheLastBenchmark(t *testing.T) {
	text := []byte(read(t, "bench/results.json"))
	var r results
	all := map[string]json.RawMessage{}
	require.OK(t, errors.Join(json.Unmarshal(text, &r), json.Unmarshal(text, &all)))
	assert.That(t, r.Run.Complete, "bench/results.json is of a trial, not of a whole run")
	generated(t, "docs/scaling.md", "<!-- figures: bench/results.json -->\n", "<!-- end of figures -->",
		r.machine()+"\n"+r.speeds()+"\n"+figureHead+figures(t, all, shown))
	generated(t, "README.md", "<!-- summary: bench/results.json -->\n", "<!-- end of summary -->",
		r.machine()+"\n"+figureHead+r.cost()+figures(t, all, summary))
}

// shownContestants are those whose speed is in docs/scaling.md.
var shownContestants = []string{
	"rollbackd", "plain_each", "plain_multiple", "classic_1", "classic_16", "classic_64", "watermill_1", "watermill_16",
	"watermill_64",
}

const figureHead = "| figure | measured | goal |\n|---|---|---|\n"

func (r results) machine() string {
	m := r.Machine
	mysql := strings.Replace(m.Versions["mysql"], "-MariaDB", " (MariaDB) ", 1)
	return fmt.Sprintf("%s, %d cores, %d GB; an fsync takes %.0f µs; %s, RabbitMQ %s, Redis %s, Go %s; %s.\n", m.CPU,
		m.Cores, m.MemoryGB, m.Fsync, mysql, m.Versions["rabbitmq"], m.Versions["redis"],
		strings.TrimPrefix(m.Versions["go"], "go"), r.Run.Started[:len("2026-01-02")])
}

// speeds has what a message costs all processes too: others who work on the machine change that least.
func (r results) speeds() string {
	var b strings.Builder
	fmt.Fprintf(&b, "| | messages a second | µs of CPU each |\n|---|---|---|\n")
	for _, name := range shownContestants {
		speed, cpu := r.of(name)
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", name, speed, cpu)
	}
	return b.String()
}

func (r results) of(contestant string) (speed, cpu string) {
	for _, c := range r.Contestants {
		if c.Name == contestant {
			us := c.CPU["client"] + c.CPU["mysql"] + c.CPU["rabbitmq"] + c.CPU["redis"]
			return thousands(c.PerSecond), thousands(us)
		}
	}
	return "", ""
}

func (r results) cost() string {
	speed, cpu := r.of("rollbackd")
	row := fmt.Sprintf("| messages a second; µs of CPU each | %s; %s", speed, cpu)
	for i, name := range []string{"plain_each", "classic_64", "watermill_64"} {
		_, cpu := r.of(name)
		row += fmt.Sprintf("%s%s: %s", []string{" (", ", ", ", "}[i], name, cpu)
	}
	return row + ") | |\n"
}

func figures(t *testing.T, all map[string]json.RawMessage, keys []string) string {
	t.Helper()
	var b strings.Builder
	for _, key := range keys {
		var f shownFigure
		err := json.Unmarshal(all[key], &f)
		require.That(t, err == nil, "bench/results.json: %s: %v", key, err)
		unit := strings.TrimSuffix(" "+f.Unit, " ratio")
		missed := ""
		if f.Reached != nil && !*f.Reached {
			missed = strings.TrimSuffix(", not reached: "+f.Cause, ": ")
		}
		fmt.Fprintf(&b, "| `%s`: %s | %.3g%s | %s%s |\n", key, f.What, f.Value, unit, f.Goal, missed)
	}
	return b.String()
}

func thousands(x float64) string {
	n := strconv.Itoa(int(x + 0.5))
	for i := len(n) - 3; i > 0; i -= 3 {
		n = n[:i] + "," + n[i:]
	}
	return n
}
