package rabbit

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rollbackd/rollbackd/internal/certs"
)

const urlExample = "amqp://USER:PASSWORD@HOST:5672/VHOST; in user, password and vhost write : / ? # [ ] @ % and " +
	"space percent-encoded, for example p%40ss for p@ss"

// TLSSetting begins the names of the settings for certificates.
const TLSSetting = "ROLLBACKD_AMQP_TLS"

// endpoint is one broker address. Only where may be shown: raw and uri hold the password.
type endpoint struct {
	raw   string
	uri   amqp.URI // the same, read
	where string   // host:port/vhost
	tls   certs.TLS
}

// encrypted reports whether TLS is spoken there.
func (e endpoint) encrypted() bool { return e.uri.Scheme == "amqps" }

// CheckURL says why RabbitMQ cannot be reached under this URL by its form alone, without ever quoting it.
func CheckURL(raw string) error {
	_, err := parseURL(raw)
	return err
}

// parseURL never passes on an error of net/url: those quote the URL, and after a wrong split the "port" is half a
// password.
func parseURL(raw string) (endpoint, error) {
	scheme, _, ok := strings.Cut(raw, "://")
	if !ok || scheme != "amqp" && scheme != "amqps" {
		return endpoint{}, errors.New("must start with amqp:// or amqps://, for example " + urlExample)
	}
	u, err := url.Parse(raw)
	if err != nil {
		return endpoint{}, errors.New("is not a valid URL; expected " + urlExample)
	}
	// A raw @ behind the host means that an unencoded / ? or # ended the password too early: what looks like a vhost is a
	// secret.
	if strings.Contains(u.EscapedPath()+u.RawQuery+u.EscapedFragment(), "@") || u.Fragment != "" {
		return endpoint{}, errors.New("has an unencoded character in its password or vhost; expected " + urlExample)
	}
	parsed, err := amqp.ParseURI(raw)
	if err != nil {
		return endpoint{}, errors.New("is not a valid AMQP URL (query parameters are heartbeat and connection_timeout " +
			"numbers, and certificate files); expected " + urlExample)
	}
	if parsed.Port < 1 || parsed.Port > 65535 {
		return endpoint{}, errors.New("has a port outside 1 to 65535")
	}
	where := net.JoinHostPort(parsed.Host, strconv.Itoa(parsed.Port)) + "/" + strings.TrimPrefix(parsed.Vhost, "/")
	e := endpoint{raw: raw, uri: parsed, where: where, tls: certs.TLS{
		CA: parsed.CACertFile, Cert: parsed.CertFile, Key: parsed.KeyFile, ServerName: parsed.ServerName,
	}}
	if e.tls != (certs.TLS{}) && !e.encrypted() {
		return endpoint{}, errors.New("names certificates, and what begins with amqp:// is not encrypted: write amqps://, " +
			"and the port for it, which is 5671 unless it is named")
	}
	if err := e.tls.Check(); err != nil {
		return endpoint{}, fmt.Errorf("names only one of certfile and keyfile: %w", err)
	}
	return e, nil
}

// tlsParameters are what RabbitMQ's clients call the parts of a [certs.TLS] in a URL.
var tlsParameters = certs.Names{"cacertfile", "certfile", "keyfile", "server_name_indication"}

// WithTLS writes certificates into a URL, where everybody who connects finds them. What the URL says already must be
// the same. The error completes a sentence about the settings, and quotes no secret.
func WithTLS(raw string, t certs.TLS) (string, error) {
	e, err := parseURL(raw)
	if err != nil || t == (certs.TLS{}) {
		return raw, err
	}
	if !e.encrypted() {
		return raw, errors.New("has no effect on a URL that begins with amqp://, which is not encrypted: write amqps:// in " +
			"ROLLBACKD_AMQP_URL, and the port for it")
	}
	return tlsParameters.Join(raw, certs.Query(raw), e.tls, t, TLSSetting, "ROLLBACKD_AMQP_URL")
}

// TLSOf is what the URL says of certificates; nothing if it is malformed.
func TLSOf(raw string) certs.TLS {
	e, _ := parseURL(raw)
	return e.tls
}

// Host is the URL's; empty if the URL is malformed.
func Host(raw string) string {
	e, _ := parseURL(raw)
	return e.uri.Host
}
