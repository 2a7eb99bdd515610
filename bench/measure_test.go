package main

import (
	"bytes"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/bench/internal/figure"
	"github.com/rollbackd/rollbackd/bench/internal/run"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

func TestARunGoesOnWhereItWasEnded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out", "progress.json")
	goesOn := func(resume bool, last error) (did []string, all figure.Results) {
		m := &measuring{progress: openProgress[figure.Results](path, "this", resume), settings: settings{to: t.TempDir()}}
		m.try = tries(func(c run.Contestant) run.Round {
			did = append(did, c.Name)
			if c.Name == "starts" {
				must.OK(last)
			}
			return run.Round{Contestant: c.Name}
		})
		_ = must.Catch(func() { m.cycle([][]run.Contestant{{{Name: "a"}, {Name: "b"}}, {{Name: "starts"}}}) })
		return did, m.rep.Results
	}
	for _, c := range []struct {
		resume       bool
		last         error // of the last contestant
		did          string
		all, missing int
	}{
		{false, errors.New("ended"), "a b starts", 2, 0}, {true, errors.New("ended"), "starts", 2, 0},
		{true, run.ErrNotMeasured, "starts", 3, 1}, {true, nil, "starts", 3, 0}, {true, nil, "", 3, 0},
	} {
		did, all := goesOn(c.resume, c.last)
		assert.That(t, strings.Join(did, " ") == c.did && len(all) == c.all && all.NotMeasured() == c.missing,
			"%+v: it did %v: %+v", c, did, all)
	}
	// Another run does not go on from this one, and one that is not to go on begins anew.
	err := must.Catch(func() { openProgress[figure.Results](path, "that", true) })
	assert.That(t, err != nil && strings.Contains(err.Error(), "another run"), "another run: %v", err)
	p := openProgress[figure.Results](path, "that", false)
	assert.That(t, len(p.Done) == 0, "a new run knows %v", p.Done)
}

func TestPairsTakeTurnsAndGoOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "compare.json")
	c := readComparison([]string{"-pairs", "3", "--allow=5", "A", "B", "vs_plain", "latency"})
	require.That(t, c.pairs == 3 && c.allow == 5 && slices.Equal(c.builds, []string{"A", "B"}) && len(c.subjects) == 2,
		"got %+v", c)
	var order strings.Builder
	try := func(side int, of run.Contestant) (r run.Round) {
		order.WriteString(sides[side])
		r.Deliveries, r.Messages = 1, 1
		r.CPU = run.Sample{"client": 10, "mysql": 30 * (1 + float64(side)/1000)}
		if of.Name == figure.Latency {
			r.CPU["client"] += float64(20 * side)
		}
		return r
	}
	compare := func(c comparison, resume bool) (string, error) {
		order.Reset()
		var out bytes.Buffer
		rows := c.run(&out, openProgress[[2]run.Round](path, "this", resume), try)
		err := must.Catch(func() { c.print(&out, rows) })
		return out.String(), err
	}
	text, err := compare(c, false)
	assert.Is(t, order.String(), "ab"+"ab"+"ba"+"ab"+"ab"+"ba"+"ab", "one of each to warm up, then pairs in turn")
	for _, want := range []string{
		"| `rollbackd` (vs_plain) | 40.0 | 40.0 | **1.001** | 1.001 to 1.001 | 3 | not below | 10.0 → 10.0 | 30.0 → 30.0 |",
		"| 3 | dearer by 50.1 % |",
	} {
		assert.That(t, strings.Contains(text, want), "the table lacks %s:\n%s", want, text)
	}
	assert.That(t, err != nil && strings.HasSuffix(err.Error(), ": latency"), "got %v, want what is not shown", err)
	c.pairs, c.subjects = 4, c.subjects[:1]
	if text, err = compare(c, true); err != nil || order.String() != "ab"+"ba" || !strings.Contains(text, "| 4 |") {
		t.Errorf("with one pair more %s was measured (%v):\n%s", &order, err, text)
	}
	for _, args := range [][]string{{}, {"A"}, {"A", "B", "nobody"}, {"-pairs", "1", "A", "B"}, {"-what", "A", "B"}} {
		assert.That(t, must.Catch(func() { readComparison(args) }) != nil, "%v is accepted", args)
	}
}

func TestDefaultsAreAResultAndTrialsAreNot(t *testing.T) {
	for env, out := range map[string]string{
		"": ".", "BENCH_ROUND=2s": "out", "BENCH_ROUND=20s BENCH_ROUNDS=5": "out", "BENCH_LETTERS=1000": "out",
		"BENCH_ONLY=poison": "out", "BENCH_ONLY=poison BENCH_OUT=x": "x",
	} {
		s, err := readSettings(func(name string) string {
			_, value, _ := strings.Cut(env, name+"=")
			value, _, _ = strings.Cut(value, " ")
			return value
		})
		assert.That(t, err == nil && s.complete == (out == ".") && s.to == out,
			"%q: complete %v into %q (%v), want it in %q", env, s.complete, s.to, err, out)
	}
}

func TestAllBadSettingsAreNamed(t *testing.T) {
	bad := map[string]string{
		"BENCH_ROUND": "fast", "BENCH_ROUNDS": "0", "BENCH_ONLY": "vs_nobody", "BENCH_MINUTE": "-1s", "BENCH_WAITING": "-2",
		"BENCH_FAILING": "some", "BENCH_LETTERS": "0.5",
	}
	_, err := readSettings(func(name string) string { return bad[name] })
	for name, value := range bad {
		assert.That(t, err != nil && strings.Contains(err.Error(), name) && strings.Contains(err.Error(), value),
			"the error does not name %s=%s: %v", name, value, err)
	}
}
