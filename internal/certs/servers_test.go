package certs_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/certs"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/redisdb"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/lock"
)

func TestMain(m *testing.M) { stack.Main(m) }

// place is a server that wants client certificates, and how this program connects to it.
type place struct {
	name, setting string
	server        *stack.Server
	target        string // a URL or DSN that speaks TLS and names no certificates
	withTLS       func(raw string, t certs.TLS) (string, error)
	connect       func(ctx context.Context, target string, config *tls.Config, store *certs.Store) error
}

// world is three servers behind one authority, which clients have to show a certificate of.
type world struct {
	trusted, foreign *stack.Authority
	server           stack.Pair
	servers          *stack.Stack
	places           []place
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{trusted: stack.NewAuthority(t, "Trusted CA"), foreign: stack.NewAuthority(t, "Foreign CA")}
	w.server = w.trusted.Issue(serverCertificate())
	w.servers = stack.OwnEncrypted(t, stack.Encryption{Pair: w.server, ClientsCA: w.trusted.File, ClientsNeeded: true})
	dsn := w.servers.MySQL.Database(t)
	admin := require.First(mysqldb.Open(t.Context(), dsn, mysqldb.Options{MaxOpen: 1}))(t)
	require.OK(t, admin.Exec("CREATE USER 'x509'@'%' IDENTIFIED BY 'secret' REQUIRE X509").Error)
	require.OK(t, admin.Exec("GRANT ALL ON *.* TO 'x509'@'%'").Error)
	require.OK(t, require.Get(admin.DB())(t).Close())
	account := require.Get(mysql.ParseDSN(dsn))(t)
	account.User, account.Passwd = "x509", "secret"
	w.places = []place{
		{"RabbitMQ", rabbit.TLSSetting, w.servers.RabbitMQ, w.servers.RabbitMQ.TLSURL(), rabbit.WithTLS, dialRabbit},
		{"MySQL", mysqldb.TLSSetting, w.servers.MySQL, account.FormatDSN(), mysqldb.WithTLS, dialMySQL},
		{"Redis", redisdb.TLSSetting, w.servers.Redis, w.servers.Redis.TLSURL(), redisdb.WithTLS, dialRedis},
	}
	return w
}

func serverCertificate() stack.Certificate {
	return stack.Certificate{Name: "server", Hosts: []string{"127.0.0.1", "broker.test"}}
}

func dialRabbit(ctx context.Context, target string, config *tls.Config, store *certs.Store) error {
	c, err := rabbit.Dial(ctx, rabbit.Config{URLs: []string{target}, Name: "certs", TLS: config, Certs: store})
	if err != nil {
		return err
	}
	return c.Close()
}

func dialMySQL(ctx context.Context, target string, config *tls.Config, store *certs.Store) error {
	db, _, err := mysqldb.Open(ctx, target, mysqldb.Options{MaxOpen: 1, TLS: config, Certs: store})
	if err != nil {
		return err
	}
	pool, err := db.DB()
	if err != nil {
		return err
	}
	return errors.Join(pool.PingContext(ctx), pool.Close())
}

func dialRedis(ctx context.Context, target string, config *tls.Config, store *certs.Store) error {
	client, err := redisdb.Open(target, redisdb.Options{TLS: config, Connections: 1, Certs: store})
	if err != nil {
		return err
	}
	return errors.Join(client.Ping(ctx).Err(), client.Close())
}

// with is the place's URL with these certificates.
func (p place) with(t *testing.T, c certs.TLS) string {
	t.Helper()
	return require.Get(p.withTLS(p.target, c))(t)
}

// Given servers of its own that want client certificates: a program gives its own configurations of TLS, renewed ones
// are used for the next connection, and each server says which certificate is wrong, at last that its own has expired.
func TestServersThatWantCertificates(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t.Run("program", func(t *testing.T) { aProgramGivesItsOwnConfigurations(t, w) })
	t.Run("renewed", func(t *testing.T) { renewedCertificatesAreUsedForTheNextConnection(t, w) })
	t.Run("wrong", func(t *testing.T) { eachServerSaysWhichCertificateIsWrong(t, w) })
}

// When a client has the right ones, then it connects; when something is wrong with one of them, then the error says
// which server, what is wrong with whose certificate, and the setting to look at.
func eachServerSaysWhichCertificateIsWrong(t *testing.T, w *world) {
	day := 24 * time.Hour
	good := w.trusted.Issue(stack.Certificate{Name: "client"})
	stranger := w.foreign.Issue(stack.Certificate{Name: "stranger"})
	old := w.trusted.Issue(stack.Certificate{Name: "old", From: time.Now().Add(-3 * day), To: time.Now().Add(-2 * day)})
	right := certs.TLS{CA: w.trusted.File, Cert: good.Cert, Key: good.Key}
	both := []struct {
		name string
		tls  certs.TLS
		says []string // empty: it connects; SETTING stands for the server's
	}{
		{"right", right, nil},
		{"wrong CA", certs.TLS{CA: w.foreign.File, Cert: good.Cert, Key: good.Key},
			[]string{"TLS: the server's certificate is signed by nobody who is trusted here",
				"SETTING_CA_FILE, which is now /"}},
		{"the system's list", certs.TLS{Cert: good.Cert, Key: good.Key},
			[]string{"signed by nobody who is trusted here", "SETTING_CA_FILE, which is not set"}},
		{"wrong name", certs.TLS{CA: w.trusted.File, Cert: good.Cert, Key: good.Key, ServerName: "other.test"},
			[]string{`the server's certificate is not for "other.test" but for broker.test, 127.0.0.1`,
				"SETTING_SERVER_NAME which to expect, which is now other.test"}},
		{"another of its names", certs.TLS{CA: w.trusted.File, Cert: good.Cert, Key: good.Key, ServerName: "broker.test"},
			nil},
		{"no client certificate", certs.TLS{CA: w.trusted.File},
			[]string{"client certificate, and we have none", "SETTING_CERT_FILE and _KEY_FILE"}},
		{"a stranger's", certs.TLS{CA: w.trusted.File, Cert: stranger.Cert, Key: stranger.Key},
			[]string{"the server refuses our client certificate, CN=stranger", "SETTING_CERT_FILE"}},
		{"expired", certs.TLS{CA: w.trusted.File, Cert: old.Cert, Key: old.Key},
			[]string{"our client certificate, CN=old, has expired on ", ": renew SETTING_CERT_FILE"}},
	}
	expect := func(t *testing.T, p place, name string, says []string, err error) {
		t.Helper()
		t.Logf("%s, %s: %v", p.name, name, err)
		if assert.Is(t, err == nil, len(says) == 0, "%s, %s: it connects", p.name, name); err == nil || len(says) == 0 {
			return
		}
		for _, want := range append(says, p.name+" at "+p.server.TLSAddr()) {
			want = strings.ReplaceAll(want, "SETTING", p.setting)
			assert.Has(t, err.Error(), want, "%s, %s: %v", p.name, name, err)
		}
		assert.That(t, !strings.Contains(err.Error(), "secret"), "%s, %s shows the password: %v", p.name, name, err)
		_, said := errors.AsType[*rabbit.BrokerError](err) // in AMQP's own words
		assert.That(t, said || mysqldb.Classify(err) == mysqldb.FaultUnavailable, "%s, %s: class of %v", p.name, name, err)
	}
	for _, p := range w.places {
		for _, test := range both {
			expect(t, p, test.name, test.says, p.connect(t.Context(), p.with(t, test.tls), nil, nil))
		}
		// The same under TLS 1.2, which says it in the handshake, and with a configuration of the program's.
		for name, of := range map[string]struct {
			pair *stack.Pair
			says []string
		}{
			"1.2, right":                 {&good, nil},
			"1.2, no client certificate": {nil, []string{"client certificate, and we have none"}},
			"1.2, expired":               {&old, []string{"our client certificate, CN=old, has expired on "}},
			"1.2, a stranger's":          {&stranger, []string{"the server refuses our client certificate, CN=stranger"}},
		} {
			config := w.trusted.Client(of.pair)
			config.MaxVersion = tls.VersionTLS12
			expect(t, p, name, of.says, p.connect(t.Context(), p.target, config, nil))
		}
	}

	// A certificate of the server's that expires. MySQL takes none that has.
	expires := time.Now().Add(10 * time.Second)
	w.trusted.Replace(&w.server, stack.Certificate{Name: "server", Hosts: serverCertificate().Hosts, To: expires})
	for _, p := range w.places {
		p.server.ReloadCertificates(t)
	}
	<-time.After(time.Until(expires) + time.Second) // a certificate knows whole seconds
	for _, p := range w.places {
		err := p.connect(t.Context(), p.with(t, right), nil, nil)
		expect(t, p, "the server's has expired", []string{"the server's certificate, CN=server, has expired on ",
			": renew it at the server"}, err)
	}
}

// When certificates are renewed in their files, then the next connection uses the new ones; when the files are broken,
// then the former ones stay in use, and one warning says so.
func renewedCertificatesAreUsedForTheNextConnection(t *testing.T, w *world) {
	for _, p := range w.places {
		t.Run(p.name, func(t *testing.T) {
			ours := w.trusted.Issue(stack.Certificate{Name: "first"})
			var warned []error
			seen := make(chan string, 10)
			store := &certs.Store{
				Warn: func(err error) { warned = append(warned, err) },
				Seen: func(_ tls.ConnectionState, client *x509.Certificate) { seen <- client.Subject.CommonName },
			}
			target := p.with(t, certs.TLS{CA: w.trusted.File, Cert: ours.Cert, Key: ours.Key})
			connect := func() {
				t.Helper()
				assert.OK(t, p.connect(t.Context(), target, nil, store))
			}
			connect()
			w.trusted.Replace(&ours, stack.Certificate{Name: "second"})
			connect()
			other := w.foreign.Issue(stack.Certificate{Name: "half"}) // its certificate with our key
			require.OK(t, os.WriteFile(ours.Cert, require.Get(os.ReadFile(other.Cert))(t), 0o600))
			connect()
			connect()
			assert.That(t, len(warned) == 1 && strings.Contains(warned[0].Error(), "the former certificates stay in use"),
				"warned of %v, want once of the broken files", warned)
			w.trusted.Replace(&ours, stack.Certificate{Name: "third"})
			connect()
			for i, want := range []string{"first", "second", "second", "second", "third"} {
				assert.Is(t, <-seen, want, "connection %d has the certificate", i)
			}
			assert.Is(t, len(seen), 0, "other connections")
		})
	}
}

// Given servers without TLS, when TLS is asked for, then the error says that they speak none.
func TestAServerWithoutTLSIsTold(t *testing.T) {
	t.Parallel()
	broker := stack.AMQP(t)
	// MySQL, and MariaDB from 11.4 on, make certificates of their own. Each of them knows one of these words.
	noTLS := stack.Own(t, stack.Options{
		Only: []stack.Kind{stack.KindMySQL}, MySQLArgs: []string{"--loose-skip-ssl", "--loose-tls-version="},
	})
	rabbitURL := strings.Replace(broker.URL, "amqp://", "amqps://", 1)
	redisURL := strings.Replace(stack.Redis(t), "redis://", "rediss://", 1)
	for _, of := range []struct {
		server, says string
		err          error
	}{
		{"RabbitMQ at " + stack.Addr(t, rabbitURL), "does not speak TLS", dialRabbit(t.Context(), rabbitURL, nil, nil)},
		{"MySQL at ", "does not speak TLS", dialMySQL(t.Context(), noTLS.Database(t)+"?tls=true", nil, nil)},
		// It waits for the end of a line.
		{"Redis at " + stack.Addr(t, redisURL), "does the server speak TLS on this port?",
			dialRedis(t.Context(), redisURL, nil, nil)},
	} {
		assert.That(t, of.err != nil && strings.Contains(of.err.Error(), of.server) && strings.Contains(of.err.Error(),
			of.says), "%v, want %s … %s", of.err, of.server, of.says)
	}
}

// Given a configuration of the program's, when a URL or DSN says something of TLS itself, or cannot be encrypted, then
// nothing connects, whatever would have come of it.
func TestAConfigurationAndAURLThatContradictAreRefused(t *testing.T) {
	t.Parallel()
	for target, want := range map[string]string{
		"amqp://127.0.0.1:1/":                                 "begins with amqp://",
		"amqps://127.0.0.1:1/?cacertfile=/ca":                 "keep one",
		"u:p@tcp(127.0.0.1:1)/d?tls=true":                     "keep one",
		"u:p@tcp(127.0.0.1:1)/d?tls=false":                    "keep one",
		"u:p@tcp(127.0.0.1:1)/d?tls-sni-servername=n":         "keep one",
		"redis://127.0.0.1:1":                                 "begins with redis://",
		"rediss://127.0.0.1:1?ssl_server_name=n":              "keep one",
		"amqps://127.0.0.1:1/?cacertfile=/no/such/file":       "",
		"u:p@tcp(127.0.0.1:1)/d?ssl-ca=/no/such/file":         "",
		"rediss://127.0.0.1:1?ssl_ca_certs=%2Fno%2Fsuch/file": "",
	} {
		connect, config := dialMySQL, &tls.Config{MinVersion: tls.VersionTLS12}
		switch {
		case strings.HasPrefix(target, "amqp"):
			connect = dialRabbit
		case strings.HasPrefix(target, "redis"):
			connect = dialRedis
		}
		if want == "" { // the file is missing
			config, want = nil, "open /no/such/file"
			if strings.HasPrefix(target, "amqp") { // which looks first whether anybody is there
				err := rabbit.Config{URLs: []string{target}}.CheckTLS()
				connect = func(context.Context, string, *tls.Config, *certs.Store) error { return err }
			}
		}
		err := connect(t.Context(), target, config, nil)
		assert.That(t, err != nil && strings.Contains(err.Error(), want), "%s: %v, want %q", target, err, want)
	}
}

// When a program gives a configuration of TLS for each server, then a message is applied and a dead letter can be read;
// none of them is in plain text.
func aProgramGivesItsOwnConfigurations(t *testing.T, w *world) {
	client := w.trusted.Issue(stack.Certificate{Name: "program"})
	logs := &strings.Builder{}
	ended := make(chan consumer.Ended, 2)
	cfg := consumer.Config{
		AMQPURLs: []string{w.places[0].target}, MySQLDSN: w.places[1].target, RedisURL: w.places[2].target,
		AMQPTLS: w.trusted.Client(&client), MySQLTLS: w.trusted.Client(&client), RedisTLS: w.trusted.Client(&client),
		LockOnError: lock.Pause,
		Queue:       "q", Migrate: true, Observe: func(e consumer.Ended) { ended <- e },
		Logger: slog.New(slog.NewTextHandler(logs, nil)),
	}
	pool := require.First(dedup.Open(t.Context(), cfg.MySQLDSN, dedup.OpenOptions{TLS: cfg.MySQLTLS}))(t)
	db := require.Get(pool.DB())(t)
	defer db.Close()
	require.OK(t, pool.Exec("CREATE TABLE effect (k VARBINARY(255) NOT NULL)").Error)
	c := require.Get(consumer.Open(t.Context(), cfg, consumer.Each(
		func(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
			if m.Key == "bad" {
				return consumer.Permanent(context.DeadlineExceeded)
			}
			return tx.Exec("INSERT INTO effect VALUES (?)", m.Key).Error
		})))(t)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	broker := w.servers.RabbitMQ.Broker(t)
	poll.Until(t, "somebody consumes", func() bool { return broker.Consumers("q") > 0 })
	outcomes := map[string]consumer.Outcome{}
	for _, key := range []string{"good", "bad"} {
		broker.Publish("", "q", stack.Message{MessageId: key, Body: []byte("{}"), DeliveryMode: 2})
		e := <-ended
		outcomes[e.Key] = e.Outcome
	}
	assert.That(t, outcomes["good"] == consumer.Applied && outcomes["bad"] == consumer.DeadLettered, "ends: %v", outcomes)
	stop()
	require.OK(t, <-done)
	text := logs.String()
	assert.That(t, !strings.Contains(text, "redis failed") && !strings.Contains(text, "secret"), "the log says\n%s", text)
	letters := require.Get(cfg.Letters(pool))(t)
	var seen []string
	_, err := letters.Survey(t.Context(), deadletter.SurveyOptions{
		Each: func(l deadletter.Surveyed) error { seen = append(seen, l.Row.Key); return nil },
	})
	assert.That(t, err == nil && len(seen) == 1 && seen[0] == "bad", "the letters: %q, %v; want the one of bad", seen, err)
}

// Given a file with a key and certificates, then its end is that of the certificate that ends first, as the file is at
// the moment; and a file that is gone, or holds none, has no end.
func TestAFileEndsWithItsFirstCertificate(t *testing.T) {
	authority := stack.NewAuthority(t, "CA")
	text := require.Get(os.ReadFile(authority.Issue(stack.Certificate{}).Key))(t)
	path := filepath.Join(t.TempDir(), "own.pem")
	end := certs.End(path)
	assert.That(t, math.IsNaN(end), "a file that is not there ends at %v", end)
	begin := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct{ days, end int }{{0, 0}, {30, 30}, {20, 20}, {40, 20}} { // each is added to the former
		if c.days > 0 {
			own := authority.Issue(stack.Certificate{To: begin.AddDate(0, 0, c.days)})
			text = append(text, require.Get(os.ReadFile(own.Cert))(t)...)
		}
		require.OK(t, os.WriteFile(path, text, 0o600))
		end := certs.End(path)
		if want := float64(begin.AddDate(0, 0, c.end).Unix()); c.end == 0 != math.IsNaN(end) || c.end > 0 && end != want {
			t.Errorf("with one of %d days it ends at %v, want %v", c.days, end, want)
		}
	}
}
