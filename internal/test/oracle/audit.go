package oracle

import (
	"context"
	"database/sql"
	"fmt"
)

// auditTable counts releases. A trigger writes it inside the transaction that releases, so what was rolled back is not
// in it. It has no unique key: a second release must show.
const auditTable = "oracle_release"

// Audit lets the database itself write down every release of a reservation from now on. It costs an insert for each, so
// it is for fault tests; the sums are enough elsewhere. On MySQL 8 with a binary log the account needs SUPER or
// log_bin_trust_function_creators.
func Audit(ctx context.Context, db *sql.DB) error {
	for _, statement := range []string{
		"CREATE TABLE " + auditTable + ` (
			id BIGINT AUTO_INCREMENT PRIMARY KEY, order_sn VARBINARY(64) NOT NULL, sku_id BIGINT NOT NULL, was TINYINT NOT NULL
		) ENGINE=InnoDB`,
		`CREATE TRIGGER oracle_release_seen AFTER UPDATE ON stock_reservation FOR EACH ROW
			INSERT INTO ` + auditTable + " (order_sn, sku_id, was) " +
			"SELECT NEW.order_sn, NEW.sku_id, OLD.status FROM DUAL WHERE NEW.status = 2",
	} {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("audit the releases: %w", err)
		}
	}
	return nil
}

// checkAudit is rule 3. Without an audit there is nothing to check.
func (w World) checkAudit(ctx context.Context, r *Report) error {
	var audited int
	err := w.DB.QueryRowContext(ctx, "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() "+
		"AND table_name = ?", auditTable).Scan(&audited)
	if err != nil {
		return fmt.Errorf("look for the audit: %w", err)
	}
	if audited == 0 {
		return nil
	}
	rows, err := w.DB.QueryContext(ctx, "SELECT order_sn, sku_id, COUNT(*), SUM(was <> 1) FROM "+auditTable+
		" GROUP BY 1, 2 HAVING COUNT(*) > 1 OR SUM(was <> 1) > 0")
	err = scanAll(rows, err, func() error {
		var order string
		var sku int64
		var n, odd int
		if err := rows.Scan(&order, &sku, &n, &odd); err != nil {
			return err
		}
		r.DuplicatedEffects++
		r.find("duplicated effect", "sku %d of order %q was released %d times, %d times when it was not reserved", sku, order,
			n, odd)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the audit: %w", err)
	}
	var releases, released int
	err = w.DB.QueryRowContext(ctx, "SELECT (SELECT COUNT(*) FROM "+auditTable+"), (SELECT COUNT(*) FROM "+
		"stock_reservation WHERE status = 2)").Scan(&releases, &released)
	if err != nil {
		return fmt.Errorf("count the audit: %w", err)
	}
	if releases < released {
		r.find("duplicated effect", "the audit saw %d releases of %d: it was made too late to judge this run", releases,
			released)
	}
	return nil
}
