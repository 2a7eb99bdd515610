package rabbit_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Given a broker behind TLS, when a message with unreadable headers comes, then it arrives with a mark as it does
// without TLS; and a certificate that nobody vouches for ends the dial.
func TestTheWalkerSeesPlainTextUnderTLS(t *testing.T) {
	t.Parallel()
	b := stack.AMQP(t)
	address, ca := overTLS(t, b.URL)
	u, err := url.Parse(b.URL)
	if err != nil {
		t.Fatal(err)
	}
	u.Scheme, u.Host = "amqps", address
	if _, err := rabbit.Dial(t.Context(), config(u.String())); err == nil ||
		!strings.Contains(err.Error(), "certificate") {
		t.Errorf("Dial without the certificate's authority = %v", err)
	}
	u.RawQuery = url.Values{"cacertfile": {ca}, "heartbeat": {"5"}}.Encode()
	c := dial(t, u.String())
	q := b.Name("main")
	b.DeclareQueue(q, quorum(nil))
	m := stack.RawMessage{Key: q, MessageID: "id", Headers: stack.UnreadableHeaders("m")[0].Entries, Body: []byte("b")}
	if err := dialRaw(t, b.URL).Publish(m); err != nil {
		t.Fatal(err)
	}
	publishN(t, publisher(t, config(u.String())), q, 1)
	got := collect(t, consume(t, c, q, 10), 2)
	if _, ok := rabbit.ReadUnreadable(got[0].Headers); !ok || got[0].MessageID != "id" || got[1].MessageID != "0" {
		t.Errorf("over TLS came %+v", got)
	}
}

// overTLS puts TLS before a broker, with a certificate of its own.
func overTLS(t *testing.T, target string) (address, caFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	caFile = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
	})
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer from.Close()
				to, err := net.Dial("tcp", u.Host)
				if err != nil {
					return
				}
				all.Go(func() {
					defer to.Close()
					_, _ = io.Copy(to, from) // ends with either side
				})
				_, _ = io.Copy(from, to)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		all.Wait()
	})
	return l.Addr().String(), caFile
}
