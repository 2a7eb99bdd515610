package ground

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/internal/wait"
)

// answerAfter is how long the service takes for a call, if the sowing does not say it.
const answerAfter = time.Millisecond

// service is what handler http and its rivals call: it adds to the goods what a call says, once for each key, and
// answers when its time is over. It works in this process, whose CPU is accounted for as the bench's.
type service struct {
	*httptest.Server

	mu      sync.Mutex
	takes   time.Duration   // for a call; guarded by mu
	known   map[string]bool // keys that were applied; guarded by mu
	amounts map[int64]int64 // by sku; guarded by mu
}

func startService() *service {
	s := &service{}
	s.forget(answerAfter)
	s.Server = httptest.NewServer(http.HandlerFunc(s.answer))
	return s
}

// forget makes the service know nothing, and take so long for a call from now on.
func (s *service) forget(takes time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.takes, s.known, s.amounts = takes, map[string]bool{}, map[int64]int64{}
}

// seen are the keys that were applied, and what each of the goods has got.
func (s *service) seen() (known map[string]bool, amounts map[int64]int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.known), maps.Clone(s.amounts)
}

// called is what a call says.
type called struct {
	Items []struct {
		SKU      int64 `json:"sku_id"`
		Quantity int64 `json:"quantity"`
	} `json:"items"`
}

func (s *service) answer(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	var c called
	key := r.Header.Get("Idempotency-Key")
	if err := json.NewDecoder(r.Body).Decode(&c); err != nil || key == "" || len(c.Items) == 0 {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if wait.For(r.Context(), s.apply(key, c)-time.Since(began)) == nil {
		w.WriteHeader(http.StatusNoContent)
	}
}

// apply says how long the answer is to take.
func (s *service) apply(key string, c called) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known[key] {
		return s.takes
	}
	s.known[key] = true
	for _, it := range c.Items {
		s.amounts[it.SKU] += it.Quantity
	}
	return s.takes
}
