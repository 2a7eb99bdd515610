package doctor

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/internal/certs"
)

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
