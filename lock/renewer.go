package lock

import (
	"maps"
	"sync"
	"time"
)

// renewer knows the locks in hand: which key holds which value of ours since when. It asks no server itself.
type renewer struct {
	maxHold time.Duration

	mu   sync.Mutex
	held map[Name]holding  // guarded by mu
	left map[string][]Name // by their value: to be given up when the server is asked again; guarded by mu
}

type holding struct {
	value string // what must stand under the key for it to be ours
	since time.Time
}

func (r *renewer) init(maxHold time.Duration) {
	r.maxHold, r.held, r.left = maxHold, make(map[Name]holding), make(map[string][]Name)
}

// add begins to renew the keys of which held says Mine. A key that was locked again with the same value keeps its age.
func (r *renewer) add(value string, names []Name, held []Held) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, n := range names {
		if held[i].Hold == Mine && r.held[n].value != value {
			r.held[n] = holding{value, now}
		}
	}
}

// drop ends the renewing of the keys that are held with this value, or with any if it is empty. Later is said while the
// server is not asked: their locks are given up then, for not every kind expires while its process lives.
func (r *renewer) drop(value string, names []Name, later bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range names {
		h, ok := r.held[n]
		if !ok || value != "" && h.value != value {
			continue
		}
		delete(r.held, n)
		if later {
			r.left[h.value] = append(r.left[h.value], n)
		}
	}
}

// holds reports whether the key is held here with this value.
func (r *renewer) holds(value string, n Name) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.held[n].value == value
}

// due returns the keys to renew, and by their value those to give up: those that were left, and those that were held
// too long, which it drops and counts.
func (r *renewer) due() (names []Name, values []string, over map[string][]Name, tooLong int) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	over, r.left = r.left, make(map[string][]Name)
	maps.DeleteFunc(r.held, func(n Name, h holding) bool {
		old := now.Sub(h.since) >= r.maxHold
		if old {
			over[h.value] = append(over[h.value], n)
			tooLong++
		}
		return old
	})
	names, values = make([]Name, 0, len(r.held)), make([]string, 0, len(r.held))
	for n, h := range r.held {
		names, values = append(names, n), append(values, h.value)
	}
	return names, values, over, tooLong
}
