package consumer

import (
	"testing"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/dedup"
)

// gorm's PrepareStmt takes the pool from the configuration, not from the statement: a handler that asks for it must not
// find the real pool there and write outside its transaction.
func TestAHandlersGormKnowsNothingButTheTransaction(t *testing.T) {
	db, _, err := dedup.Open(t.Context(), "nobody@tcp(127.0.0.1:1)/nothing", dedup.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pool := db.ConnPool
	if own, err := db.DB(); err == nil {
		defer own.Close()
	}
	guard := &guardedTx{}
	tx := gormOver(t.Context(), db, guard)
	for name, got := range map[string]gorm.ConnPool{
		"of its statement": tx.Statement.ConnPool, "of its configuration": tx.ConnPool,
		"of its session's configuration": tx.Session(&gorm.Session{NewDB: true}).ConnPool,
	} {
		if got != guard {
			t.Errorf("the pool %s is %T, want the transaction", name, got)
		}
	}
	if db.ConnPool != pool || db.Statement.ConnPool != pool {
		t.Error("the engine's own handle has lost its pool")
	}
}
