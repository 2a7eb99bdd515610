package admission

import (
	"sync"

	"github.com/rollbackd/rollbackd/dedup"
)

// Strikes are of messages that have met trouble while others were applied: a statement that was cut off because it took
// too long, a dependency that failed. The slow path may give them back each time, and must know them when they come
// again. They are known to this process alone, which only makes its judgement later.
type Strikes struct {
	mu  sync.Mutex
	met map[dedup.Identity]strike // guarded by mu
}

type strike struct {
	times   int    // that it met trouble
	applied uint64 // the engine's count of commits at the last trouble
	backs   int    // how often it was given back
}

const (
	// maxStrikes bounds the memory for a database that is slow for everybody.
	maxStrikes = 10_000
	// troublesForgiven is how often a message may meet trouble, while others succeed, before the trouble is its failure.
	troublesForgiven = 2
)

// Blamed takes in one more trouble, and the engine's count of commits now. Who is blamed is forgotten.
func (s *Strikes) Blamed(k dedup.Identity, applied uint64) (times int, blamed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.met[k]
	if one.times == 0 || applied > one.applied {
		one.times++
		one.applied = applied
	}
	if s.keep(k, one); one.times > troublesForgiven {
		delete(s.met, k)
	}
	return one.times, one.times > troublesForgiven
}

// Back takes in that a message is given back, and says for which time.
func (s *Strikes) Back(k dedup.Identity) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.met[k]
	one.backs++
	s.keep(k, one)
	return one.backs
}

// keep remembers. The caller holds mu.
func (s *Strikes) keep(k dedup.Identity, one strike) {
	if s.met == nil || len(s.met) >= maxStrikes {
		s.met = map[dedup.Identity]strike{}
	}
	s.met[k] = one
}

// Clear forgets a message that came to an end.
func (s *Strikes) Clear(k dedup.Identity) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.met, k)
}
