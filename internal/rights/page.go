package rights

import (
	"fmt"
	"strings"
)

// Markdown is the part of docs/rights.md that is made from the list, for an installation with these names.
func Markdown(n Names) string {
	var b strings.Builder
	work := work()

	b.WriteString("## MySQL\n\n```sql\n" +
		"CREATE USER 'rollbackd_migrate'@'%' IDENTIFIED BY 'PASSWORD';\n")
	for _, grant := range Grants(MySQL(n, Migrate), "shop", "'rollbackd_migrate'@'%'") {
		b.WriteString(grant + ";\n")
	}
	b.WriteString("-- after the first `consumer migrate`: nothing can be granted on a table that does not exist\n" +
		"CREATE USER 'rollbackd'@'%' IDENTIFIED BY 'PASSWORD';\n")
	for _, grant := range Grants(MySQL(n, work...), "shop", "'rollbackd'@'%'") {
		b.WriteString(grant + ";\n")
	}
	b.WriteString("-- for ROLLBACKD_LOCK=mysql, after the first `consumer migrate` with it\n")
	for _, grant := range Grants(Lock(work...), "shop", "'rollbackd'@'%'") {
		b.WriteString(grant + ";\n")
	}
	b.WriteString("-- may be left out, and is only to name who holds rows that it waits for: on MariaDB, and on MySQL\n" +
		"GRANT PROCESS ON *.* TO 'rollbackd'@'%';\n" +
		"GRANT SELECT ON `performance_schema`.* TO 'rollbackd'@'%';\n")
	b.WriteString("-- for `consumer migrate --from`, while the classic table is taken over; it needs nothing else\n" +
		"CREATE USER 'rollbackd_take_over'@'%' IDENTIFIED BY 'PASSWORD';\n")
	for _, grant := range Grants(MySQL(n, TakeOver), "shop", "'rollbackd_take_over'@'%'") {
		b.WriteString(grant + ";\n")
	}
	b.WriteString("```\n\n| table | right | needed by |\n|---|---|---|\n")
	for _, r := range append(MySQL(n, Roles()...), Lock(Roles()...)...) {
		table := "`" + r.Table + "`"
		if r.Table == "" {
			table = "the schema"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", table, r.Privilege, words(r.By))
	}
	b.WriteString("| the server, on MariaDB | PROCESS | daemon, cli, only to name who holds rows that they wait for |\n" +
		"| `performance_schema`, on MySQL | SELECT | the same |\n")

	b.WriteString("\n## Redis\n\n```\n" + ACLText(ACL(Redis(work...), "rollbackd", "PASSWORD")) +
		"\n```\n\nA cluster's account also needs `+" + strings.Join(RedisCluster(), "` and `+") + "`.\n\n" +
		"Sentinels have accounts of their own, which are made on each of them (`sentinel_user` and `sentinel_password` in " +
		"the\nURL):\n\n" +
		"```\n" + ACLText(SentinelACL("rollbackd", "PASSWORD")) + "\n```\n\n" +
		"| command | for | needed by |\n|---|---|---|\n")
	for _, c := range Redis(work...) {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", strings.ReplaceAll(c.Name, "|", `\|`), c.For, words(c.By))
	}

	b.WriteString("\n## RabbitMQ\n\n```\n")
	for _, account := range []struct {
		name  string
		roles []Role
	}{{"rollbackd_migrate", []Role{Migrate}}, {"rollbackd", work}} {
		list := RabbitMQ(n, account.roles...)
		fmt.Fprintf(&b, "rabbitmqctl add_user %s 'PASSWORD'\n", account.name)
		fmt.Fprintf(&b, "rabbitmqctl set_permissions -p / %s \\\n  '%s' \\\n  '%s' \\\n  '%s'\n", account.name,
			Pattern(list, Configure), Pattern(list, Write), Pattern(list, Read))
	}
	b.WriteString("```\n\n| permission | on | needed by |\n|---|---|---|\n")
	for _, r := range RabbitMQ(n, Roles()...) {
		fmt.Fprintf(&b, "| %s | `%s` | %s |\n", r.Permission, r.Name, words(r.By))
	}
	return b.String()
}

func words(roles []Role) string {
	text := make([]string, len(roles))
	for i, r := range roles {
		text[i] = string(r)
	}
	return strings.Join(text, ", ")
}
