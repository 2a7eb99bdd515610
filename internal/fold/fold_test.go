package fold_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/slogtest"
	"testing/synctest"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/internal/fold"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// lines are what a log has written, one a line of JSON.
type lines struct{ program.Log }

func (l *lines) all(t *testing.T) (all []map[string]any) {
	t.Helper()
	for line := range strings.Lines(l.String()) {
		one := map[string]any{}
		err := json.Unmarshal([]byte(line), &one)
		require.That(t, err == nil, "%v in %s", err, line)
		all = append(all, one)
	}
	return all
}

func newLog() (*slog.Logger, *fold.Handler, *lines) {
	out := &lines{}
	h := fold.New(slog.NewJSONHandler(out, nil), deadletter.Fingerprint)
	return slog.New(h), h, out
}

// Given 50,000 letters of one kind in five seconds, then ten stand as they are and one line counts the others, with one
// of them; the three of another kind in between all stand, at once.
func TestAFloodIsTenLinesAndOneThatCountsAndWhatIsRareStands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, _, out := newLog()
		for i := range 50_000 {
			log.Warn("dead-lettered", "message", fmt.Sprintf("k-%d", i), "reason", "exhausted",
				"err", fmt.Errorf("order %d is locked", i))
			if i%20_000 == 100 {
				log.Warn("dead-lettered", "message", fmt.Sprintf("k-%d", i), "reason", "exhausted",
					"err", errors.New("no such sku"))
			}
			time.Sleep(100 * time.Microsecond)
		}
		require.Is(t, len(out.all(t)), 10+3, "lines while it lasts")
		time.Sleep(fold.Window)
		all := out.all(t)
		require.Is(t, len(all), 14, "lines")
		last := all[13]
		if last["msg"] != "dead-lettered" || last["level"] != "WARN" || last["message"] != "k-10" ||
			last["err"] != "order 10 is locked" || last[fold.CountKey] != 49_989.0 || last[fold.OverKey] != 1e10 {
			t.Errorf("the last line is %v, want the eleventh letter and 49,989 more in 10s", last)
		}
	})
}

// Given ten lines of a kind every ten seconds, then none is folded: they are few.
func TestWhatIsFewIsNeverFolded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, _, out := newLog()
		for range 5 {
			for range fold.Most {
				log.Warn("deliveries given back")
			}
			time.Sleep(fold.Window)
			synctest.Wait()
		}
		assert.Is(t, len(out.all(t)), 50, "lines")
	})
}

// Given a process that ends in a flood, then Flush tells what was folded, once.
func TestTheEndTellsWhatWasFolded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, h, out := newLog()
		for range 100 {
			log.With("queue", "q").Warn("x")
		}
		h.Flush()
		time.Sleep(2 * fold.Window)
		h.Flush()
		all := out.all(t)
		if len(all) != 11 || all[10][fold.CountKey] != 89.0 || all[10]["queue"] != "q" {
			t.Errorf("%d lines, the last %v, want 11 of which the last says 89 more", len(all), all[len(all)-1])
		}
	})
}

// Given more kinds than anybody can tell apart, then memory and log stay bounded: they go by their text.
func TestKindsWithoutEndGoByTheirText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, _, out := newLog()
		for i := range 20_000 {
			log.Warn("x", "err", strings.Repeat("z", i%5_000+1)+" "+strings.Repeat("y", i/5_000))
		}
		time.Sleep(2 * fold.Window)
		assert.AtMost(t, len(out.all(t)), 6_000, "lines for 20,000 errors that are all different")
	})
}

func TestItHandsOnWhatAHandlerMust(t *testing.T) {
	var out *lines
	slogtest.Run(t, func(*testing.T) slog.Handler {
		out = &lines{}
		return fold.New(slog.NewJSONHandler(out, nil), deadletter.Fingerprint)
	}, func(t *testing.T) map[string]any { return out.all(t)[0] })
}
