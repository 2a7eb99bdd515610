package rabbit

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

const urlExample = "amqp://USER:PASSWORD@HOST:5672/VHOST; in user, password and vhost write : / ? # [ ] @ % and " +
	"space percent-encoded, for example p%40ss for p@ss"

// endpoint is one broker address. Only where may be shown: raw and uri hold the password.
type endpoint struct {
	raw   string
	uri   amqp.URI // the same, read
	where string   // host:port/vhost
}

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
	return endpoint{raw: raw, uri: parsed, where: where}, nil
}

func parseURLs(raw []string) ([]endpoint, error) {
	if len(raw) == 0 {
		return nil, errors.New("no AMQP URL given; expected " + urlExample)
	}
	var all []endpoint
	for i, r := range raw {
		e, err := parseURL(r)
		if err != nil {
			return nil, fmt.Errorf("AMQP URL %d of %d %w", i+1, len(raw), err)
		}
		all = append(all, e)
	}
	return all, nil
}
