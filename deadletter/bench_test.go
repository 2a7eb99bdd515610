package deadletter_test

import (
	"testing"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
)

// BenchmarkReplay is the time of one whole replay of 10,000 letters at full speed, beginning and end included.
func BenchmarkReplay(b *testing.B) {
	const n = 10_000
	for b.Loop() {
		b.StopTimer()
		w := newWorldOf(b)
		w.deadMany(dedup.ReasonExhausted, n)
		b.StartTimer()
		if res := w.replay(all, deadletter.ReplayOptions{}); res.Replayed != n {
			b.Fatalf("%+v; want %d replayed", res, n)
		}
	}
	b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "letters/s")
}
