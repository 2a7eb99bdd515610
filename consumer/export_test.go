package consumer

import (
	"database/sql"

	"gorm.io/gorm"
)

// BehindTheGuard is the transaction of tx, with nobody who reads what is sent: as if the guard had misread it.
func BehindTheGuard(tx *gorm.DB) *sql.Tx { return SQL(tx).(*guardedTx).tx }
