package doctor

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/locking"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/rights"
	"github.com/rollbackd/rollbackd/lock"
)

// rightsPage is where an administrator finds the statements that give all rights.
const rightsPage = "docs/rights.md"

// running are the roles of a daemon with these settings.
func running(cfg config.Config) []rights.Role {
	roles := []rights.Role{rights.Daemon}
	if cfg.LogRetention > 0 {
		roles = append(roles, rights.Retention)
	}
	if cfg.CompensateAfter > 0 {
		roles = append(roles, rights.Compensation)
	}
	if cfg.DeadLetterWebhook != "" {
		roles = append(roles, rights.Webhook)
	}
	if cfg.HTTPAddr != "" {
		roles = append(roles, rights.Pages)
	}
	return roles
}

// checkRights tries each right of the daemon and of the command line on MySQL's tables. Statements are planned and
// checked, and touch no row.
func checkRights(ctx context.Context, pool *sql.DB, cfg config.Config, l *list) {
	names := rights.Names{
		LogTable: cfg.LogTable, Exchange: cfg.Exchange, Queue: cfg.Queue, Stock: cfg.Handler == config.HandlerStock,
		Lock: cfg.Lock == lock.KindMySQL,
	}
	roles := running(cfg)
	all := rights.MySQL(names, append(slices.Clip(roles), rights.CLI)...)
	lacking, unread := 0, ""
	for _, r := range all {
		if r.Table == unread {
			continue
		}
		err := try(ctx, pool, statement(names, r))
		if err == nil {
			continue
		}
		lacking++
		if mysqldb.Classify(err) == mysqldb.FaultContention {
			unread = r.Table // the others would wait as long
			l.warn("right", fmt.Sprintf("those on %s could not be tried: %v", r.Table, err),
				"somebody else has it locked, SHOW FULL PROCESSLIST says who; try again without that")
			continue
		}
		if r.Privilege == "SELECT" {
			unread = r.Table // without it the others cannot be tried
		}
		found := fmt.Sprintf("%s on %s: %v", r.Privilege, r.Table, err)
		grant := fmt.Sprintf("GRANT %s ON %s TO the user", r.Privilege, r.Table)
		by := slices.DeleteFunc(slices.Clone(r.By), func(role rights.Role) bool { return !slices.Contains(roles, role) })
		switch {
		case len(by) == 0:
			l.warn("right", found, grant+": the command line needs it, the daemon does not. See "+rightsPage)
		case len(by) == 1 && by[0] == rights.Retention:
			l.warn("right", found, grant+", or nothing is ever deleted: ROLLBACKD_LOG_RETENTION needs it. See "+rightsPage)
		default:
			l.fail("right", found, grant+". See "+rightsPage)
		}
	}
	if lacking == 0 {
		l.ok("rights", fmt.Sprintf("all %d that are needed", len(all)))
	}
}

// statement needs this right, and for INSERT SELECT too, and changes nothing.
func statement(n rights.Names, r rights.TableRight) string {
	table := "`" + r.Table + "`"
	switch r.Privilege {
	case "SELECT":
		return "SELECT 1 FROM " + table + " WHERE FALSE"
	case "INSERT":
		return "INSERT INTO " + table + " SELECT * FROM " + table + " WHERE FALSE"
	case "DELETE":
		return "DELETE FROM " + table + " WHERE FALSE"
	}
	set := map[string]string{
		n.LogTable: "remark = ''", "rollbackd_meta": "value = ''",
		n.LogTable + "_act": "why = ''", n.LogTable + "_once": "status = 0",
		"stock": "version = 0", locking.MySQLTable: "value = ''", "stock_reservation": "quantity = 0",
	}[r.Table]
	return "UPDATE " + table + " SET " + set + " WHERE FALSE"
}

// try runs a statement that changes nothing, in a transaction that is rolled back all the same.
func try(ctx context.Context, pool *sql.DB, statement string) (err error) {
	tx, err := pool.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, statement)
	return errors.Join(err, tx.Rollback())
}
