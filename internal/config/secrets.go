package config

import (
	"net/url"
	"regexp"
	"strings"
)

const mask = "***"

// show is raw with its secrets masked. It masks too much rather than too little, and works on values that cannot be
// parsed, since those are what error messages show.
func (v Variable) show(raw string) string {
	if !v.Secret || v.isZero(raw) {
		return raw
	}
	switch v.key {
	case "AMQP_URL":
		return maskURLs(raw)
	case "REDIS_URL":
		return maskURL(raw)
	case "MYSQL_DSN":
		return maskDSN(raw)
	case "DEAD_LETTER_WEBHOOK":
		return maskWebhook(raw)
	}
	return mask
}

// maskURLs masks each URL of a list, or, if one is not good, the list as if it were one URL: its commas may belong to a
// password.
func maskURLs(raw string) string {
	urls := splitURLs(raw)
	for i, u := range urls {
		if urlProblem(u, "amqp", "amqps") != "" {
			return maskURL(raw)
		}
		urls[i] = maskURL(u)
	}
	return strings.Join(urls, ",")
}

var secretParameter = regexp.MustCompile(`(?i)([?&][^=&]*(?:pass|pwd|secret|token|key)[^=&]*=)[^&]*`)

// addresses are what may stand after the scheme without a login: hosts with numeric ports, then path or query.
var addresses = regexp.MustCompile(`^(\[[0-9A-Fa-f:.]*\]|[^:/?#\[\]]+)(:[0-9]*)?(,(\[[0-9A-Fa-f:.]*\]|[^:/?#\[\]]+)(:[0-9]*)?)*([/?].*)?$`)

// maskURL masks the password of a URL: all between the first colon after the scheme and the last @, so that a password
// with special characters that nobody encoded is masked whole.
func maskURL(raw string) string {
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		return maskUserInfo(raw)
	}
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		rest = maskUserInfo(rest[:at]) + rest[at:]
	} else if !addresses.MatchString(rest) {
		rest = maskUserInfo(rest) // perhaps a password whose @ is missing
	}
	return scheme + "://" + secretParameter.ReplaceAllString(rest, "${1}"+mask)
}

// maskUserInfo masks what stands after the first colon.
func maskUserInfo(s string) string {
	if user, _, ok := strings.Cut(s, ":"); ok {
		return user + ":" + mask
	}
	return s
}

// maskDSN masks the password of user:password@net(address)/database. Without an @ everything after a colon might be it,
// except an address in parentheses.
func maskDSN(raw string) string {
	if at := strings.LastIndexByte(raw, '@'); at >= 0 {
		return maskUserInfo(raw[:at]) + raw[at:]
	}
	if paren := strings.IndexByte(raw, '('); paren >= 0 {
		return maskUserInfo(raw[:paren]) + raw[paren:]
	}
	return maskUserInfo(raw)
}

// maskWebhook shows scheme and host only: the path of a webhook is often its secret.
func maskWebhook(raw string) string {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" {
		return mask
	}
	shown := u.Scheme + "://" + u.Host
	if shown != raw {
		shown += "/" + mask
	}
	return shown
}

// shorten keeps an error's line readable.
func shorten(s string) string {
	const most = 120
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}
