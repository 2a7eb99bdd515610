package rights

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// The accounts that the files make, each with a word of the administrator's in the place of its password.
const (
	migrateAccount = "rollbackd_migrate"
	daemonAccount  = "rollbackd"

	MigratePassword = "MIGRATE_PASSWORD"
	DaemonPassword  = "DAEMON_PASSWORD"
	AdminPassword   = "ADMIN_PASSWORD"
)

// Files are what administrators load into the servers, by the files' names: the two accounts with exactly their rights,
// and the policy of the main queue. The schema is `shop`, the vhost /.
func Files(n Names) (map[string]string, error) {
	definitions, err := definitions(n)
	if err != nil {
		return nil, err
	}
	return map[string]string{
		"rabbitmq-definitions.json": definitions,
		"mysql-1-migrate.sql": grantFile(n, "before `rollbackd migrate`: the schema, and the account that makes the tables",
			"CREATE DATABASE IF NOT EXISTS `"+schema+"`;\n", migrateAccount, MigratePassword, Migrate),
		"mysql-2-daemon.sql": grantFile(n, "after the first `rollbackd migrate`: nothing can be granted on a table that "+
			"does not exist", "", daemonAccount, DaemonPassword, work()...),
		"redis-users.acl": aclFile(),
	}, nil
}

const schema = "shop"

// work are the roles of the account that daemon and command line share.
func work() []Role {
	return slices.DeleteFunc(Roles(), func(r Role) bool { return r == Migrate || r == TakeOver })
}

func grantFile(n Names, when, first, account, password string, roles ...Role) string {
	var b strings.Builder
	fmt.Fprintf(&b, "-- Load it %s.\n%s", when, first)
	user := "'" + account + "'@'%'"
	fmt.Fprintf(&b, "CREATE USER IF NOT EXISTS %s IDENTIFIED BY '%s';\n", user, password)
	for _, grant := range Grants(MySQL(n, roles...), schema, user) {
		b.WriteString(grant + ";\n")
	}
	return b.String()
}

// aclFile is for Redis' setting aclfile, which takes no comments. Whoever names no account may do nothing.
func aclFile() string {
	rule := ACL(Redis(work()...), daemonAccount, DaemonPassword)[2:] // without ACL SETUSER
	return "user default off resetpass\n" +
		"user admin reset on >" + AdminPassword + " ~* &* +@all\n" +
		"user " + strings.Join(rule, " ") + "\n"
}

// definitions is what `rabbitmqctl import_definitions` takes.
func definitions(n Names) (string, error) {
	type user struct {
		Name     string `json:"name"`
		Password string `json:"password"`
		Tags     string `json:"tags"`
	}
	type permission struct {
		User      string `json:"user"`
		VHost     string `json:"vhost"`
		Configure string `json:"configure"`
		Write     string `json:"write"`
		Read      string `json:"read"`
	}
	type policy struct {
		rabbit.Policy

		VHost   string `json:"vhost"`
		ApplyTo string `json:"apply-to"`
	}
	accounts := map[string][]Role{migrateAccount: {Migrate}, daemonAccount: work()}
	var d struct {
		VHosts      []map[string]string `json:"vhosts"`
		Users       []user              `json:"users"`
		Permissions []permission        `json:"permissions"`
		Policies    []policy            `json:"policies"`
	}
	const vhost = "/"
	d.VHosts = []map[string]string{{"name": vhost}}
	passwords := map[string]string{migrateAccount: MigratePassword, daemonAccount: DaemonPassword}
	for _, name := range slices.Sorted(maps.Keys(accounts)) {
		list := RabbitMQ(n, accounts[name]...)
		d.Users = append(d.Users, user{Name: name, Password: passwords[name]})
		d.Permissions = append(d.Permissions, permission{
			name, vhost, Pattern(list, Configure), Pattern(list, Write), Pattern(list, Read)})
	}
	// quorum_queues would say more, but RabbitMQ knows the word only from 3.12 on, and the pattern matches one name.
	d.Policies = []policy{{rabbit.TopologyConfig{Queue: n.Queue}.MainPolicy(), vhost, "queues"}}
	text, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return "", fmt.Errorf("write RabbitMQ's definitions: %w", err)
	}
	return string(text) + "\n", nil
}
