package certs

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
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

// Merge joins what two places say of one client. name says how each part is called in both, for the error when they
// contradict each other.
func (t TLS) Merge(other TLS, name func(part string) (here, there string)) (TLS, error) {
	for _, p := range []struct {
		part  string
		mine  *string
		other string
	}{
		{"ca", &t.CA, other.CA}, {"cert", &t.Cert, other.Cert}, {"key", &t.Key, other.Key},
		{"name", &t.ServerName, other.ServerName},
	} {
		if *p.mine != "" && p.other != "" && *p.mine != p.other {
			here, there := name(p.part)
			return t, fmt.Errorf("contradicts the URL or DSN: %s and %s differ: keep one", here, there)
		}
		*p.mine = cmp.Or(*p.mine, p.other)
	}
	return t, nil
}

// SettingOf is the name of the setting for a part of a TLS; prefix begins it.
func SettingOf(prefix, part string) string {
	ends := map[string]string{"ca": "_CA_FILE", "cert": "_CERT_FILE", "key": "_KEY_FILE", "name": "_SERVER_NAME"}
	return prefix + ends[part]
}

// Missing is what has to be written behind a URL that says already what has says, so that it says t: with the names
// that the parts have in it. behind: it has a query.
func (t TLS) Missing(has TLS, names map[string]string, behind bool) string {
	var text strings.Builder
	for _, p := range []struct{ part, value, has string }{
		{"ca", t.CA, has.CA}, {"cert", t.Cert, has.Cert}, {"key", t.Key, has.Key}, {"name", t.ServerName, has.ServerName},
	} {
		if p.value == "" || p.has != "" {
			continue
		}
		sep := "?"
		if behind || text.Len() > 0 {
			sep = "&"
		}
		text.WriteString(sep + names[p.part] + "=" + url.QueryEscape(p.value))
	}
	return text.String()
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
	text   contents
	config *tls.Config
	told   string // what was warned of and still holds
}

// contents are those of the three files.
type contents struct{ ca, cert, key string }

// Config is for a handshake with what stands in the files now. It is the same pointer while they stay as they are; do
// not change it. An error is an [Error] and means that they were never good.
func (s *Store) Config(t TLS) (*tls.Config, error) {
	if s == nil {
		s = &Store{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.kept[t]
	text, err := t.read()
	if err == nil && k != nil && text == k.text {
		k.told = ""
		return k.config, nil
	}
	var config *tls.Config
	if err == nil {
		config, err = t.config(text)
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

func (t TLS) read() (c contents, err error) {
	for _, f := range []struct {
		name string
		to   *string
	}{{t.CA, &c.ca}, {t.Cert, &c.cert}, {t.Key, &c.key}} {
		if f.name == "" {
			continue
		}
		content, err := os.ReadFile(f.name)
		if err != nil {
			return c, err
		}
		*f.to = string(content)
	}
	return c, nil
}

func (t TLS) config(c contents) (*tls.Config, error) {
	if err := t.Check(); err != nil {
		return nil, err
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CA != "" {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM([]byte(c.ca)) {
			return nil, errors.New(t.CA + " holds no certificate in PEM form")
		}
	}
	if t.Cert != "" {
		pair, err := tls.X509KeyPair([]byte(c.cert), []byte(c.key))
		if err != nil {
			return nil, fmt.Errorf("%s and %s: %w", t.Cert, t.Key, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}
