package doctor

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/lockers"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/rights"
	"github.com/rollbackd/rollbackd/lock"
	"github.com/rollbackd/rollbackd/outbox"
)

// rightsPage is where an administrator finds the statements that give all rights.
const rightsPage = "docs/rights.md"

// running are the roles of a daemon with these settings.
func (a *area) running() (roles []rights.Role) {
	for _, role := range []struct {
		rights.Role
		runs bool
	}{
		{rights.Daemon, true}, {rights.Retention, a.LogRetention > 0}, {rights.Compensation, a.CompensateAfter > 0},
		{rights.Webhook, a.DeadLetterWebhook != ""}, {rights.Pages, a.HTTPAddr != ""},
	} {
		if role.runs {
			roles = append(roles, role.Role)
		}
	}
	return roles
}

// rights tries each right of the daemon and of the command line on MySQL's tables. Statements are planned and checked,
// and touch no row.
func (a *area) rights(ctx context.Context, pool *sql.DB) {
	names := rights.Names{
		LogTable: a.LogTable, Exchange: a.Exchange, Queue: a.Queue, Stock: a.Handler == config.HandlerStock,
		Lock: a.Lock == lock.KindMySQL, Outbox: a.Outbox || a.Emit != "",
	}
	roles := a.running()
	a.tryRights(ctx, pool, names, roles, rights.MySQL(names, append(slices.Clip(roles), rights.CLI)...))
}

// tryRights tries these rights, of which those of the roles are needed by what runs.
func (a *area) tryRights(
	ctx context.Context, pool *sql.DB, names rights.Names, roles []rights.Role, all []rights.TableRight,
) {
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
		locked := mysqldb.Classify(err) == mysqldb.FaultContention
		if locked || r.Privilege == "SELECT" {
			unread = r.Table // the others would wait as long, or cannot be tried without it
		}
		found := fmt.Sprintf("%s on %s: %v", r.Privilege, r.Table, err)
		grant := fmt.Sprintf("GRANT %s ON %s TO the user", r.Privilege, r.Table)
		by := slices.DeleteFunc(slices.Clone(r.By), func(role rights.Role) bool { return !slices.Contains(roles, role) })
		a.tell("right",
			warnIf(locked, fmt.Sprintf("those on %s could not be tried: %v", r.Table, err), "somebody else has it locked, SHOW "+
				"FULL PROCESSLIST says who; try again without that"),
			warnIf(len(by) == 0, found, grant+": the command line needs it, the daemon does not. See "+rightsPage),
			warnIf(slices.Equal(by, []rights.Role{rights.Retention}), found, grant+", or nothing is ever deleted: "+
				"ROLLBACKD_LOG_RETENTION needs it. See "+rightsPage),
			failIf(true, found, grant+". See "+rightsPage))
	}
	a.tell("rights", okIf(lacking == 0, fmt.Sprintf("all %d that are needed", len(all))))
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
		n.LogTable + "_minute": "applied = 0",
		"stock":                "version = 0", lockers.MySQLTable: "value = ''", "stock_reservation": "quantity = 0",
		outbox.Table: "tries = 0",
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
