package ground

import (
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/must"
)

// Versions are the servers'.
func (g *Ground) Versions() map[string]string {
	f := g.open("")
	defer f.DB.Close()
	return map[string]string{
		"mysql": value[string](f, "SELECT VERSION()"), "rabbitmq": fmt.Sprint(g.amqp.Properties["version"]),
		"redis": must.Get(g.redis.InfoMap(g.Ctx, "server").Result())["Server"]["redis_version"],
	}
}

// Setup says how the servers are set up, where that is not their default.
func Setup() []string {
	return []string{
		"RabbitMQ: one quorum queue as the product declares it, persistent messages of about 130 bytes with a UUID as " +
			"message_id, published with confirms",
		"MySQL: innodb_flush_log_at_trx_commit=1, " + strings.NewReplacer("--loose-", "", "--", "").Replace(
			strings.Join(databaseOptions, ", ")) +
			", no binary log",
		"Redis: nothing on disk",
		"all clients: interpolateParams, READ COMMITTED",
	}
}

// Status reads some of MySQL's counters.
func (f *Field) Status(names ...string) map[string]int64 {
	values := map[string]int64{}
	f.Each("SHOW GLOBAL STATUS WHERE Variable_name IN ('"+strings.Join(names, "','")+"')",
		func(name string, value int64) { values[name] = value })
	if len(values) != len(names) {
		must.OK(fmt.Errorf("mysql tells %v, want %q", values, names))
	}
	return values
}

// eval runs an Erlang expression in RabbitMQ.
func (g *Ground) eval(expression string) string {
	return must.Get(g.Stack.RabbitMQ.Eval(g.Ctx, expression))
}

// Statement is one kind of statement and what it took.
type Statement struct {
	Text  string
	Count int64
	Total time.Duration
}

const statementsByKind = "performance_schema.events_statements_summary_by_digest"

// ForgetStatements begins the account of statements anew.
func (f *Field) ForgetStatements() { f.exec("TRUNCATE TABLE " + statementsByKind) }

// Statements are the kinds of statement that took most time since, the dearest first. The time is what the server spent
// on each, waiting for locks and for the disk included.
func (f *Field) Statements() (all []Statement) {
	must.Rows(f.ground.Ctx, f.DB, "SELECT DIGEST_TEXT, COUNT_STAR, SUM_TIMER_WAIT FROM "+statementsByKind+
		" WHERE SCHEMA_NAME = DATABASE() ORDER BY SUM_TIMER_WAIT DESC LIMIT 15", func(scan func(...any)) {
		var text sql.NullString
		var s Statement
		var picoseconds float64
		scan(&text, &s.Count, &picoseconds)
		s.Text, s.Total = text.String, time.Duration(picoseconds/1000)
		all = append(all, s)
	})
	return all
}
