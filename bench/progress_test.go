package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/bench/internal/figure"
	"github.com/rollbackd/rollbackd/bench/internal/run"
)

func open(t *testing.T, path string, what any, resume bool) *progress {
	t.Helper()
	p, err := openProgress(path, what, resume)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func TestARunGoesOnWhereItWasEnded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out", "progress.jsonl")
	ended := errors.New("ended")
	var did []string
	steps := func(failing string, how error) (all []step) {
		for _, name := range []string{"group 1", "latency", "starts"} {
			all = append(all, step{name, []string{figure.StartMS}, func(_ context.Context, p *figure.Results) error {
				did = append(did, name)
				p.Rounds = append(p.Rounds, run.Round{Contestant: name, Rate: 1})
				if name == failing {
					return how
				}
				return nil
			}})
		}
		return all
	}
	begin := func(resume bool) *measuring {
		return &measuring{progress: open(t, path, "this", resume)}
	}
	m := begin(false)
	if err := m.run(t.Context(), steps("starts", ended)); !errors.Is(err, ended) {
		t.Fatalf("got %v", err)
	}
	half, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := half.WriteString(`{"name":"half a li`); err != nil {
		t.Fatal(err)
	}
	if err := half.Close(); err != nil {
		t.Fatal(err)
	}
	// What cannot be measured does not end the run, and is tried again by the next one.
	did = nil
	m = begin(true)
	never := fmt.Errorf("starts %w: away", run.ErrNotMeasured)
	if err := m.run(t.Context(), steps("starts", never)); err != nil || !slices.Equal(did, []string{"starts"}) {
		t.Errorf("%v: it did %v, want the last only", err, did)
	}
	if len(m.rep.Results.Rounds) != 2 || m.rep.Results.NotMeasured() != 1 ||
		!strings.Contains(m.rep.Results.Missing[figure.StartMS], "away") {
		t.Errorf("got %+v, missing %v", m.rep.Results.Rounds, m.rep.Results.Missing)
	}
	did = nil
	m = begin(true)
	if err := m.run(t.Context(), steps("", nil)); err != nil || !slices.Equal(did, []string{"starts"}) {
		t.Errorf("%v: it did %v, want the last only", err, did)
	}
	if len(m.rep.Results.Rounds) != 3 || m.rep.Results.NotMeasured() != 0 {
		t.Errorf("got %+v, missing %v", m.rep.Results.Rounds, m.rep.Results.Missing)
	}
	// Another run does not go on from this one, and one that is not to go on begins anew.
	if _, err := openProgress(path, "that", true); err == nil || !strings.Contains(err.Error(), "another run") {
		t.Errorf("another run: %v", err)
	}
	if p := open(t, path, "that", false); len(p.done) > 0 {
		t.Errorf("a new run knows %v", p.done)
	}
}

func TestPairsTakeTurnsAndGoOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "compare.jsonl")
	c, err := readComparison([]string{"A", "-pairs", "3", "B", "vs_plain", "latency", "--allow=5"})
	if err != nil || c.pairs != 3 || c.allow != 5 || !slices.Equal(c.builds, []string{"A", "B"}) || len(c.subjects) != 2 {
		t.Fatalf("got %+v, %v", c, err)
	}
	var order strings.Builder
	measure := func(_ context.Context, side int, of figure.Subject) (spent, error) {
		order.WriteString(sides[side])
		if of.Name == figure.Latency && side == 1 {
			return nil, fmt.Errorf("latency %w: away", run.ErrNotMeasured)
		}
		return spent{"client": 10, "mysql": 30 * (1 + float64(side)/1000)}, nil
	}
	compare := func(c comparison, resume bool) (string, error) {
		order.Reset()
		var out bytes.Buffer
		rows, err := c.run(t.Context(), &out, open(t, path, "this", resume), measure)
		if err != nil {
			t.Fatal(err)
		}
		err = c.print(&out, rows)
		return out.String(), err
	}
	text, err := compare(c, false)
	if order.String() != "ab"+"ab"+"ba"+"ab"+"ab" {
		t.Errorf("the rounds were %s: want one of each to warm up, then pairs in turn", &order)
	}
	for _, want := range []string{
		"| `rollbackd` (vs_plain) | 40.0 | 40.0 | **1.001** | 1.001 to 1.001 | 3 | not below | 10.0 → 10.0 | 30.0 → 30.0 |",
		"| `latency` (latency) | – | – | – | – | 0 | not measured, or not all: latency could not be measured: away |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the table lacks %s:\n%s", want, text)
		}
	}
	if err == nil || !strings.HasSuffix(err.Error(), ": latency") {
		t.Errorf("got %v, want what is not shown", err)
	}
	c.pairs, c.subjects = 4, c.subjects[:1]
	if text, err = compare(c, true); err != nil || order.String() != "ab"+"ba" || !strings.Contains(text, "| 4 |") {
		t.Errorf("with one pair more %s was measured (%v):\n%s", &order, err, text)
	}
	for _, args := range [][]string{{}, {"A"}, {"A", "B", "nobody"}, {"A", "B", "-pairs", "1"}, {"A", "B", "-what"}} {
		if _, err := readComparison(args); err == nil {
			t.Errorf("%v is accepted", args)
		}
	}
}
