package consumer

import (
	"database/sql"
	"fmt"
	"time"

	"gorm.io/gorm"
)

func init() {
	illegalMove = func(it *item, to stage) { panic(fmt.Sprintf("%v: from stage %d to %d", it.id.Identity, it.stage, to)) }
}

// BehindTheGuard is the transaction of tx, with nobody who reads what is sent: as if the guard had misread it.
func BehindTheGuard(tx *gorm.DB) *sql.Tx { return SQL(tx).(*guardedTx).tx }

// MinutesTake makes minutes shorter, before Run.
func (c *Consumer) MinutesTake(d time.Duration) {
	for _, m := range c.beside.minutes {
		m.every = d
	}
}
