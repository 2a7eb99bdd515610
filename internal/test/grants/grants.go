// Package grants writes the list of internal/rights as commands for an administrator: for the documents, for
// deploy/accounts, and for tests that run everything under exactly these rights. It must not know who needs what.
package grants

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/rollbackd/rollbackd/internal/rights"
)

// The words in the files of deploy/accounts that stand for passwords.
const (
	MigratePassword = "MIGRATE_PASSWORD"
	DaemonPassword  = "DAEMON_PASSWORD"
	AdminPassword   = "ADMIN_PASSWORD"
)

// Grants are the statements that give the rights on a schema to an account, which must exist. MySQL grants nothing on a
// table that does not exist: migrate first.
func Grants(list []rights.TableRight, schema, account string) (statements []string) {
	for i, r := range list {
		privileges := r.Privilege
		for _, next := range list[i+1:] {
			if next.Table == r.Table {
				privileges += ", " + next.Privilege
			}
		}
		if i > 0 && list[i-1].Table == r.Table {
			continue // they stand side by side
		}
		on := "*"
		if r.Table != "" {
			on = "`" + r.Table + "`"
		}
		statements = append(statements, fmt.Sprintf("GRANT %s ON `%s`.%s TO %s", privileges, schema, on, account))
	}
	return statements
}

// ACL is the command that makes an account of Redis with a password and these commands, and nothing else.
func ACL(commands []rights.Command, user, password string) []string {
	rule := []string{"ACL", "SETUSER", user, "reset", "on", ">" + password, "~" + rights.RedisKeys}
	for _, c := range commands {
		rule = append(rule, "+"+c.Name)
	}
	return rule
}

// SentinelACL is the command that makes an account of a sentinel with a password, for who finds a master there and
// hears of another one. The last two are doctor's.
func SentinelACL(user, password string) []string {
	return []string{"ACL", "SETUSER", user, "reset", "on", ">" + password, "&+switch-master", "&+replica-reconf-done",
		"+client|setname", "+ping", "+subscribe", "+sentinel|get-master-addr-by-name", "+sentinel|sentinels",
		"+sentinel|replicas", "+sentinel|ckquorum"}
}

// Pattern is the regular expression for one kind of permission, as `rabbitmqctl set_permissions` takes it; it matches
// nothing when there is nothing.
func Pattern(resources []rights.Resource, p rights.Permission) string {
	var names []string
	for _, r := range resources {
		if r.Permission == p {
			// of a name that stands for the retry queues, all of them
			names = append(names, strings.Replace(regexp.QuoteMeta(r.Name), `.retry\.\*`, `.retry\.[0-9a-z.]+`, 1))
		}
	}
	if len(names) == 0 {
		return "^$"
	}
	return "^(" + strings.Join(names, "|") + ")$"
}
