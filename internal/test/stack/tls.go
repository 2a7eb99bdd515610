package stack

import (
	"cmp"
	"context"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/internal/test/require"
)

// Encryption is what a server needs to speak TLS.
type Encryption struct {
	Pair                 // the server's own certificate
	ClientsCA     string // who signs the certificates of clients
	ClientsNeeded bool   // whoever has none is refused; of MySQL the account says so, with REQUIRE X509
}

// TLSURL is how a client that speaks TLS reaches the server, by its address; of MySQL it is the URL with tls=true.
func (s *Server) TLSURL() string {
	u, err := url.Parse(s.url)
	switch {
	case s.kind == KindMySQL:
		return s.url + map[bool]string{true: "&", false: "?"}[strings.Contains(s.url, "?")] + "tls=true"
	case err != nil:
		return ""
	}
	u.Scheme, u.Host = u.Scheme+"s", s.tlsAddr
	return u.String()
}

// TLSAddr is host and port of TLS.
func (s *Server) TLSAddr() string { return cmp.Or(s.tlsAddr, s.addr) }

// ReloadCertificates makes the server read the files of its certificates again. Connections that stand stay.
func (s *Server) ReloadCertificates(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	switch s.kind {
	case KindRabbitMQ: // which keeps what it has read for two minutes
		evalForTest(t, s.node, "ssl:clear_pem_cache()")
	case KindMySQL:
		reload := "FLUSH SSL" // MariaDB's
		if filepath.Base(s.main.command().Path) == "mysqld" {
			reload = "ALTER INSTANCE RELOAD TLS"
		}
		execMySQL(t, s.url, reload)
	case KindRedis:
		client := redis.NewClient(&redis.Options{Addr: s.addr, Protocol: 2})
		defer client.Close()
		require.OK(t, client.ConfigSet(ctx, "tls-cert-file", s.encryption.Cert).Err())
	}
}
