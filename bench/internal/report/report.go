package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/rollbackd/rollbackd/bench/internal/figure"
	"github.com/rollbackd/rollbackd/bench/internal/run"
)

// Report is all there is to tell of a run.
type Report struct {
	Started        time.Time
	Took           time.Duration
	Round          time.Duration // how long a round was measured
	Cycles         int           // how often everybody had a turn
	Complete       bool          // all figures, rounds of ten seconds or more, three of them or more
	Machine        Machine
	Servers        []string // how they were set up
	Figures        []figure.Figure
	Contestants    []figure.Contestant
	Curves         []figure.Curve
	Latency        []run.Latency
	LatencyFailing []run.Latency
	Starts         []run.Starts
	Memory         *run.Memory
	LargeBodies    *run.LargeBodies
	Rounds         []run.Round
	Missing        map[string]string // figures that no rounds are made of, and why they could not be measured
}

// Write puts results.json, RESULTS.md and the curves into dir.
func (r Report) Write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the folder of the results: %w", err)
	}
	text, err := r.JSON()
	if err != nil {
		return err
	}
	files := map[string][]byte{"results.json": text, "RESULTS.md": r.Markdown()}
	for _, c := range r.Curves {
		files[c.Key+".svg"] = SVG(c)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return fmt.Errorf("write the results: %w", err)
		}
	}
	return nil
}

// member is one name and value of a JSON object whose order is for people.
type member struct {
	name  string
	value any
}

// JSON has every figure under its key, and beside them the run, the machine, the contestants, the curves and all
// rounds.
func (r Report) JSON() ([]byte, error) {
	members := []member{
		{"run", map[string]any{
			"started": r.Started.UTC().Format(time.RFC3339), "took_seconds": int(r.Took.Seconds()),
			"round_seconds": r.Round.Seconds(), "cycles": r.Cycles, "complete": r.Complete, "servers": r.Servers,
		}},
		{"machine", r.Machine},
	}
	for _, f := range r.Figures {
		members = append(members, member{f.Key, f})
	}
	curves := []member{}
	for _, c := range r.Curves {
		curves = append(curves, member{c.Key, c})
	}
	object, err := marshal(curves)
	if err != nil {
		return nil, err
	}
	members = append(members, member{"contestants", r.Contestants}, member{"curves", json.RawMessage(object)},
		member{"latency_rounds", r.Latency}, member{"latency_failing_rounds", r.LatencyFailing},
		member{"start_rounds", r.Starts}, member{"memory", r.Memory},
		member{"large_bodies", r.LargeBodies}, member{"rounds", r.Rounds}, member{"not_measured", r.Missing})
	text, err := marshal(members)
	if err != nil {
		return nil, err
	}
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, text, "", "  "); err != nil {
		return nil, fmt.Errorf("write the results: %w", err)
	}
	return append(pretty.Bytes(), '\n'), nil
}

// marshal writes an object in the given order.
func marshal(members []member) ([]byte, error) {
	text := []byte{'{'}
	for i, m := range members {
		var value bytes.Buffer
		e := json.NewEncoder(&value)
		e.SetEscapeHTML(false)
		if err := e.Encode(m.value); err != nil {
			return nil, fmt.Errorf("write %s: %w", m.name, err)
		}
		if i > 0 {
			text = append(text, ',')
		}
		text = fmt.Appendf(text, "%q:", m.name)
		text = append(text, bytes.TrimSpace(value.Bytes())...)
	}
	return append(text, '}'), nil
}
