package cli

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// encrypted are three servers of the test's own that want certificates of everybody, and a shell whose settings name
// them.
type encrypted struct {
	*shell
	ca      *stack.Authority
	clients map[string]*stack.Pair // by the setting that begins AMQP_TLS and so on
}

// renew replaces the certificates of clients by others that name whom they are for, and ends all connections. From now
// on MySQL takes the new one alone.
func (e *encrypted) renew(name string) {
	for setting, days := range map[string]int{"AMQP_TLS": 9, "MYSQL_TLS": 40} {
		e.ca.Replace(e.clients[setting],
			stack.Certificate{Name: "renewed for " + name, To: time.Now().AddDate(0, 0, days).Add(time.Hour)})
	}
	e.exec("ALTER USER 'x509'@'%' REQUIRE SUBJECT '/CN=renewed for " + name + "'")
	e.cut("x509")
}

// cut ends the connections to MySQL of an account, and all to RabbitMQ.
func (s *shell) cut(user string) {
	for _, row := range stack.RowsOf(s.t, s.db(), "SELECT id AS id FROM "+stack.Processes+" WHERE user = '"+user+"'") {
		_, _ = s.db().ExecContext(s.t.Context(), "KILL "+row["id"]) // it may have ended by itself
	}
	s.broker.CloseConnections()
}

// showsRenewed looks that RabbitMQ has been shown the new certificate in the place of the former one.
func (e *encrypted) showsRenewed(name string) {
	renewed := e.broker.Eval(`lists:usort([string:find(S, "CN=renewed for ` + name + `") =/= nomatch || ` +
		`[{peer_cert_subject, S}] <- rabbit_networking:connection_info_all([peer_cert_subject]), ` +
		`is_binary(S) orelse is_list(S) andalso S =/= []])`)
	assert.Is(e.t, renewed, "[true]", "all connections of %s that show a certificate show the renewed one", name)
}

// Given servers that want client certificates, when every command is told of them by its settings alone, then each
// connects to whatever it needs, a message is applied, and doctor says what is encrypted and what expires, and warns of
// what is not encrypted or not verified.
func TestEveryCommandUsesTheCertificatesOfItsSettings(t *testing.T) {
	t.Parallel()
	ca := stack.NewAuthority(t, "Test CA")
	own := stack.Certificate{Name: "servers", Hosts: []string{"servers.test"}, To: time.Now().AddDate(1, 0, 0)}
	servers := stack.OwnEncrypted(t, stack.Encryption{Pair: ca.Issue(own), ClientsCA: ca.File, ClientsNeeded: true})
	e := &encrypted{ca: ca, clients: map[string]*stack.Pair{},
		shell: &shell{t: t, broker: servers.RabbitMQ.Broker(t), dsn: servers.MySQL.Database(t), queue: "stock.rollback"}}
	account := require.Get(mysql.ParseDSN(e.dsn))(t)
	e.exec("CREATE USER 'x509'@'%' IDENTIFIED BY 'secret' REQUIRE X509", "GRANT ALL ON "+account.DBName+".* TO 'x509'@'%'")
	account.User, account.Passwd = "x509", "secret"
	e.environ = []string{"ROLLBACKD_AMQP_URL=" + servers.RabbitMQ.TLSURL(), "ROLLBACKD_MYSQL_DSN=" + account.FormatDSN(),
		"ROLLBACKD_REDIS_URL=" + servers.Redis.TLSURL(), "ROLLBACKD_HTTP_ADDR=off"}
	for name, left := range map[string]int{"AMQP_TLS": 9, "MYSQL_TLS": 40, "REDIS_TLS": 29} {
		p := ca.Issue(stack.Certificate{Name: strings.ToLower(name), To: time.Now().AddDate(0, 0, left).Add(time.Hour)})
		e.clients[name] = &p
		e.environ = append(e.environ, "ROLLBACKD_"+name+"_CA_FILE="+ca.File, "ROLLBACKD_"+name+"_CERT_FILE="+p.Cert,
			"ROLLBACKD_"+name+"_KEY_FILE="+p.Key, "ROLLBACKD_"+name+"_SERVER_NAME=servers.test")
	}
	e.answers(exitDone, "", "", "migrate")
	e.exec("INSERT INTO stock VALUES (1001, 5, 0)", "INSERT INTO stock_reservation "+
		"(order_sn, sku_id, quantity, status, updated_at) VALUES ('sn-1', 1001, 2, 1, UTC_TIMESTAMP(6)), "+
		"('sn-2', 1001, 3, 1, UTC_TIMESTAMP(6))")
	e.answers(exitDone, "", `{"order_sn":"sn-1","items":[{"sku_id":1001,"quantity":2}]}`+"\n"+
		`{"order_sn":"bad","items":[]}`, "publish", "--key-field", "order_sn")
	stop := e.daemon()
	e.eventually(2, "SELECT COUNT(*) FROM consumer_log WHERE consumer_status IN (1, 3)")
	e.renew("run")
	e.answers(exitDone, "", `{"order_sn":"sn-2","items":[{"sku_id":1001,"quantity":3}]}`,
		"publish", "--key-field", "order_sn")
	e.eventually(10, "SELECT amount FROM stock WHERE sku_id = 1001")
	e.showsRenewed("run")
	stop()
	e.answers(exitDone, "", "", "migrate", "--outbox")
	stop = e.background("relay")
	for _, prefix := range []string{"before", "after"} {
		e.put(prefix, 1, "")
		e.eventually(0, "SELECT COUNT(*) FROM rollbackd_outbox")
		if prefix == "before" {
			e.renew("relay")
		}
	}
	e.showsRenewed("relay")
	stop()
	e.answers(exitDone, "success", "", "log", "explain", "sn-1")
	e.answers(exitDone, "malformed", "", "dlq", "list")
	e.answers(exitDone, "", "", "reconcile")
	e.answers(exitDone, "", "", "dlq", "discard", "--key", "bad", "--why", "a test")
	e.broker.DeclareQueue("old", map[string]any{"x-queue-type": "quorum"})
	e.answers(exitDone, "", "", "move", "--from", "old")

	text := strings.Join(strings.Fields(e.answers(exitDone, "", "", "doctor")), " ") // lines end where names let them
	for what, times := range map[string]int{
		"TLS 1.3, the server's certificate is verified": 3, ": 9 more days": 1, ": 29 more days": 1, "more days": 2,
		"CN=servers, to ": 3, "CN=renewed for relay, to ": 2, "secret": 0,
	} {
		assert.Is(t, strings.Count(text, what), times, "doctor says %q times, in\n%s", what, text)
	}
	text = e.answers(exitDone, e.ca.File, "", "config")
	assert.That(t, !strings.Contains(text, "secret"), "the settings are shown as\n%s", text)

	// Without one of them each command says which server refuses it, and why.
	for setting, server := range map[string]string{"AMQP_TLS": "RabbitMQ", "MYSQL_TLS": "MySQL", "REDIS_TLS": "Redis"} {
		environ := slices.DeleteFunc(slices.Clone(e.environ), func(v string) bool {
			return strings.Contains(v, setting+"_CERT_FILE") || strings.Contains(v, setting+"_KEY_FILE")
		})
		text, _, _ := runCLI(t, environ, "", "doctor")
		text = strings.Join(strings.Fields(text), " ")
		for _, want := range []string{server + " at ", "ROLLBACKD_" + setting + "_CERT_FILE and _KEY_FILE"} {
			assert.Has(t, text, want, "without %s doctor does not say", setting)
		}
	}

	// Connections in plain text to a host that is not certainly this one, or encrypted to a server that nobody verifies,
	// or that would go on in plain text: doctor warns of each, and says what to set.
	plain := strings.Replace(e.broker.URL, "127.0.0.1", "0.0.0.0", 1) // leads here too, which doctor cannot know
	account = require.Get(mysql.ParseDSN(e.dsn))(t)
	for verify, want := range map[string][]string{
		"false": {"ok mysql encryption: none, and none is needed"},
		"skip-verify": {"TLS 1.3, but the server's certificate is not verified",
			"name its CA in ROLLBACKD_MYSQL_TLS_CA_FILE"},
		"preferred": {"tls=preferred goes on in plain text when the server offers no TLS"},
	} {
		account.TLSConfig, account.TLS = verify, nil
		e.environ = []string{"ROLLBACKD_AMQP_URL=" + plain, "ROLLBACKD_MYSQL_DSN=" + account.FormatDSN(),
			"ROLLBACKD_REDIS_URL=off", "ROLLBACKD_HTTP_ADDR=off"}
		e.answers(exitDone, "", "", "migrate")
		text := strings.Join(strings.Fields(e.answers(exitDone, "", "", "doctor")), " ")
		for _, what := range append(want, "none, and 0.0.0.0 is not this host", "amqps:// in ROLLBACKD_AMQP_URL") {
			assert.Has(t, text, what, "with tls=%s doctor does not say", verify)
		}
	}
}

// Given a queue of the shop's own, when it is taken as it is, then migrate makes what stands beside it and prints the
// policy that the queue needs, and doctor says what it could not see.
func TestMigratePrintsThePolicyOfAQueueThatIsTakenAsItIs(t *testing.T) {
	s := newShell(t, "ROLLBACKD_TOPOLOGY=check")
	s.play("taken", map[string]func(){
		"the shop makes its queue": func() {
			s.broker.DeclareQueue(s.queue, map[string]any{"x-queue-type": "quorum", "x-delivery-limit": int32(50)})
		},
		"the queue is deleted":       func() { s.broker.Delete(s.queue) },
		"the queue is a classic one": func() { s.broker.DeclareQueue(s.queue, nil) },
	})
}

// Given a RabbitMQ of its own with the management API: doctor looks at a queue's policy, definitions that are gone come
// back, and the accounts of deploy/accounts suffice.
func TestWhatTheManagementOfRabbitMQShowsAndKeeps(t *testing.T) {
	t.Parallel()
	server := stack.Own(t,
		stack.Options{Only: []stack.Kind{stack.KindRabbitMQ}, RabbitMQPlugins: []string{"rabbitmq_management"}})
	t.Run("policy", func(t *testing.T) { doctorVerifiesThePolicy(t, server) })
	t.Run("definitions", func(t *testing.T) { theDefinitionsComeBack(t, server) })
	// the last one, because it takes rights away
	t.Run("accounts", func(t *testing.T) { theAccountFilesAreAllThatServersNeed(t, server) })
}

// When the queue has no policy, a wrong one, or the one that is printed, then doctor says what is missing, or that all
// is well.
func doctorVerifiesThePolicy(t *testing.T, server *stack.Server) {
	s := shellOf(t, "ROLLBACKD_TOPOLOGY=check")
	s.broker = server.Broker(t)
	s.set("AMQP_URL="+s.broker.URL, "RABBITMQ_API_URL="+server.HTTP())
	s.broker.DeclareQueue(s.queue, map[string]any{"x-queue-type": "quorum"})
	s.run("", "migrate")
	s.says("fail policy of the main queue = dead-letter-exchange is not set\n" +
		"fail policy of the main queue = delivery-limit is not set")
	good := map[string]any{"dead-letter-exchange": "", "dead-letter-routing-key": s.queue + ".backstop",
		"dead-letter-strategy": "at-least-once", "overflow": "reject-publish", "delivery-limit": 200}
	s.broker.Policy("rollbackd", s.queue, good)
	s.until("ok policy of the main queue = gives it what a declared one has") // the API follows a moment later
	good["dead-letter-routing-key"] = "elsewhere"
	s.broker.Policy("rollbackd", s.queue, good)
	s.until(`fail policy of the main queue = "elsewhere"`)
}
