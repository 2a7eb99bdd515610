// Package report writes what was measured: results.json for machines, RESULTS.md and the curves for people, and says on
// what machine. It computes no figures.
package report

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/rollbackd/rollbackd/bench/internal/figure"
	"github.com/rollbackd/rollbackd/bench/internal/run"
	"github.com/rollbackd/rollbackd/internal/test/must"
)

// Report is all there is to tell of a run.
type Report struct {
	Started     time.Time
	Took        time.Duration
	Round       time.Duration // how long a round was measured
	Cycles      int           // how often everybody had a turn
	Complete    bool          // all figures, each as long and as often as the defaults say, or more
	Machine     Machine
	Results     figure.Results
	Figures     []figure.Figure
	Contestants []figure.Contestant
	Curves      []figure.Curve
}

// Write puts results.json, RESULTS.md and the curves into dir.
func (r Report) Write(dir string) {
	must.OK(os.MkdirAll(dir, 0o755))
	files := map[string][]byte{"RESULTS.md": r.Markdown(), "results.json": r.JSON()}
	for _, c := range r.Curves {
		files[c.Key+".svg"] = SVG(c)
	}
	for name, text := range files {
		must.OK(os.WriteFile(filepath.Join(dir, name), text, 0o644))
	}
}

// Remember adds the run as a line to history.jsonl in dir: when, where, on what, and each figure's value.
func (r Report) Remember(dir string) {
	values := map[string]float64{}
	for _, f := range r.Figures {
		if f.NotMeasured == "" {
			values[f.Key] = f.Value
		}
	}
	line := must.Get(json.Marshal(map[string]any{
		"started": r.Started.UTC().Format(time.RFC3339), "took_seconds": int(r.Took.Seconds()), "cycles": r.Cycles,
		"complete": r.Complete, "cpu": r.Machine.CPU,
		"fsync_us": math.Round(r.Machine.FsyncUS), "versions": r.Machine.Versions, "figures": values,
	}))
	file := must.Get(os.OpenFile(filepath.Join(dir, "history.jsonl"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644))
	must.Get(file.Write(append(line, '\n')))
	must.OK(file.Close())
}

// JSON has every figure under its key, and beside them the run, the machine, the contestants, the curves and all
// rounds.
func (r Report) JSON() []byte {
	curves := map[string]figure.Curve{}
	for _, c := range r.Curves {
		curves[c.Key] = c
	}
	all := map[string]any{
		"rounds": r.Results, "curves": curves, "contestants": r.Contestants, "machine": r.Machine,
		"run": map[string]any{
			"started": r.Started.UTC().Format(time.RFC3339), "took_seconds": int(r.Took.Seconds()),
			"round_seconds": r.Round.Seconds(), "cycles": r.Cycles, "complete": r.Complete,
		},
	}
	for _, f := range r.Figures {
		all[f.Key] = f
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	must.OK(e.Encode(all))
	return b.Bytes()
}

//go:embed RESULTS.md.tmpl
var resultsText string

//go:embed curve.svg.tmpl
var curveText string

var (
	forms = template.FuncMap{
		"number": number, "xml": template.HTMLEscapeString,
		"cell":    func(s string) string { return strings.NewReplacer("\n", " ", "|", `\|`).Replace(s) },
		"date":    func(t time.Time) string { return t.UTC().Format("2006-01-02") },
		"minutes": func(d time.Duration) time.Duration { return d.Round(time.Minute) },
	}
	resultsForm = template.Must(template.New("RESULTS.md").Funcs(forms).Parse(resultsText))
	curveForm   = template.Must(template.New("curve.svg").Funcs(forms).Parse(curveText))
)

func fill(form *template.Template, values any) []byte {
	var b bytes.Buffer
	must.OK(form.Execute(&b, values))
	return b.Bytes()
}

// Markdown is RESULTS.md.
func (r Report) Markdown() []byte { return fill(resultsForm, r) }

var english = message.NewPrinter(language.English)

// number writes thousands with commas and small values with what is known of them.
func number(x float64) string {
	if math.Abs(x) < 1000 {
		return strconv.FormatFloat(x, 'g', 4, 64)
	}
	return english.Sprintf("%.0f", x)
}

// SVG draws a curve: the medians joined, a bar from the smallest to the largest round at each. The settings stand side
// by side at equal distances, since each is about twice the one before; the other axis begins at zero.
func SVG(c figure.Curve) []byte {
	const left, width, top, height = 80, 650, 60, 290 // of the plot, in pixels
	type mark struct {
		figure.Point
		At, Y, Low, High float64
		Default          bool
	}
	drawing := struct {
		figure.Curve
		Marks []mark
		Lines []struct{ Y, Value float64 }
	}{Curve: c}
	highest := 0.0
	for _, p := range c.Points {
		highest = max(highest, 1.08*p.Spread.Max) // room for the labels
	}
	step := math.Pow(10, math.Floor(math.Log10(highest))) / 2
	ceiling := step * math.Ceil(highest/step)
	y := func(value float64) float64 { return top + height*(1-value/ceiling) }
	for i, p := range c.Points {
		drawing.Marks = append(drawing.Marks, mark{
			p, left + (float64(i)+0.5)*width/float64(len(c.Points)), y(p.Rate), y(p.Spread.Min), y(p.Spread.Max),
			p.X == c.Default,
		})
	}
	for value := 0.0; value <= ceiling; value += step {
		drawing.Lines = append(drawing.Lines, struct{ Y, Value float64 }{y(value), value})
	}
	return fill(curveForm, drawing)
}

// Machine is where the figures come from.
type Machine struct {
	CPU      string            `json:"cpu"`
	Cores    int               `json:"cores"`
	MemoryGB int               `json:"memory_gb"`
	Kernel   string            `json:"kernel"`
	Virtual  bool              `json:"virtual"`
	FsyncUS  float64           `json:"fsync_us"` // what [run.FixedWork] says of it
	Versions map[string]string `json:"versions"` // of Go, the servers and the rivals' libraries
}

// libraries are those whose versions matter to the figures.
var libraries = []string{
	"github.com/ThreeDotsLabs/watermill", "github.com/ThreeDotsLabs/watermill-amqp/v3",
	"github.com/rabbitmq/amqp091-go", "github.com/go-sql-driver/mysql", "github.com/redis/go-redis/v9",
}

// LookAround describes this machine. versions are the servers'.
func LookAround(versions map[string]string) Machine {
	fs := must.Get(procfs.NewDefaultFS())
	cpu, memory := must.Get(fs.CPUInfo())[0], must.Get(fs.Meminfo())
	// The release up to its first dash: what follows names somebody's build.
	release, _, _ := strings.Cut(strings.TrimSpace(string(must.Get(os.ReadFile("/proc/sys/kernel/osrelease")))), "-")
	m := Machine{
		CPU: cpu.ModelName, Cores: runtime.NumCPU(), MemoryGB: int((*memory.MemTotalBytes + 1<<29) >> 30),
		Kernel: "Linux " + release, Virtual: slices.Contains(cpu.Flags, "hypervisor"), Versions: versions,
		FsyncUS: 1000 * run.FixedWork()["fsync"],
	}
	m.Versions["go"] = runtime.Version()
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range build.Deps {
			if slices.Contains(libraries, dep.Path) {
				m.Versions[dep.Path] = dep.Version
			}
		}
	}
	return m
}
