package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"unicode"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/redisdb"
)

const mask = "***"

// secrecy says what of a value is a secret. There are those below and no others.
type secrecy struct {
	// show masks the secrets of a value that its rule accepts: the value is taken apart and written anew from what is
	// known to be harmless.
	show func(good string) string
	// fixed is what of such a value must stay while the process runs, when its file is read again.
	fixed func(good string) string
	lines bool // it may have several
}

var (
	wholeText = &secrecy{show: func(string) string { return mask }, fixed: func(string) string { return "" }}
	textLines = &secrecy{show: wholeText.show, fixed: wholeText.fixed, lines: true}
	dsnLogin  = &secrecy{show: showDSN, fixed: dsnWithoutLogin}
	urlLogins = &secrecy{show: each(showURL), fixed: each(urlWithoutLogin)}
	urlPath   = &secrecy{show: showWebhook, fixed: func(good string) string { return good }}
)

var knownScheme = regexp.MustCompile(`^(amqps?|rediss?|https?|mysql|zookeeper)://`)

// show is raw with its secrets masked. Of a value that its own rule refuses nothing is shown but the scheme: where a
// password stands in it is anybody's guess, and refused values are what error messages show.
func (v Variable) show(raw string) string {
	switch {
	case v.secret == nil || raw == "":
		return raw
	case v.accepts(raw):
		return v.secret.show(raw)
	case v.secret == wholeText || v.secret == textLines:
		return mask
	}
	return knownScheme.FindString(raw) + mask
}

// accepts reports whether the setting's own rule finds nothing wrong with the text.
func (v Variable) accepts(raw string) bool {
	_, err := v.reads(raw)
	return err == nil
}

// reads is the setting's own rule, and that no URL, DSN or token has several lines. An error completes the sentence
// "NAME=value …".
func (v Variable) reads(raw string) (put func(), err error) {
	if v.secret != nil && !v.secret.lines && strings.ContainsFunc(raw, unicode.IsControl) {
		return nil, errors.New("has a control character in it, perhaps a second line: the value must be one line")
	}
	return v.read(raw)
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

// parameters are those whose names are shown, each with its values that are; what is not among them may be the rest of
// a password with an & in it. Beside words and numbers, harmless are the names of files and hosts.
var parameters = func() map[string]*regexp.Regexp {
	known := map[string]*regexp.Regexp{"tls": plainTLS}
	for harmless, names := range map[*regexp.Regexp]string{
		plainPath: "cacertfile certfile keyfile ssl_ca_certs ssl_certfile ssl_keyfile ssl-ca ssl-cert ssl-key",
		plainName: "server_name_indication ssl_server_name tls-sni-servername",
		plainValue: "heartbeat connection_timeout channel_max auth_mechanism cluster master sentinel_user " +
			"sentinel_password timeout readTimeout writeTimeout parseTime loc charset collation interpolateParams " +
			"maxAllowedPacket multiStatements clientFoundRows rejectReadOnly checkConnLiveness allowNativePasswords " +
			"allowCleartextPasswords allowAllFiles allowFallbackToPlaintext allowOldPasswords serverPubKey " +
			"connectionAttributes columnsWithAlias",
	} {
		for name := range strings.FieldsSeq(names) {
			known[name] = harmless
		}
	}
	return known
}()

// each does with each URL of a list what f does with one. Each is whole, since the list's rule accepts it, so the
// list was not split inside a password.
func each(f func(string) string) func(string) string {
	return func(list string) string { return listText(redisdb.SplitURLs(list), f) }
}

// urlForm is scheme, login, hosts, path and query of a URL, each with what sets it off. The last @ of an authority ends
// the login.
var urlForm = regexp.MustCompile(`^(\w+://)([^/?#]*@)?([^/?#@]*)(/[^?]*)?(\?.*)?$`)

// showURL shows a URL that its rule accepts. An @ behind the authority means that a character of a password, which
// should be encoded, ends it: what looks like the host is its beginning then.
func showURL(raw string) string {
	scheme, _, ok := strings.Cut(raw, "://")
	m := urlForm.FindStringSubmatch(raw)
	switch {
	case !ok:
		return raw // off
	case m == nil || strings.Contains(m[4]+m[5], "@"):
		return scheme + "://" + mask
	}
	shown := m[1]
	if login, ok := strings.CutSuffix(m[2], "@"); ok {
		user, _, hasPassword := strings.Cut(login, ":")
		shown += showLogin(user, hasPassword)
	}
	shown += only(plainHosts, m[3])
	if path, ok := strings.CutPrefix(m[4], "/"); ok {
		shown += "/" + only(plainPath, path)
	}
	if query, ok := strings.CutPrefix(m[5], "?"); ok {
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
		switch harmless := parameters[name]; {
		case harmless == nil:
			pairs[i] = mask
		case !harmless.MatchString(value) && !plainValue.MatchString(value):
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

// Setting is one setting as it is in effect.
type Setting struct {
	Name   string `json:"name"`           // of the variable, with prefix
	Value  string `json:"value"`          // secrets masked
	Source Source `json:"source"`         // where the value came from
	File   string `json:"file,omitempty"` // the file's name, when Source is FromFile
}

// Settings lists the effective configuration in the order of the documentation, secrets masked. It is empty for a
// Config that did not come from Load.
func (c Config) Settings() []Setting {
	var settings []Setting
	for _, s := range c.settings {
		settings = append(settings, Setting{Name: s.Name, Value: s.show(s.raw), Source: s.from, File: s.path})
	}
	return settings
}

// Shown is the value of the setting with this key, the name without its prefix; its secrets masked.
func (c Config) Shown(key string) string {
	if s := c.of(key); s != nil {
		return s.show(s.raw)
	}
	return "not set"
}

// String has a line NAME=value per setting, secrets masked.
func (c Config) String() string {
	var b strings.Builder
	for _, s := range c.Settings() {
		fmt.Fprintf(&b, "%s=%s\n", s.Name, s.Value)
	}
	return b.String()
}

// GoString is String, so that %#v shows no secret either.
func (c Config) GoString() string { return c.String() }

// MarshalJSON is the list of Settings, secrets masked.
func (c Config) MarshalJSON() ([]byte, error) { return json.Marshal(c.Settings()) }

// Markdown is the table of all settings for the documentation, with a heading line and no surrounding text.
func Markdown() string {
	var b strings.Builder
	b.WriteString("| variable | default | allowed | meaning |\n|---|---|---|---|\n")
	for _, v := range Variables() {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", v.Name, v.defaultCell(), cell(v.Range), cell(v.Meaning))
	}
	return b.String()
}

func (v Variable) defaultCell() string {
	switch {
	case v.Required:
		return strings.TrimSpace("required " + v.by)
	case v.Default == "":
		return "none"
	case v.computed != nil:
		return cell(v.Default)
	}
	return "`" + v.Default + "`"
}

// cell escapes what would end a table's cell.
func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }
