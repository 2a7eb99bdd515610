package rights

import (
	"fmt"
	"slices"
	"strings"
)

// TableRight is one privilege on one table of MySQL. An empty Table means the schema with all its tables.
type TableRight struct {
	Table, Privilege string
	By               []Role // who needs it
}

// everybody reads the log.
var everybody = []Role{Daemon, Retention, Compensation, Webhook, Pages, CLI, TakeOver}

// MySQL lists what the roles need there, a table's privileges side by side. Retention deletes stories with their rows
// and notes how far it came; a daemon notes how many letters all of them published, the webhook up to which letter it
// told, taking over how far that came, and whoever pauses the fleet that it is paused.
func MySQL(n Names, roles ...Role) []TableRight {
	event, meta, act, once := n.LogTable+"_event", "rollbackd_meta", n.LogTable+"_act", n.LogTable+"_once"
	all := []TableRight{
		{"", "SELECT", []Role{Migrate}},
		{"", "INSERT", []Role{Migrate}},
		{"", "CREATE", []Role{Migrate}},
		{"", "ALTER", []Role{Migrate}},
		{"", "INDEX", []Role{Migrate}},
		{"", "CREATE VIEW", []Role{Migrate}},
		{"", "DROP", []Role{Migrate}}, // to replace the view
		{n.LogTable, "SELECT", everybody},
		{n.LogTable, "INSERT", []Role{Daemon, Compensation, Pages, CLI, TakeOver}},
		{n.LogTable, "UPDATE", []Role{Daemon, Compensation, Pages, CLI, TakeOver}},
		{n.LogTable, "DELETE", []Role{Daemon, Retention}}, // the daemon takes the rows of the blamed out of a transaction
		{event, "SELECT", []Role{Retention, Compensation, Webhook, Pages, CLI}},
		{event, "INSERT", []Role{Daemon, Compensation, Pages, CLI, TakeOver}},
		{event, "DELETE", []Role{Retention}},
		{meta, "SELECT", everybody},
		{meta, "INSERT", []Role{Daemon, Retention, Webhook, Pages, CLI, TakeOver}},
		{meta, "UPDATE", []Role{Daemon, Retention, Webhook, Pages, CLI, TakeOver}},
		{act, "SELECT", []Role{Daemon, Compensation, Pages, CLI}},
		{act, "INSERT", []Role{Compensation, Pages, CLI}},
		{act, "UPDATE", []Role{Compensation, Pages, CLI}},
		{act, "DELETE", []Role{Daemon}},
		{once, "SELECT", []Role{Daemon, Pages}},
		{once, "INSERT", []Role{Pages}},
		{once, "UPDATE", []Role{Pages}},
		{once, "DELETE", []Role{Daemon}},
		{"rollbackd_schema", "SELECT", everybody},
	}
	if n.Stock {
		all = append(all, []TableRight{
			{"stock", "SELECT", []Role{Daemon, Pages, CLI}},
			{"stock", "UPDATE", []Role{Daemon}},
			{"stock_reservation", "SELECT", []Role{Daemon, Pages, CLI}},
			{"stock_reservation", "INSERT", []Role{Daemon}},      // a refusal, with EMPTY_ROLLBACK=refuse
			{"stock_reservation", "UPDATE", []Role{Daemon, CLI}}, // reconcile --adopt locks what it reads
		}...)
	}
	if n.Lock {
		all = append(all, Lock(roles...)...)
	}
	if n.Classic != "" {
		all = append(all, TableRight{n.Classic, "SELECT", []Role{TakeOver}})
	}
	return slices.DeleteFunc(all, func(r TableRight) bool { return !needed(r.By, roles) })
}

// Lock lists what the roles need besides for ROLLBACKD_LOCK=mysql. The doctor takes and releases a lock.
func Lock(roles ...Role) []TableRight {
	const table = "rollbackd_lock"
	all := []TableRight{
		{table, "SELECT", []Role{Daemon, Pages, CLI}},
		{table, "INSERT", []Role{Daemon, CLI}},
		{table, "UPDATE", []Role{Daemon, CLI}},
		{table, "DELETE", []Role{Daemon, CLI}},
	}
	return slices.DeleteFunc(all, func(r TableRight) bool { return !needed(r.By, roles) })
}

// Grants are the statements that give the rights on a schema to an account, which must exist. MySQL grants nothing on a
// table that does not exist: migrate first.
func Grants(rights []TableRight, schema, account string) []string {
	var tables []string
	privileges := map[string][]string{}
	for _, r := range rights {
		if len(privileges[r.Table]) == 0 {
			tables = append(tables, r.Table)
		}
		privileges[r.Table] = append(privileges[r.Table], r.Privilege)
	}
	statements := make([]string, len(tables))
	for i, table := range tables {
		on := "*"
		if table != "" {
			on = "`" + table + "`"
		}
		statements[i] = fmt.Sprintf("GRANT %s ON `%s`.%s TO %s", strings.Join(privileges[table], ", "), schema, on, account)
	}
	return statements
}
