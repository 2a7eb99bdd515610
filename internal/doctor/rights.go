package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/internal/certs"
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

// soon is how long before its end a certificate is worth a word.
const soon = 30 * 24 * time.Hour

// tlsPage is where an operator finds what to do about certificates.
const tlsPage = "docs/tls.md"

// shown are the certificates that the handshakes with one server have shown.
type shown struct {
	mu      sync.Mutex
	version string              // of TLS; empty: no handshake; guarded by mu
	chains  []*x509.Certificate // the server's and those of its authorities; guarded by mu
	client  *x509.Certificate   // ours; guarded by mu
	checked bool                // the server's was verified; guarded by mu
}

// store makes certificates, and notes what each handshake shows.
func (s *shown) store() *certs.Store { return &certs.Store{Seen: s.see} }

func (s *shown) see(state tls.ConnectionState, client *x509.Certificate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version, s.client, s.checked = tls.VersionName(state.Version), client, len(state.VerifiedChains) > 0
	add := state.PeerCertificates[:min(1, len(state.PeerCertificates))]
	if s.checked {
		add = state.VerifiedChains[0]
	}
	for _, c := range add {
		if !slices.ContainsFunc(s.chains, c.Equal) {
			s.chains = append(s.chains, c)
		}
	}
}

// tell says what is to be known about encryption and certificates of a server at these hosts. setting is the one that
// names it, and encrypt how that asks for encryption.
func (s *shown) tell(a *area, hosts []string, prefix, setting, encrypt string) (encrypted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	remote := slices.DeleteFunc(hosts, isLoopback)
	plain := s.version == ""
	a.tell("encryption",
		warnIf(plain && len(remote) > 0, "none, and "+strings.Join(remote[:min(1, len(remote))], "")+" is not this host: "+
			"whoever is on the way reads passwords and messages, and may change them", encrypt+" in "+setting+
			", see "+tlsPage),
		okIf(plain, "none, and none is needed: it does not leave this host"),
		warnIf(!s.checked, s.version+", but the server's certificate is not verified: whoever is on the way may be the "+
			"server", "verify it: "+encrypt+" in "+setting+", and name its CA in "+prefix+"_CA_FILE, see "+
			tlsPage),
		fine(s.version+", the server's certificate is verified"))
	for i, c := range s.chains {
		whose := "server's certificate"
		if i > 0 && c.IsCA {
			whose = "certificate of the server's CA"
		}
		a.expiry(whose, c, "renew it at the server")
	}
	if s.client != nil {
		a.expiry("our client certificate", s.client, "renew "+prefix+"_CERT_FILE and _KEY_FILE: they are read again without "+
			"a restart")
	}
	return !plain
}

// orCertificates is advice, unless err is about certificates: it says itself what to do.
func orCertificates(err error, advice string) string {
	if _, ok := errors.AsType[*certs.Error](err); ok {
		return "see " + tlsPage
	}
	return advice
}

// expiry says how long a certificate lasts.
func (a *area) expiry(whose string, c *x509.Certificate, do string) {
	left := time.Until(c.NotAfter)
	found := fmt.Sprintf("%s, to %s", c.Subject, c.NotAfter.UTC().Format("2006-01-02 15:04 MST"))
	a.tell(whose, warnIf(left <= 0, found+": it has expired", do),
		warnIf(left < soon, fmt.Sprintf("%s: %d more days", found, int(left/(24*time.Hour))), do),
		fine(found))
}

// isLoopback reports whether what is sent to a host stays on this one. A Unix socket has no host.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "" || host == "localhost" || ip != nil && ip.IsLoopback()
}
