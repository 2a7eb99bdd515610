// Package certs is what all clients of rollbackd share about TLS: PEM files that are read again before each connection
// ([Store]), the configuration of one handshake ([Handshake]), and what it means when one fails, in words that say
// whose certificate is wrong, how, and what to do ([Error]).
//
// What lives here: what is true of certificates, whatever protocol is spoken above them. What must not: connections,
// and imports of other packages of this module.
package certs

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math"
	"net/url"
	"os"
	"strings"
	"sync"
)

// TLS says whom a client trusts and who it is itself. The zero value is the system's list, and nobody.
type TLS struct {
	// CA is a PEM file with the certificates of those who may sign the server's; empty: the system's list.
	CA string
	// Cert and Key are PEM files: the client's certificate, with its chain behind it, and its key. Both or none.
	Cert, Key string
	// ServerName is expected in the server's certificate, and sent to the server; empty: the host of its address.
	ServerName string
}

// Names are what the four parts of a TLS are called somewhere, in the order of its fields.
type Names [4]string

// Settings end the names of the settings for them.
var Settings = Names{"_CA_FILE", "_CERT_FILE", "_KEY_FILE", "_SERVER_NAME"}

func (t *TLS) parts() [4]*string { return [4]*string{&t.CA, &t.Cert, &t.Key, &t.ServerName} }

// Of is the TLS whose parts get gives by these names.
func (n Names) Of(get func(name string) string) (t TLS) {
	for i, part := range t.parts() {
		*part = get(n[i])
	}
	return t
}

// Join writes t into a URL or DSN, which has says of it already what it says under these names. sep goes before what is
// written first, setting begins the names of the settings that t comes from, and place is the one that the URL comes
// from: both are for the error when they contradict each other, which completes a sentence about the settings.
func (n Names) Join(raw, sep string, has, t TLS, setting, place string) (string, error) {
	whole, there := raw, has.parts()
	for i, part := range t.parts() {
		switch {
		case *part == "":
			*part = *there[i]
		case *there[i] == "":
			whole += sep + n[i] + "=" + url.QueryEscape(*part)
			sep = "&"
		case *part != *there[i]:
			return raw, fmt.Errorf("contradicts the URL or DSN: %s and %s in %s differ: keep one", setting+Settings[i], n[i],
				place)
		}
	}
	return whole, t.Check()
}

// Query is what goes before the first parameter that is written behind a URL.
func Query(raw string) string {
	if strings.Contains(raw, "?") {
		return "&"
	}
	return "?"
}

// Check refuses a certificate without its key, and a key without its certificate.
func (t TLS) Check() error {
	if (t.Cert == "") != (t.Key == "") {
		return errors.New("the client's certificate and its key belong together: name the files of both, or of none")
	}
	return nil
}

// Store makes configurations from files as they are at the moment, and keeps the last good one of each: while a file
// cannot be read, or is only half written, the former certificates stay in use. The zero value is ready, a nil Store
// keeps nothing. Safe for many goroutines.
type Store struct {
	// Warn, if set, is told why files cannot be used that could be before, once until that changes.
	Warn func(error)
	// Seen, if set, is told of each handshake that came to its end: what the server showed, and our own certificate, nil
	// if we have none.
	Seen func(server tls.ConnectionState, client *x509.Certificate)

	mu   sync.Mutex
	kept map[TLS]*kept // guarded by mu
}

// kept is what the files of one client held when they were last good.
type kept struct {
	text   [3]string
	config *tls.Config
	told   string // what was warned of and still holds
}

// Config is for a handshake with what stands in the files now. It is the same pointer while they stay as they are; do
// not change it. An error is an [Error] and means that they were never good.
func (s *Store) Config(t TLS) (*tls.Config, error) {
	if s == nil {
		s = &Store{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.kept[t]
	text, config, err := t.read()
	if err == nil && k != nil && text == k.text {
		k.told = ""
		return k.config, nil
	}
	switch {
	case err == nil:
		if s.kept == nil {
			s.kept = map[TLS]*kept{}
		}
		s.kept[t] = &kept{text: text, config: config}
		return config, nil
	case k == nil:
		return nil, &Error{What: "the files of the certificates cannot be used", Err: err}
	case err.Error() != k.told:
		k.told = err.Error()
		if s.Warn != nil {
			s.Warn(fmt.Errorf("%w; the former certificates stay in use", err))
		}
	}
	return k.config, nil
}

// read is what the files hold, and what that is good for.
func (t TLS) read() (text [3]string, config *tls.Config, err error) {
	for i, name := range []string{t.CA, t.Cert, t.Key} {
		if name != "" {
			content, err := os.ReadFile(name)
			if err != nil {
				return text, nil, err
			}
			text[i] = string(content)
		}
	}
	if err := t.Check(); err != nil {
		return text, nil, err
	}
	config = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CA != "" {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM([]byte(text[0])) {
			return text, nil, errors.New(t.CA + " holds no certificate in PEM form")
		}
	}
	if t.Cert != "" {
		pair, err := tls.X509KeyPair([]byte(text[1]), []byte(text[2]))
		if err != nil {
			return text, nil, fmt.Errorf("%s and %s: %w", t.Cert, t.Key, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return text, config, nil
}

// End is the Unix time in seconds at which the first of the certificates in a PEM file ends; NaN if it holds none.
func End(file string) float64 {
	end := math.NaN()
	text, err := os.ReadFile(file)
	for block, rest := pem.Decode(text); err == nil && block != nil; block, rest = pem.Decode(rest) {
		if c, err := x509.ParseCertificate(block.Bytes); err == nil && block.Type == "CERTIFICATE" {
			if at := float64(c.NotAfter.Unix()); math.IsNaN(end) || at < end {
				end = at
			}
		}
	}
	return end
}
