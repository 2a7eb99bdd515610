package report

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/bench/internal/figure"
	"github.com/rollbackd/rollbackd/bench/internal/run"
	"github.com/rollbackd/rollbackd/internal/test/must"
)

func sample() Report {
	yes, no := true, false
	return Report{
		Started: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC), Took: 40 * time.Minute, Round: 10 * time.Second, Cycles: 3,
		Complete: true,
		Machine:  Machine{CPU: "Any <CPU>", Cores: 2, Versions: map[string]string{"go": "go1.26"}},
		Figures: []figure.Figure{
			{Key: "vs_plain", What: "x", Unit: "ratio", Value: 0.51, Goal: "≥ 0.5", Reached: &yes,
				Rounds: []float64{0.5, 0.51, 0.52}, Parts: map[string]float64{"rollbackd": 44_000}},
			{Key: "vs_classic", What: "x", Unit: "ratio", Value: 0.9, Goal: "≥ 15", Reached: &no},
			{Key: "two_daemons", What: "x", Unit: "ratio", Value: 1, Goal: "reported"},
		},
		Contestants: []figure.Contestant{{
			Name: figure.Base, Rate: 44_000, CPU: map[string]float64{"client": 10, "mysql": 30, "rabbitmq": 8, "redis": 4},
			Busy: 1.95,
		}},
		Results: figure.Results{
			Samples: map[string][]run.Sample{figure.FailingRounds: {{"fail_every": 20, "p99_ms": 29.5}}},
		},
		Curves: []figure.Curve{{Key: "lanes", Title: "Messages <per> second", XLabel: "lanes", YLabel: "messages/s",
			Default: 4, Points: []figure.Point{
				{X: 1, Median: 20_000, Rounds: []float64{1}, Spread: figure.Spread{Min: 19_000, Max: 21_000}},
				{X: 4, Median: 44_000, Rounds: []float64{1}, Spread: figure.Spread{Min: 40_000, Max: 45_000}},
			}}},
	}
}

func TestJSONHasEachFigureUnderItsKey(t *testing.T) {
	text := sample().JSON()
	var got struct {
		Plain struct {
			Value   float64
			Goal    string
			Reached *bool
			Rounds  []float64
			Parts   map[string]float64
		} `json:"vs_plain"`
		Two struct{ Reached *bool } `json:"two_daemons"`
		Run struct{ Complete bool }

		Failing []struct {
			Every int64   `json:"fail_every"`
			P99   float64 `json:"p99_ms"`
		} `json:"latency_failing_rounds"`
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	p := got.Plain
	if p.Value != 0.51 || p.Goal != "≥ 0.5" || p.Reached == nil || !*p.Reached || len(p.Rounds) != 3 ||
		p.Parts["rollbackd"] != 44_000 {
		t.Errorf("vs_plain is %+v", p)
	}
	if got.Two.Reached != nil || !got.Run.Complete {
		t.Errorf("got %+v", got)
	}
	if len(got.Failing) != 1 || got.Failing[0].Every != 20 || got.Failing[0].P99 != 29.5 {
		t.Errorf("the rounds of latency among failures are %+v", got.Failing)
	}
}

func TestMarkdownTellsWhatWasNotReachedAndWhoWins(t *testing.T) {
	text := string(sample().Markdown())
	for _, want := range []string{
		"| `vs_plain` | x | **0.51** | ≥ 0.5 | yes |", "| ≥ 15 | **no** |", "**The rival wins in `vs_classic`.**",
		"| reported | – |",
		"rollbackd 44,000", "The processors bound it.", "most of it in mysql (58 %)", "![Messages <per> second](lanes.svg)",
		"Best at 4; the default is 4.",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("RESULTS.md lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "trial run") {
		t.Error("a complete run is no trial")
	}
}

func TestEachRunIsALineOfHistory(t *testing.T) {
	dir := t.TempDir()
	first, second := sample(), sample()
	second.Figures[0].Value = 0.6
	first.Remember(dir)
	second.Remember(dir)
	text := must.Get(os.ReadFile(filepath.Join(dir, "history.jsonl")))
	var plain []float64
	for line := range strings.Lines(string(text)) {
		var run struct {
			CPU     string
			Figures map[string]float64
		}
		if err := json.Unmarshal([]byte(line), &run); err != nil || run.CPU != "Any <CPU>" {
			t.Fatalf("%+v, %v\n%s", run, err, text)
		}
		plain = append(plain, run.Figures["vs_plain"])
	}
	if !slices.Equal(plain, []float64{0.51, 0.6}) {
		t.Errorf("vs_plain of the runs is %v\n%s", plain, text)
	}
}

func TestWhatCouldNotBeMeasuredIsARow(t *testing.T) {
	r := sample()
	r.Figures = append(r.Figures, figure.Figure{
		Key: "poison", What: "x", Goal: "≥ 0.7", NotMeasured: "poison could not be measured:\na | b",
	})
	r.Results.Rounds = []run.Round{{Contestant: "poison", NotMeasured: "away"}}
	text := string(r.Markdown())
	for _, want := range []string{
		"| `poison` | x | **not measured** | ≥ 0.7 | – | – | poison could not be measured: a \\| b |",
		"| poison | **not measured** | away |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("RESULTS.md lacks %q:\n%s", want, text)
		}
	}
	if json := string(r.JSON()); !strings.Contains(json, `"not_measured": "poison could`) {
		t.Errorf("results.json does not say it:\n%s", json)
	}
}

func TestSVGIsWellFormed(t *testing.T) {
	text := SVG(sample().Curves[0])
	d := xml.NewDecoder(strings.NewReader(string(text)))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
	}
	for _, want := range []string{"messages/s", ">lanes<", "Messages &lt;per&gt; second", "44,000", "50,000"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the curve lacks %q", want)
		}
	}
}
