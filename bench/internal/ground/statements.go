package ground

import (
	"context"
	"fmt"
	"time"
)

// Statement is one kind of statement and what it took.
type Statement struct {
	Text  string
	Count int64
	Total time.Duration
}

// ForgetStatements begins the account of statements anew.
func (f *Field) ForgetStatements(ctx context.Context) error {
	return f.exec(ctx, "TRUNCATE TABLE performance_schema.events_statements_summary_by_digest")
}

// Statements are the kinds of statement that took most time since, the dearest first. The time is what the server spent
// on each, waiting for locks and for the disk included.
func (f *Field) Statements(ctx context.Context) (all []Statement, err error) {
	rows, err := f.DB.QueryContext(ctx, `SELECT COALESCE(DIGEST_TEXT, ''), COUNT_STAR, SUM_TIMER_WAIT
		FROM performance_schema.events_statements_summary_by_digest WHERE SCHEMA_NAME = DATABASE() ORDER BY SUM_TIMER_WAIT
			DESC LIMIT 15`)
	if err != nil {
		return nil, fmt.Errorf("read the statements' times: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var s Statement
		var picoseconds float64
		if err := rows.Scan(&s.Text, &s.Count, &picoseconds); err != nil {
			return nil, fmt.Errorf("read the statements' times: %w", err)
		}
		s.Total = time.Duration(picoseconds / 1000)
		all = append(all, s)
	}
	return all, rows.Err()
}
