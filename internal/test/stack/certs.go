package stack

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
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
	a := &Authority{t: t, File: filepath.Join(t.TempDir(), "ca.pem"), key: newKey(t)}
	template := &x509.Certificate{
		SerialNumber: serial(t), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(365 * 24 * time.Hour),
		KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err == nil {
		a.cert, err = x509.ParseCertificate(der)
	}
	if err != nil {
		t.Fatalf("make a certificate authority: %v", err)
	}
	writePEM(t, a.File, "CERTIFICATE", der)
	return a
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
		SerialNumber: serial(a.t), Subject: pkix.Name{CommonName: c.Name}, NotBefore: c.From, NotAfter: c.To,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if c.From.IsZero() {
		template.NotBefore = time.Now().Add(-time.Hour)
	}
	if c.To.IsZero() {
		template.NotAfter = time.Now().Add(24 * time.Hour)
	}
	for _, host := range c.Hosts {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	key := newKey(a.t)
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatalf("sign a certificate: %v", err)
	}
	if p.Leaf, err = x509.ParseCertificate(der); err != nil {
		a.t.Fatalf("read a certificate: %v", err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatalf("write a key: %v", err)
	}
	writePEM(a.t, p.Cert, "CERTIFICATE", der)
	writePEM(a.t, p.Key, "PRIVATE KEY", keyDER)
}

// Client is a configuration that trusts this authority and shows a certificate, if there is one.
func (a *Authority) Client(p *Pair) *tls.Config {
	a.t.Helper()
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
	config.RootCAs.AddCert(a.cert)
	if p != nil {
		pair, err := tls.LoadX509KeyPair(p.Cert, p.Key)
		if err != nil {
			a.t.Fatalf("load a certificate: %v", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatalf("make a key: %v", err)
	}
	return key
}

func serial(t testing.TB) *big.Int {
	t.Helper()
	n, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatalf("make a serial number: %v", err)
	}
	return n
}

func writePEM(t testing.TB, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(fmt.Errorf("write a certificate: %w", err))
	}
}
