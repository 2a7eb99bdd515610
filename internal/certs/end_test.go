package certs_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/certs"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// Given a file with a key and certificates, then its end is that of the certificate that ends first, as the file is at
// the moment; and a file that is gone, or holds none, has no end.
func TestAFileEndsWithItsFirstCertificate(t *testing.T) {
	key := require.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	secret := require.Get(x509.MarshalECPrivateKey(key))(t)
	text := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret})
	path := filepath.Join(t.TempDir(), "own.pem")
	end := certs.End(path)
	assert.That(t, math.IsNaN(end), "a file that is not there ends at %v", end)
	begin := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct{ days, end int }{{0, 0}, {30, 30}, {20, 20}, {40, 20}} { // each is added to the former
		if c.days > 0 {
			own := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: begin.AddDate(0, 0, c.days)}
			der := require.Get(x509.CreateCertificate(rand.Reader, own, own, key.Public(), key))(t)
			text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
		}
		require.OK(t, os.WriteFile(path, text, 0o600))
		end := certs.End(path)
		if want := float64(begin.AddDate(0, 0, c.end).Unix()); c.end == 0 != math.IsNaN(end) || c.end > 0 && end != want {
			t.Errorf("with one of %d days it ends at %v, want %v", c.days, end, want)
		}
	}
}
