package decide

import (
	"slices"
	"time"
)

// Longest is a wait that no delay exceeds.
const Longest = time.Duration(1<<63 - 1)

// Fit is the longest of delays, which grow, that is not longer than wait, else the shortest: a copy that comes too
// early once more costs less than one that sleeps past its time.
func Fit(delays []time.Duration, wait time.Duration) time.Duration {
	i, exactly := slices.BinarySearch(delays, wait)
	if !exactly && i > 0 {
		i--
	}
	return delays[i]
}

// FitUp is the shortest of delays, which grow, that is not below wait, else the longest.
func FitUp(delays []time.Duration, wait time.Duration) time.Duration {
	i, _ := slices.BinarySearch(delays, wait)
	return delays[min(i, len(delays)-1)]
}

// AfterFailure is the delay before the next attempt of a message that has failed so many; else none is left of the
// most.
func AfterFailure(attempts, most int, delays []time.Duration) (delay time.Duration, left bool) {
	if attempts >= most {
		return 0, false
	}
	return delays[attempts-1], true
}
