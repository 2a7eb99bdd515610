package consumer

import (
	"sync"

	"github.com/rollbackd/rollbackd/dedup"
)

// suspects are messages whose statements were cut off because they took too long: the slow path gives them back
// each time and must know them when they come again. They are known to this process alone, which only makes its
// judgement later.
type suspects struct {
	mu  sync.Mutex
	met map[dedup.Identity]suspect // guarded by mu
}

type suspect struct {
	suspicion
	backs int // how often it was given back
}

// maxSuspects bounds the memory for a database that is slow for everybody.
const maxSuspects = 10_000

// blamed takes in one more trouble of a message; see [suspicion]. Who is blamed is forgotten.
func (s *suspects) blamed(k dedup.Identity, applied uint64) (times int, blamed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.met[k]
	if blamed = one.blamed(applied); blamed {
		delete(s.met, k)
	} else {
		s.keep(k, one)
	}
	return one.met, blamed
}

// back takes in that a message is given back, and says for which time.
func (s *suspects) back(k dedup.Identity) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.met[k]
	one.backs++
	s.keep(k, one)
	return one.backs
}

// keep remembers. The caller holds mu.
func (s *suspects) keep(k dedup.Identity, one suspect) {
	if s.met == nil || len(s.met) >= maxSuspects {
		s.met = map[dedup.Identity]suspect{}
	}
	s.met[k] = one
}

// clear forgets a message that came to an end.
func (s *suspects) clear(k dedup.Identity) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.met, k)
}

// suspicion counts the troubles that one message met while other messages were applied.
type suspicion struct {
	met     int
	applied uint64 // the engine's count of commits at the last trouble
}

// troublesForgiven is how often a message may meet trouble, while others succeed, before the trouble is its failure.
const troublesForgiven = 2

// blamed takes in one more trouble, and the engine's count of commits now. It reports whether the message itself must
// be the cause.
func (s *suspicion) blamed(applied uint64) bool {
	if s.met == 0 || applied > s.applied {
		s.met++
		s.applied = applied
	}
	return s.met > troublesForgiven
}
