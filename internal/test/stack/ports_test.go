package stack

import (
	"sync"
	"testing"
)

// Given many tests that ask for an address and do not listen on it yet, then no two get the same one.
func TestNoTwoGetTheSameFreeAddress(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var asking sync.WaitGroup
	got := map[string]bool{}
	for range 8 {
		asking.Go(func() {
			for range 100 { // by chance some 27 of 800 among 12,000 would be alike
				addr := FreeAddr(t)
				mu.Lock()
				if got[addr] {
					t.Errorf("%s was given twice", addr)
				}
				got[addr] = true
				mu.Unlock()
			}
		})
	}
	asking.Wait()
}
