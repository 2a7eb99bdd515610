package pages

import "sync"

// places bound how many are sent something long at once: in all, and to each person.
type places struct {
	most, ofOne int

	mu  sync.Mutex
	all int            // guarded by mu
	of  map[string]int // guarded by mu
}

func newPlaces(most, ofOne int) *places {
	return &places{most: most, ofOne: ofOne, of: map[string]int{}}
}

// enter takes a place, if there is one, until leave is called.
func (p *places) enter(who string) (leave func(), ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all >= p.most || p.of[who] >= p.ofOne {
		return nil, false
	}
	p.all++
	p.of[who]++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.all--
		if p.of[who]--; p.of[who] == 0 {
			delete(p.of, who)
		}
	}, true
}
