package figure

import (
	"math"
	"slices"
)

// Median is the middle value, or the mean of the two in the middle; 0 of none.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}

func spread(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	return Spread{round(slices.Min(values)), round(slices.Max(values))}
}

// round keeps four digits, which is more than a round tells.
func round(x float64) float64 {
	if x == 0 || math.IsInf(x, 0) || math.IsNaN(x) {
		return 0
	}
	unit := math.Pow(10, math.Floor(math.Log10(math.Abs(x)))-3)
	if unit >= 1 {
		return math.Round(x/unit) * unit
	}
	per := math.Round(1 / unit) // a division by a power of ten prints short
	return math.Round(x*per) / per
}

func rounded(values []float64) []float64 {
	all := make([]float64, len(values))
	for i, x := range values {
		all[i] = round(x)
	}
	return all
}
