package daemon_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/stock"
)

// stockService is a service over the same tables as the built-in handler's, behind HTTP. It honours keys, as
// docs/handlers.md asks of it: the key and the effect are one transaction.
type stockService struct {
	db *gorm.DB

	mu     sync.Mutex
	status int // of every answer; 0: what it should be; guarded by mu
}

// answerWith makes the service answer everything with a status, and do nothing; 0: no more.
func (s *stockService) answerWith(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status = status
}

// startStock runs such a service for a test, and returns the settings of a world that has it as its handler.
func startStock(t *testing.T) (s *stockService, settings []string) {
	t.Helper()
	dsn := stack.MySQL(t)
	db := require.First(dedup.Open(t.Context(), dsn, dedup.OpenOptions{MaxOpen: 20}))(t)
	pool := require.Get(db.DB())(t)
	require.OK(t, db.Exec("CREATE TABLE service_key (k VARBINARY(64) PRIMARY KEY) ENGINE=InnoDB").Error)
	s = &stockService{db: db}
	at := httptest.NewServer(s)
	t.Cleanup(func() {
		at.Close()
		_ = pool.Close()
	})
	return s, []string{"MYSQL_DSN", dsn, "HANDLER", "http", "HTTP_TARGET", at.URL + "/rollbacks", "HTTP_TIMEOUT", "2s"}
}

// ServeHTTP applies one message.
func (s *stockService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	status := s.status
	s.mu.Unlock()
	if status != 0 {
		w.WriteHeader(status)
		return
	}
	if status, err := s.apply(r); err != nil {
		http.Error(w, err.Error(), status)
	}
}

func (s *stockService) apply(r *http.Request) (status int, err error) {
	var order struct {
		SN    string `json:"order_sn"`
		Items []struct {
			SKU      int64 `json:"sku_id"`
			Quantity int64 `json:"quantity"`
		} `json:"items"`
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return http.StatusBadRequest, err
	}
	if err := json.Unmarshal(body, &order); err != nil || order.SN == "" {
		return http.StatusUnprocessableEntity, errors.Join(err, errors.New("no order can be read from this"))
	}
	parts := strings.Split(r.Header.Get("X-Rollbackd-Message"), "/")
	tag, _ := url.PathUnescape(parts[1])
	key, _ := url.PathUnescape(parts[2])
	request := stock.Request{OrderSN: order.SN, Tag: tag, Key: key}
	for _, i := range order.Items {
		request.Items = append(request.Items, stock.Item{SKU: i.SKU, Quantity: i.Quantity})
	}
	err = s.db.WithContext(r.Context()).Transaction(func(tx *gorm.DB) error {
		known := tx.Exec("INSERT INTO service_key (k) VALUES (?)", r.Header.Get("Idempotency-Key")).Error
		if e, ok := errors.AsType[*mysql.MySQLError](known); ok && e.Number == 1062 {
			return nil
		}
		if known != nil {
			return known
		}
		return stock.Rollback(r.Context(), tx, []stock.Request{request}, stock.Options{})
	})
	blamed, ok := errors.AsType[*stock.BatchError](err)
	if ok && blamed.Requests[0].Permanent {
		return http.StatusUnprocessableEntity, err
	}
	if e, met := errors.AsType[*mysql.MySQLError](err); met && (e.Number == 1213 || e.Number == 1205) {
		return http.StatusConflict, err
	}
	return http.StatusInternalServerError, err
}
