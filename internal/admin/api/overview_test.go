package api

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/admin/view"
)

// Given figures that nobody knows yet, then a sample leaves them out; 0 is a figure like any other.
func TestAFigureThatNobodyKnowsIsMissing(t *testing.T) {
	t.Parallel()
	for figure, want := range map[float64]bool{math.NaN(): false, 0: true, 7: true} {
		text, err := json.Marshal(sampleOf(view.Sample{Dead: figure, Lag: figure}))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"dead_rows", "lag_seconds"} {
			if strings.Contains(string(text), name) != want {
				t.Errorf("%v: %s", figure, text)
			}
		}
	}
}
