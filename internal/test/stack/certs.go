package stack

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// Authority signs certificates for a test.
type Authority struct {
	// File is the PEM file of its own certificate.
	File string

	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Certificate says what an [Authority] signs. The zero value is a client's, good for a day.
type Certificate struct {
	Name  string   // the common name
	Hosts []string // names and addresses of a server; a client has none
	// From and To bound it; zero: an hour ago, and in a day.
	From, To time.Time
}

// Pair are the PEM files of a certificate and its key, and what the certificate says.
type Pair struct {
	Cert, Key string
	Leaf      *x509.Certificate
}

// NewAuthority makes an authority whose files are gone with the test.
func NewAuthority(t testing.TB, name string) *Authority {
	t.Helper()
	a := &Authority{t: t, File: filepath.Join(t.TempDir(), "ca.pem"), cert: &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(365 * 24 * time.Hour),
		KeyUsage: x509.KeyUsageCertSign,
	}}
	require.OK(t, must.Catch(func() { a.cert, a.key = a.sign(a.cert, a.File) }))
	return a
}

// sign signs a certificate, its own if it has none yet, and writes it into a file.
func (a *Authority) sign(template *x509.Certificate, file string) (*x509.Certificate, *ecdsa.PrivateKey) {
	key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template.SerialNumber = must.Get(rand.Int(rand.Reader, big.NewInt(1<<62)))
	der := must.Get(x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, cmp.Or(a.key, key)))
	writePEM(file, "CERTIFICATE", der)
	return must.Get(x509.ParseCertificate(der)), key
}

// Issue signs a certificate and writes it into new files.
func (a *Authority) Issue(c Certificate) Pair {
	a.t.Helper()
	dir := a.t.TempDir()
	p := Pair{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	a.Replace(&p, c)
	return p
}

// Replace signs another certificate and puts it into the files of a pair.
func (a *Authority) Replace(p *Pair, c Certificate) {
	a.t.Helper()
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: c.Name}, NotBefore: cmp.Or(c.From, time.Now().Add(-time.Hour)),
		NotAfter: cmp.Or(c.To, time.Now().Add(24*time.Hour)),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, host := range c.Hosts {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	require.OK(a.t, must.Catch(func() {
		var key *ecdsa.PrivateKey
		p.Leaf, key = a.sign(template, p.Cert)
		writePEM(p.Key, "PRIVATE KEY", must.Get(x509.MarshalPKCS8PrivateKey(key)))
	}))
}

// Client is a configuration that trusts this authority and shows a certificate, if there is one.
func (a *Authority) Client(p *Pair) *tls.Config {
	a.t.Helper()
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
	config.RootCAs.AddCert(a.cert)
	if p != nil {
		config.Certificates = []tls.Certificate{require.Get(tls.LoadX509KeyPair(p.Cert, p.Key))(a.t)}
	}
	return config
}

func writePEM(path, kind string, der []byte) {
	must.OK(os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}

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
