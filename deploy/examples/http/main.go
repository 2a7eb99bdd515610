// Command http is a shop's stock service for handler http, as an example: it gives stock back, and knows a call again.
//
//	mysql shop <deploy/examples/http/tables.sql
//	SHOP_DSN='shop:shop@tcp(127.0.0.1:3306)/shop' SHOP_ADDR=127.0.0.1:8090 go run ./deploy/examples/http
package main

import (
	"database/sql"
	"encoding/json"
	"errors"
	"log"
	"net/http"
	"os"

	"github.com/go-sql-driver/mysql"
)

func main() {
	db, err := sql.Open("mysql", os.Getenv("SHOP_DSN"))
	if err != nil {
		log.Fatal(err)
	}
	http.HandleFunc("POST /rollbacks", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(rollback(db, r)) })
	log.Fatal(http.ListenAndServe(os.Getenv("SHOP_ADDR"), nil)) //nolint:gosec // an example
}

// rollback is the status of a call. The key and the effect are written in one transaction.
func rollback(db *sql.DB, r *http.Request) int {
	var order struct {
		Items []struct {
			SKU      *int64 `json:"sku_id"` // nil: it is missing
			Quantity *int64 `json:"quantity"`
		} `json:"items"`
	}
	good := json.NewDecoder(r.Body).Decode(&order) == nil && order.Items != nil && r.Header.Get("Idempotency-Key") != ""
	for _, item := range order.Items {
		good = good && item.SKU != nil && item.Quantity != nil
	}
	if !good {
		return http.StatusBadRequest
	}
	tx, err := db.BeginTx(r.Context(), nil)
	if err != nil {
		return http.StatusServiceUnavailable
	}
	defer tx.Rollback()
	_, err = tx.Exec("INSERT INTO rollback_done (idempotency_key) VALUES (?)", r.Header.Get("Idempotency-Key"))
	if known, ok := errors.AsType[*mysql.MySQLError](err); ok && known.Number == 1062 {
		return http.StatusOK // applied before: nothing to do, and all is well
	}
	for _, item := range order.Items {
		if err == nil {
			_, err = tx.Exec("UPDATE tb_stock SET amount = amount + ? WHERE goods_id = ?", item.Quantity, item.SKU)
		}
	}
	if err != nil || tx.Commit() != nil {
		return http.StatusInternalServerError
	}
	return http.StatusNoContent
}
