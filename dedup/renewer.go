package dedup

import (
	"maps"
	"sync"
	"time"
)

// renewer knows the locks in hand: which key holds which value of ours since when. It asks Redis nothing itself.
type renewer struct {
	maxHold time.Duration

	mu   sync.Mutex
	held map[LockKey]holding // guarded by mu
}

type holding struct {
	value string // what must stand under the key for it to be ours
	since time.Time
}

func (r *renewer) init(maxHold time.Duration) {
	r.maxHold, r.held = maxHold, make(map[LockKey]holding)
}

// add begins to renew the keys of which held says Mine. A key that was locked again with the same value keeps its age.
func (r *renewer) add(value string, keys []LockKey, held []Held) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, k := range keys {
		if held[i].Hold == Mine && r.held[k].value != value {
			r.held[k] = holding{value, now}
		}
	}
}

// remove ends the renewing of the keys that are held with this value.
func (r *renewer) remove(value string, keys []LockKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range keys {
		if r.held[k].value == value {
			delete(r.held, k)
		}
	}
}

// forget ends the renewing of the keys, whoever holds them: done markers stand there now.
func (r *renewer) forget(marks []Mark) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range marks {
		delete(r.held, m.Key)
	}
}

// due returns the keys to renew, and drops those that were held too long: their number is stale.
func (r *renewer) due() (keys []LockKey, values []string, stale int) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	before := len(r.held)
	maps.DeleteFunc(r.held, func(_ LockKey, h holding) bool { return now.Sub(h.since) >= r.maxHold })
	keys, values = make([]LockKey, 0, len(r.held)), make([]string, 0, len(r.held))
	for k, h := range r.held {
		keys, values = append(keys, k), append(values, h.value)
	}
	return keys, values, before - len(r.held)
}

func (r *renewer) size() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.held)
}
