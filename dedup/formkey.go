package dedup

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// FormKey is a secret that all processes at this log share, made when it is first asked for, and the time by the
// database's clock. What is signed with it needs no row until it is used.
func (l *Log) FormKey(ctx context.Context) (key []byte, now time.Time, err error) {
	name := []byte("form_key:" + l.o.Table)
	for made := false; ; made = true {
		var micro int64
		err := l.db.QueryRowContext(ctx, "SELECT value, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) FROM "+
			metaTable+" WHERE name = ?", name).Scan(&key, &micro)
		if err == nil {
			return key, time.UnixMicro(micro), nil
		}
		if made || !errors.Is(err, sql.ErrNoRows) {
			return nil, time.Time{}, fmt.Errorf("read the key of forms: %w", err)
		}
		if _, err := l.db.ExecContext(ctx, "INSERT INTO "+metaTable+" (name, value) VALUES (?, ?) ON DUPLICATE KEY UPDATE "+
			metaTable+".value = "+metaTable+".value", name, []byte(rand.Text())); err != nil {
			return nil, time.Time{}, fmt.Errorf("make the key of forms: %w", err)
		}
	}
}
