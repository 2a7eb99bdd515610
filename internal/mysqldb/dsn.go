package mysqldb

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/rollbackd/rollbackd/internal/certs"
)

// DSNForm is what a DSN looks like.
const DSNForm = "user:password@tcp(host:3306)/database"

// TLSSetting begins the names of the settings for certificates.
const TLSSetting = "ROLLBACKD_MYSQL_TLS"

// tlsParameters name the parts of a [certs.TLS] in a DSN as MySQL's own clients name them. The driver knows none of
// them.
var tlsParameters = certs.Names{"ssl-ca", "ssl-cert", "ssl-key", "tls-sni-servername"}

// ParseDSN reads a DSN and refuses one that cannot be what was meant. The driver quotes parts of a DSN that it cannot
// read, and in one that is malformed the password may be any part; so no error here holds any. They complete a sentence
// whose subject is the DSN. Certificates stand in Params, under the names that they have in the DSN.
func ParseDSN(raw string) (*mysql.Config, error) {
	whole := raw
	if base, query, ok := cutQuery(raw); ok {
		// The driver looks for the last slash, which in a file's name is not the one before the database.
		whole = base + "?" + strings.ReplaceAll(query, "/", "%2F")
	}
	dsn, err := mysql.ParseDSN(whole)
	switch {
	case strings.Contains(whole, "://"):
		return nil, errors.New("is a URL; wanted is the form " + DSNForm)
	case err != nil:
		before, _, has := strings.Cut(whole, "?")
		if _, err := mysql.ParseDSN(before); has && err == nil {
			return nil, errors.New("has a parameter after the ? that the driver refuses (a duration needs its unit; tls is " +
				"true, skip-verify, preferred or false)")
		}
		return nil, errors.New("is not of the form " + DSNForm)
	case dsn.DBName == "":
		return nil, errors.New("names no database after the last /")
	case dsn.User == "":
		return nil, errors.New("names no user")
	case strings.ContainsAny(dsn.User, "/;=()?& "):
		return nil, errors.New("has a user that looks like something else; wanted is the form " + DSNForm)
	case strings.ContainsAny(dsn.DBName, "@()?&;="): // a slash in the password, and no database after it
		return nil, errors.New("has a last / that is not before the database; wanted is the form " + DSNForm)
	}
	for _, name := range tlsParameters {
		if value, has := dsn.Params[name]; has && value == "" {
			return nil, fmt.Errorf("has %s without a value", name)
		}
	}
	return dsn, checkTLS(dsn)
}

// cutQuery cuts a DSN at the ? before its parameters, which is not one in a password.
func cutQuery(raw string) (base, query string, ok bool) {
	i := strings.LastIndexByte(raw, '?')
	if i < 0 {
		return raw, "", false
	}
	if _, err := mysql.ParseDSN(raw[:i]); err != nil {
		return raw, "", false
	}
	return raw[:i], raw[i+1:], true
}

// TLSOf is what a DSN that was parsed says of certificates.
func TLSOf(dsn *mysql.Config) certs.TLS {
	return tlsParameters.Of(func(name string) string { return dsn.Params[name] })
}

// contradicts says what is wrong with a tls of the DSN beside certificates; what is not listed is a name.
var contradicts = map[string]string{
	"": "", "true": "",
	"false":       "says tls=false, and certificates are named: take tls=false out",
	"preferred":   "says tls=preferred, which goes on without encryption, and certificates are named: write tls=true",
	"skip-verify": "says tls=skip-verify, which looks at no certificate, and a CA is named: write tls=true",
}

// checkTLS refuses what a DSN says of encryption when it contradicts itself.
func checkTLS(dsn *mysql.Config) error {
	t := TLSOf(dsn)
	named := t != (certs.TLS{})
	why, known := contradicts[dsn.TLSConfig]
	if !known {
		why = "says tls=NAME, a configuration of the program's, and certificates are named: keep one"
	}
	if why != "" && named && (dsn.TLSConfig != "skip-verify" || t.CA != "") {
		return errors.New(why)
	}
	if err := t.Check(); err != nil {
		return fmt.Errorf("names only one of ssl-cert and ssl-key: %w", err)
	}
	verified := named && dsn.TLSConfig != "skip-verify" || dsn.TLSConfig == "true"
	if verified && dsn.Net == "unix" && t.ServerName == "" {
		return errors.New("asks for TLS on a Unix socket, whose server has no name that could be verified: say which, with " +
			"tls-sni-servername")
	}
	return nil
}

// WithTLS writes certificates into a DSN, where everybody who connects finds them. What the DSN says already must be
// the same. The error completes a sentence about the settings, and quotes no secret.
func WithTLS(raw string, t certs.TLS) (string, error) {
	dsn, err := ParseDSN(raw)
	if err != nil || t == (certs.TLS{}) {
		return raw, err
	}
	sep := "?"
	if _, ok := QueryOf(raw); ok { // a ? may stand in a password too
		sep = "&"
	}
	whole, err := tlsParameters.Join(raw, sep, TLSOf(dsn), t, TLSSetting, "ROLLBACKD_MYSQL_DSN")
	if err != nil {
		return raw, err
	}
	if _, err := ParseDSN(whole); err != nil {
		return raw, fmt.Errorf("cannot be used with ROLLBACKD_MYSQL_DSN, which %w", err)
	}
	return whole, nil
}

// QueryOf is what stands behind the ? of a DSN, if it has one.
func QueryOf(raw string) (query string, ok bool) {
	_, query, ok = cutQuery(raw)
	return query, ok
}

// HostOf is the host of a DSN that was parsed, and empty for a Unix socket.
func HostOf(dsn *mysql.Config) string {
	if dsn.Net == "unix" {
		return ""
	}
	host, _, err := net.SplitHostPort(dsn.Addr)
	if err != nil {
		return dsn.Addr
	}
	return host
}
