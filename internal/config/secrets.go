package config

import (
	"errors"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
)

const mask = "***"

// secrecy says what of a value is a secret. There are those below and no others.
type secrecy struct {
	// show masks the secrets of a value that its rule accepts: the value is taken apart and written anew from what is
	// known to be harmless.
	show func(good string) string
	// fixed is what of such a value must stay while the process runs, when its file is read again.
	fixed func(good string) string
}

var (
	wholeText = &secrecy{show: func(string) string { return mask }, fixed: func(string) string { return "" }}
	dsnLogin  = &secrecy{show: showDSN, fixed: dsnWithoutLogin}
	urlLogins = &secrecy{show: eachURL(showURL), fixed: eachURL(urlWithoutLogin)}
	urlPath   = &secrecy{show: showWebhook, fixed: func(good string) string { return good }}
)

// show is raw with its secrets masked. Of a value that its own rule refuses nothing is shown but the scheme: where a
// password stands in it is anybody's guess, and refused values are what error messages show.
func (v Variable) show(raw string) string {
	switch {
	case v.secret == nil || v.isZero(raw):
		return raw
	case v.accepts(raw) || v.secret == wholeText:
		return v.secret.show(raw)
	}
	for _, scheme := range []string{"amqp", "amqps", "redis", "rediss", "http", "https", "mysql", "zookeeper"} {
		if strings.HasPrefix(raw, scheme+"://") {
			return scheme + "://" + mask
		}
	}
	return mask
}

// accepts reports whether the setting's own rule finds nothing wrong with the text.
func (v Variable) accepts(raw string) bool { return v.lineProblem(raw) == nil && v.accept(raw) == nil }

// lineProblem refuses what no URL, DSN or token has. It completes the sentence "NAME=value …".
func (v Variable) lineProblem(raw string) error {
	if v.secret != nil && !v.lines && strings.ContainsFunc(raw, unicode.IsControl) {
		return errors.New("has a control character in it, perhaps a second line: the value must be one line")
	}
	return nil
}

// What may be shown of a part: nothing in these could not also be a password, but a password does not stand there.
var (
	plainUser  = regexp.MustCompile(`^[A-Za-z0-9_.%-]{0,64}$`)
	plainHosts = regexp.MustCompile(`^[A-Za-z0-9_.:,\[\]-]+$`)
	plainPath  = regexp.MustCompile(`^[A-Za-z0-9_.%/-]*$`)
	plainNet   = regexp.MustCompile(`^(tcp|tcp4|tcp6|unix)$`)
	plainAddr  = regexp.MustCompile(`^[A-Za-z0-9_.:%/\[\]-]+$`)
	plainName  = regexp.MustCompile(`^[A-Za-z0-9_$.-]+$`)
	plainValue = regexp.MustCompile(`^(true|false|[0-9]{1,9}(ms|s|m|h)?)$`)
	plainTLS   = regexp.MustCompile(`^(true|false|skip-verify|preferred)$`)
)

// harmless are the parameters whose values are names of files or hosts, or one of a few words.
var harmless = map[string]*regexp.Regexp{
	"cacertfile": plainPath, "certfile": plainPath, "keyfile": plainPath, "server_name_indication": plainName,
	"ssl_ca_certs": plainPath, "ssl_certfile": plainPath, "ssl_keyfile": plainPath, "ssl_server_name": plainName,
	"ssl-ca": plainPath, "ssl-cert": plainPath, "ssl-key": plainPath, "tls-sni-servername": plainName, "tls": plainTLS,
}

// parameters are the names that are shown; what is not among them may be the rest of a password with an & in it.
var parameters = []string{
	"heartbeat", "connection_timeout", "channel_max", "auth_mechanism", "cacertfile", "certfile", "keyfile",
	"server_name_indication", "cluster", "master", "sentinel_user", "sentinel_password", "timeout", "readTimeout",
	"writeTimeout", "parseTime", "loc", "charset", "collation", "tls", "interpolateParams", "maxAllowedPacket",
	"multiStatements", "clientFoundRows", "rejectReadOnly", "checkConnLiveness", "allowNativePasswords",
	"allowCleartextPasswords", "allowAllFiles", "allowFallbackToPlaintext", "allowOldPasswords", "serverPubKey",
	"connectionAttributes", "columnsWithAlias",
	"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_server_name", "ssl-ca", "ssl-cert", "ssl-key",
	"tls-sni-servername",
}

// eachURL does with each URL of a list what f does with one. Each is whole, since the list's rule accepts it, so the
// list was not split inside a password.
func eachURL(f func(string) string) func(string) string {
	return func(list string) string { return listText(SplitURLs(list), f) }
}

// showURL shows a URL that its rule accepts. An @ behind the authority means that a character of a password, which
// should be encoded, ends it: what looks like the host is its beginning then.
func showURL(raw string) string {
	scheme, rest, _ := strings.Cut(raw, "://")
	if end := strings.IndexAny(rest, "/?#"); end >= 0 && strings.Contains(rest[end:], "@") {
		return scheme + "://" + mask
	}
	rest, query, hasQuery := strings.Cut(rest, "?")
	authority, path, hasPath := strings.Cut(rest, "/")
	shown := scheme + "://"
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		user, _, hasPassword := strings.Cut(authority[:at], ":")
		shown += showLogin(user, hasPassword)
		authority = authority[at+1:]
	}
	shown += only(plainHosts, authority)
	if hasPath {
		shown += "/" + only(plainPath, path)
	}
	if hasQuery {
		shown += "?" + showParameters(query)
	}
	return shown
}

// showDSN shows a DSN that its rule accepts.
func showDSN(raw string) string {
	dsn, err := mysqldb.ParseDSN(raw)
	if err != nil || !plainNet.MatchString(dsn.Net) || !plainAddr.MatchString(dsn.Addr) ||
		!plainName.MatchString(dsn.DBName) {
		return mask // a slash or a parenthesis somewhere has moved the parts
	}
	shown := showLogin(dsn.User, dsn.Passwd != "") + dsn.Net + "(" + dsn.Addr + ")/" + dsn.DBName
	if query, ok := mysqldb.QueryOf(raw); ok {
		shown += "?" + showParameters(query)
	}
	return shown
}

// showLogin hides a name that stands alone: it is often a password.
func showLogin(user string, hasPassword bool) string {
	if !hasPassword {
		return mask + "@"
	}
	return only(plainUser, user) + ":" + mask + "@"
}

func showParameters(query string) string {
	pairs := strings.Split(query, "&")
	for i, pair := range pairs {
		name, value, _ := strings.Cut(pair, "=")
		switch {
		case !slices.Contains(parameters, name):
			pairs[i] = mask
		case harmless[name] != nil && harmless[name].MatchString(value):
		case !plainValue.MatchString(value):
			pairs[i] = name + "=" + mask
		}
	}
	return strings.Join(pairs, "&")
}

func only(harmless *regexp.Regexp, part string) string {
	if harmless.MatchString(part) {
		return part
	}
	return mask
}

// showWebhook shows scheme and host only: the path of a webhook is often its secret.
func showWebhook(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return mask
	}
	shown := u.Scheme + "://" + only(plainHosts, u.Host)
	if shown != raw {
		shown += "/" + mask
	}
	return shown
}

// showPath is the name of a setting's file as errors show it. Where a file is asked for, people also put the secret
// itself.
func (v Variable) showPath(path string) string {
	if v.secret == nil || strings.HasPrefix(path, "/") && !strings.ContainsAny(path, "@;=?&\n") {
		return path
	}
	return mask
}

// shorten keeps an error's line readable.
func shorten(s string) string {
	const most = 120
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}
