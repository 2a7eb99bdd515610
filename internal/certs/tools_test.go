package certs_test

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/require"
)

func (c *clients) add(_ tls.ConnectionState, client *x509.Certificate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, client.Subject.CommonName)
}

func (c *clients) names() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.all, " ")
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, text, 0o600)
	}
	require.OK(t, err)
}
