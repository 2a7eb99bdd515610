package doctor

import (
	"context"
	"database/sql"
	"strings"
)

// checkDefaults looks at what the server does with sessions that say nothing else: who can change it only for the
// server, and what rollbackd changes for itself.
func checkDefaults(ctx context.Context, pool *sql.DB, l *list) {
	defaults, err := variables(ctx, pool, "log_bin", "binlog_format", "transaction_read_only", "tx_read_only",
		"system_versioning_asof", "wsrep_on", "wsrep_provider")
	if err != nil {
		l.note("server's defaults", "not shown: "+err.Error())
		return
	}
	if isOn(defaults["log_bin"]) && defaults["binlog_format"] == "STATEMENT" {
		l.fail("binlog_format", "STATEMENT: the server refuses every write at READ COMMITTED (error 1665)",
			"SET GLOBAL binlog_format = 'ROW', and in the server's configuration; the daemon lacks the right to do it")
	}
	if asOf := defaults["system_versioning_asof"]; asOf != "" && asOf != "DEFAULT" {
		l.fail("system_versioning_asof", asOf+": tables with system versioning are read as they were then",
			"SET GLOBAL system_versioning_asof = DEFAULT, and in the server's configuration")
	}
	if p := defaults["wsrep_provider"]; p != "" && p != "NONE" && !isOn(defaults["wsrep_on"]) {
		l.fail("wsrep_on", "OFF: what is written on this node does not reach the cluster", "SET GLOBAL wsrep_on = ON")
	}
	if isOn(defaults["transaction_read_only"]) || isOn(defaults["tx_read_only"]) {
		l.note("transaction_read_only", "ON by default: rollbackd's sessions are read-write all the same; the primary?")
	}
}

// variables are the server's own values, in capitals; those that it does not know are absent.
func variables(ctx context.Context, pool *sql.DB, names ...string) (values map[string]string, err error) {
	rows, err := pool.QueryContext(ctx, "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('"+strings.Join(names, "', '")+"')")
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // rows.Err tells
	values = map[string]string{}
	for rows.Next() {
		var name, value string
		if err := rows.Scan(&name, &value); err != nil {
			return nil, err
		}
		values[strings.ToLower(name)] = strings.ToUpper(value)
	}
	return values, rows.Err()
}

func isOn(value string) bool { return value == "ON" || value == "1" }
