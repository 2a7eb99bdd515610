package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/bench/internal/figure"
	"github.com/rollbackd/rollbackd/bench/internal/run"
	"github.com/rollbackd/rollbackd/internal/test/must"
)

func open(t *testing.T, path string, what any, resume bool) *progress {
	t.Helper()
	p := openProgress(path, what, resume)
	t.Cleanup(p.close)
	return p
}

func TestARunGoesOnWhereItWasEnded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out", "progress.jsonl")
	var did []string
	goesOn := func(resume bool, failing string, how error) (*measuring, error) {
		did = nil
		m := &measuring{progress: open(t, path, "this", resume)}
		var steps []step
		for _, name := range []string{"group 1", "latency", "starts"} {
			steps = append(steps, step{name, []string{figure.StartMS}, func() figure.Results {
				did = append(did, name)
				if name == failing {
					must.OK(how)
				}
				return figure.Results{Rounds: []run.Round{{Contestant: name, Rate: 1}}}
			}})
		}
		return m, must.Catch(func() { m.run(steps) })
	}
	ended := errors.New("ended")
	if _, err := goesOn(false, "starts", ended); !errors.Is(err, ended) {
		t.Fatalf("got %v", err)
	}
	half := must.Get(os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0))
	must.Get(half.WriteString(`{"name":"half a li`))
	must.OK(half.Close())
	// What cannot be measured does not end the run, and is tried again by the next one.
	for _, never := range []error{fmt.Errorf("starts %w: away", run.ErrNotMeasured), nil} {
		m, err := goesOn(true, "starts", never)
		missing := 0
		if never != nil {
			missing = 1
		}
		if err != nil || !slices.Equal(did, []string{"starts"}) || len(m.rep.Results.Rounds) != 3-missing ||
			m.rep.Results.NotMeasured() != missing {
			t.Errorf("%v: it did %v, want the last only: %+v", err, did, m.rep.Results)
		}
	}
	// Another run does not go on from this one, and one that is not to go on begins anew.
	if err := must.Catch(func() { openProgress(path, "that", true) }); err == nil ||
		!strings.Contains(err.Error(), "another run") {
		t.Errorf("another run: %v", err)
	}
	if p := open(t, path, "that", false); len(p.done) > 0 {
		t.Errorf("a new run knows %v", p.done)
	}
}

func TestPairsTakeTurnsAndGoOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "compare.jsonl")
	c := readComparison([]string{"A", "-pairs", "3", "B", "vs_plain", "latency", "--allow=5"})
	if c.pairs != 3 || c.allow != 5 || !slices.Equal(c.builds, []string{"A", "B"}) || len(c.subjects) != 2 {
		t.Fatalf("got %+v", c)
	}
	var order strings.Builder
	measure := func(side int, of figure.Subject) spent {
		order.WriteString(sides[side])
		if of.Name == figure.Latency && side == 1 {
			must.OK(fmt.Errorf("latency %w: away", run.ErrNotMeasured))
		}
		return spent{"client": 10, "mysql": 30 * (1 + float64(side)/1000)}
	}
	compare := func(c comparison, resume bool) (string, error) {
		order.Reset()
		var out bytes.Buffer
		rows := c.run(&out, open(t, path, "this", resume), measure)
		err := must.Catch(func() { c.print(&out, rows) })
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
		if must.Catch(func() { readComparison(args) }) == nil {
			t.Errorf("%v is accepted", args)
		}
	}
}
