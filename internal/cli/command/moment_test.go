package command

import (
	"testing"
	"time"
)

func TestMomentsAreTimesOrDurations(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"":                          {},
		"24h":                       now.Add(-24 * time.Hour),
		"2026-11-21T08:00:00Z":      time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC),
		"2026-11-21T08:00:00+02:00": time.Date(2026, 11, 21, 6, 0, 0, 0, time.UTC),
		"2026-11-21 08:00:00":       time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC),
		"2026-11-21":                time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC),
		"yesterday":                 {}, // as are those below: none
		"-3h":                       {},
		"24":                        {},
		"21.11.2026":                {},
	} {
		got, err := readMoment("since", text, now)
		if none := want.IsZero() && text != ""; (err != nil) != none || err == nil && !got.Equal(want) {
			t.Errorf("readMoment(%q) = %v, %v; want %v", text, got, err, want)
		}
	}
}
