package repo

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/template"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/rights"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/grants"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

func TestRightsPageHoldsTheList(t *testing.T) {
	generated(t, "docs/rights.md", "<!-- rights: go test ./internal/test/repo -run Rights -update -->\n",
		"<!-- end of rights -->", filled(t, "rights.md", "trade_mq_consumer_log"))
}

// What administrators load into the servers: the two accounts with exactly their rights, and the policy of the main
// queue. The schema is `shop`, the vhost /.
func TestAccountFilesHoldTheRights(t *testing.T) {
	const dir = "deploy/accounts"
	entries := require.Get(os.ReadDir(filepath.Join(root(t), dir)))(t)
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
		text := filled(t, entry.Name(), "")
		if strings.HasSuffix(entry.Name(), ".json") {
			var indented bytes.Buffer
			require.OK(t, json.Indent(&indented, []byte(text), "", "  "))
			text = indented.String()
		}
		generated(t, dir+"/"+entry.Name(), "", "", text)
	}
	want := []string{"mysql-1-migrate.sql", "mysql-2-daemon.sql", "mysql-3-outbox.sql", "rabbitmq-definitions.json",
		"redis-users.acl"}
	assert.That(t, slices.Equal(names, want), "%s holds %q, want %q", dir, names, want)
}

// filled is a form of testdata/rights with the rights for an installation with the usual names.
func filled(t *testing.T, form, classic string) string {
	t.Helper()
	d := consumer.Defaults()
	n := rights.Names{LogTable: d.LogTable, Exchange: d.Exchange, Queue: d.Queue, Stock: true, Classic: classic}
	type account struct {
		Name, Password string
		Rights         []rights.Resource
	}
	work := []rights.Role{rights.Daemon, rights.Retention, rights.Compensation, rights.Webhook, rights.Pages, rights.CLI}
	accounts := []account{
		{"rollbackd_migrate", grants.MigratePassword, rights.RabbitMQ(n, rights.Migrate)},
		{"rollbackd", grants.DaemonPassword, rights.RabbitMQ(n, work...)},
	}
	name := form + ".tmpl"
	forms, err := template.New(name).Funcs(template.FuncMap{
		"acl": grants.ACL, "join": strings.Join, "pattern": grants.Pattern,
		"grants": func(account string, list []rights.TableRight) string {
			return strings.Join(grants.Grants(list, "shop", "'"+account+"'@'%'"), ";\n") + ";"
		},
		"json": func(v any) (string, error) { text, err := json.Marshal(v); return string(text), err },
		"cell": func(text string) string { return strings.ReplaceAll(text, "|", `\|`) },
		"quoted": func(rule []string) string { // for redis-cli
			for i, word := range rule {
				if strings.ContainsAny(word, "*>|&") {
					rule[i] = "'" + word + "'"
				}
			}
			return strings.Join(rule, " ")
		},
		"roles": func(n rights.Need) string {
			var text []string
			for _, r := range n.By {
				text = append(text, string(r))
			}
			return strings.Join(text, ", ")
		},
	}).ParseFiles("testdata/rights/" + name)
	require.OK(t, err)
	var text strings.Builder
	require.OK(t, forms.Execute(&text, map[string]any{
		"Migrate": rights.MySQL(n, rights.Migrate), "Work": rights.MySQL(n, work...), "Lock": rights.Lock(work...),
		"TakeOver": rights.MySQL(n, rights.TakeOver), "Within": rights.Outbox(true, work...),
		"Producer": rights.MySQL(n, rights.Producer), "Relay": rights.MySQL(n, rights.Relay),
		"Sender":   rights.RabbitMQ(n, rights.Relay),
		"Tables":   append(rights.MySQL(n, rights.Roles()...), rights.Lock(rights.Roles()...)...),
		"Commands": rights.Redis(work...), "Cluster": rights.RedisCluster(),
		"Sentinels": grants.SentinelACL("rollbackd", "PASSWORD"),
		"Accounts":  accounts, "ByName": []account{accounts[1], accounts[0]},
		"Resources": rights.RabbitMQ(n, rights.Roles()...), "Policy": rabbit.TopologyConfig{Queue: n.Queue}.MainPolicy(),
	}))
	return text.String()
}
