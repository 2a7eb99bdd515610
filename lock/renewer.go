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
	held map[Name]holding // guarded by mu
}

type holding struct {
	value string // what must stand under the key for it to be ours
	since time.Time
}

func (r *renewer) init(maxHold time.Duration) {
	r.maxHold, r.held = maxHold, make(map[Name]holding)
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

// remove ends the renewing of the keys that are held with this value.
func (r *renewer) remove(value string, names []Name) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range names {
		if r.held[n].value == value {
			delete(r.held, n)
		}
	}
}

// holds reports whether the key is held here with this value.
func (r *renewer) holds(value string, n Name) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.held[n].value == value
}

// forget ends the renewing of the keys, whoever holds them: done markers stand there now.
func (r *renewer) forget(marks []Mark) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range marks {
		delete(r.held, m.Name)
	}
}

// due returns the keys to renew, and drops those that were held too long: these are stale, by their value.
func (r *renewer) due() (names []Name, values []string, stale map[string][]Name) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	stale = make(map[string][]Name)
	maps.DeleteFunc(r.held, func(n Name, h holding) bool {
		old := now.Sub(h.since) >= r.maxHold
		if old {
			stale[h.value] = append(stale[h.value], n)
		}
		return old
	})
	names, values = make([]Name, 0, len(r.held)), make([]string, 0, len(r.held))
	for n, h := range r.held {
		names, values = append(names, n), append(values, h.value)
	}
	return names, values, stale
}

func (r *renewer) size() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.held)
}
