package server

import (
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Places bound how much is done at once: in all, and for each person.
type Places struct {
	most, ofOne int

	mu  sync.Mutex
	all int            // guarded by mu
	of  map[string]int // guarded by mu
}

// NewPlaces makes so many places.
func NewPlaces(most, ofOne int) *Places {
	return &Places{most: most, ofOne: ofOne, of: map[string]int{}}
}

// Enter takes a place, if there is one, until leave is called.
func (p *Places) Enter(who string) (leave func(), ok bool) {
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

// warnEvery is how often one thing is warned of.
const warnEvery = time.Minute

// warner says the same thing once a minute at most, and how often it has come since: a stranger must not fill the log.
// Whoever shares one holds a mutex.
type warner struct {
	log    *slog.Logger
	rarely rate.Sometimes
	untold int
}

func (w *warner) warn(text string, args ...any) {
	w.untold++
	w.rarely.Interval = warnEvery
	w.rarely.Do(func() {
		w.log.Warn(text, append([]any{"since_last_line", w.untold}, args...)...)
		w.untold = 0
	})
}
