package ground

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/internal/wait"
)

// answerAfter is how long the service takes for a call.
const answerAfter = time.Millisecond

// service is what handler http and its rivals call: it adds to the goods what a call says, once for each key, and
// answers when its time is over. It works in this process, whose CPU is accounted for as the bench's.
type service struct {
	*httptest.Server

	mu      sync.Mutex
	known   map[string]bool // keys that were applied; guarded by mu
	amounts map[int64]int64 // by sku; guarded by mu
}

func startService() *service {
	s := &service{}
	s.Server = httptest.NewServer(http.HandlerFunc(s.answer))
	return s
}

// forget makes the service know nothing, and says what it has known: the keys that were applied, and what each of the
// goods has got.
func (s *service) forget() (known map[string]bool, amounts map[int64]int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, amounts = s.known, s.amounts
	s.known, s.amounts = map[string]bool{}, map[int64]int64{}
	return known, amounts
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
	s.apply(key, c)
	if wait.For(r.Context(), answerAfter-time.Since(began)) == nil {
		w.WriteHeader(http.StatusNoContent)
	}
}

func (s *service) apply(key string, c called) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known[key] {
		return
	}
	s.known[key] = true
	for _, it := range c.Items {
		s.amounts[it.SKU] += it.Quantity
	}
}
