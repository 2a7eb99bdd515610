package repo

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// results is what README shows of bench/results.json.
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
		Name      string  `json:"name"`
		PerSecond float64 `json:"per_second"`
	} `json:"contestants"`
}

type shownFigure struct {
	What    string  `json:"what"`
	Unit    string  `json:"unit"`
	Value   float64 `json:"value"`
	Goal    string  `json:"goal"`
	Reached *bool   `json:"reached"`
}

// shown are the figures in README, in this order.
var shown = []string{
	"vs_plain", "vs_classic", "vs_watermill", "duplicates_50", "log_5m", "poison", "hot_goods", "redis_off",
	"latency_p50_ms", "latency_p99_ms", "rss_mib", "two_daemons", "cpu_us_per_message",
}

func TestReadmeShowsTheFiguresOfTheLastBenchmark(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "bench", "results.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r results
	var all map[string]json.RawMessage
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	if !r.Run.Complete {
		t.Error("bench/results.json is of a trial, not of a whole run")
	}
	want := r.table(t, all)
	if diff := cmp.Diff(want, between(t, "README.md", "<!-- figures: bench/results.json -->\n", "<!-- end of figures -->")); diff != "" {
		t.Errorf("README.md shows other figures than bench/results.json. It should show:\n%s\n%s", want, diff)
	}
}

func (r results) table(t *testing.T, all map[string]json.RawMessage) string {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %d cores, %d GB; an fsync takes %.0f µs; %s, RabbitMQ %s, Redis %s, Go %s; %s.\n\n", r.Machine.CPU, r.Machine.Cores, r.Machine.MemoryGB,
		r.Machine.Fsync, strings.Replace(r.Machine.Versions["mysql"], "-MariaDB", " (MariaDB) ", 1), r.Machine.Versions["rabbitmq"], r.Machine.Versions["redis"],
		strings.TrimPrefix(r.Machine.Versions["go"], "go"), r.Run.Started[:len("2026-01-02")])
	fmt.Fprintf(&b, "| messages a second | |\n|---|---|\n")
	for _, c := range r.Contestants {
		switch c.Name {
		case "rollbackd", "plain_each", "plain_multiple", "classic_1", "classic_16", "classic_64", "watermill_1", "watermill_16", "watermill_64":
			fmt.Fprintf(&b, "| `%s` | %s |\n", c.Name, thousands(c.PerSecond))
		}
	}
	fmt.Fprintf(&b, "\n| figure | measured | goal |\n|---|---|---|\n")
	for _, key := range shown {
		var f shownFigure
		if err := json.Unmarshal(all[key], &f); err != nil {
			t.Fatalf("bench/results.json: %s: %v", key, err)
		}
		unit := " " + f.Unit
		if f.Unit == "ratio" {
			unit = ""
		}
		missed := ""
		if f.Reached != nil && !*f.Reached {
			missed = ", not reached"
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
