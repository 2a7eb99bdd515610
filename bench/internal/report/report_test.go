package report

import (
	"encoding/xml"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/bench/internal/figure"
	"github.com/rollbackd/rollbackd/bench/internal/run"
	"github.com/rollbackd/rollbackd/internal/test/golden"
	"github.com/rollbackd/rollbackd/internal/test/must"
)

// RESULTS.md says what was not reached and why, and which rival wins; results.json has each figure under its key; each
// run is a line of history.jsonl.
func TestAReportIsWritten(t *testing.T) {
	yes, no := true, false
	r := Report{
		Started: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC), Took: 40 * time.Minute, Round: 10 * time.Second, Cycles: 3,
		Complete: true, Machine: Machine{CPU: "Any <CPU>", Cores: 2, Versions: map[string]string{"go": "go1.26"}},
		Figures: []figure.Figure{
			{Key: "vs_plain", What: "x", Unit: "ratio", Value: 0.51, Goal: "≥ 0.5", Reached: &yes,
				Rounds: []float64{0.5, 0.51, 0.52}, Parts: map[string]float64{"rollbackd": 44_000}},
			{Key: "vs_classic", What: "x", Unit: "ratio", Value: 0.9, Goal: "≥ 15", Reached: &no, Cause: "y"},
			{Key: "poison", What: "x", Goal: "≥ 0.7", NotMeasured: "poison could not be measured:\na | b"},
			{Key: "two_daemons", What: "x", Unit: "ratio", Value: 1, Goal: "reported"},
		},
		Contestants: []figure.Contestant{{
			Name: figure.Base, Rate: 44_000, Rounds: []float64{43_000, 44_000, 45_000},
			CPU: run.Sample{"client": 10, "mysql": 30, "rabbitmq": 8, "redis": 4}, Busy: 1.95, Quiet: 2,
		}},
		Results: figure.Results{
			{Contestant: "poison", NotMeasured: "away"},
			{Contestant: "latency", Sample: run.Sample{"fail_every": 20, "p99_ms": 29.5}},
		},
		Curves: []figure.Curve{{Key: "lanes", Title: "Messages <per> second", XLabel: "lanes",
			Default: 4, Points: []figure.Point{
				{X: 1, Contestant: figure.Contestant{Rate: 20_000, Spread: figure.Spread{Min: 19_000, Max: 21_000}}},
				{X: 4, Contestant: figure.Contestant{Rate: 44_000, Spread: figure.Spread{Min: 40_000, Max: 45_000}}},
			}}},
	}
	dir := t.TempDir()
	r.Write(dir)
	r.Remember(dir)
	r.Remember(dir)
	for _, name := range []string{"RESULTS.md", "results.json", "lanes.svg", "history.jsonl"} {
		text := must.Get(os.ReadFile(filepath.Join(dir, name)))
		golden.Is(t, filepath.Join("testdata", name+".golden"), string(text))
		if filepath.Ext(name) == ".svg" {
			must.OK(xml.Unmarshal(text, &struct{}{}))
		}
	}
}
