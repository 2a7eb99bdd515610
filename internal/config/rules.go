package config

import (
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-sql-driver/mysql"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// rule is what one value must satisfy. Range text and check are made together, so that the documentation cannot drift.
type rule struct {
	text string
	// check completes the sentence "NAME=value …", or is empty when the value is good. It must not repeat the value, which
	// may be a secret. raw is the text, v the parsed field.
	check func(raw string, v any) string
}

func anyText() rule { return rule{check: func(string, any) string { return "" }} }

func ints(low, high int) rule {
	text := fmt.Sprintf("%d to %d", low, high)
	return rule{text: text, check: func(_ string, v any) string {
		if n := v.(int); n < low || n > high {
			return "must be " + text
		}
		return ""
	}}
}

func durations(low, high time.Duration) rule {
	text := shortDuration(low) + " to " + shortDuration(high)
	return rule{text: text, check: func(_ string, v any) string {
		if d := v.(time.Duration); d < low || d > high {
			return "must be " + text
		}
		return ""
	}}
}

// zeroOr is rule r with 0 allowed besides; meaning says what 0 does.
func zeroOr(meaning string, r rule) rule {
	text := "0 (" + meaning + ") or " + r.text
	return rule{text: text, check: func(raw string, v any) string {
		if v.(time.Duration) == 0 || r.check(raw, v) == "" {
			return ""
		}
		return "must be " + text
	}}
}

func words(allowed ...string) rule {
	text := strings.Join(allowed, ", ")
	if n := len(allowed); n > 1 {
		text = strings.Join(allowed[:n-1], ", ") + " or " + allowed[n-1]
	}
	return rule{text: text, check: func(raw string, _ any) string {
		if slices.Contains(allowed, raw) {
			return ""
		}
		return "must be " + text
	}}
}

// plainText are names that stand in rows and AMQP fields: valid UTF-8 without control characters, of limited bytes.
func plainText(maxBytes int) rule {
	text := fmt.Sprintf("1 to %d bytes, no control characters", maxBytes)
	return rule{text: text, check: func(raw string, _ any) string { return plainProblem(raw, maxBytes) }}
}

func plainProblem(s string, maxBytes int) string {
	switch {
	case s == "":
		return "is empty"
	case len(s) > maxBytes:
		return fmt.Sprintf("has %d bytes, at most %d are allowed", len(s), maxBytes)
	case !utf8.ValidString(s):
		return "is not valid UTF-8"
	case strings.ContainsFunc(s, unicode.IsControl):
		return "has a control character"
	}
	return ""
}

// amqpName are queue and exchange names. AMQP allows 255 bytes; the queues derived from ours need the rest for their
// suffixes. RabbitMQ refuses to declare names that begin with amq.
func amqpName() rule {
	const maxBytes = 200
	text := fmt.Sprintf("1 to %d bytes, not amq.…", maxBytes)
	return rule{text: text, check: func(raw string, _ any) string {
		if strings.HasPrefix(raw, "amq.") {
			return "begins with amq., which RabbitMQ keeps for itself"
		}
		return plainProblem(raw, maxBytes)
	}}
}

func routingKeys() rule {
	const maxBytes = 255
	return rule{text: fmt.Sprintf("comma-separated topic patterns, each 1 to %d bytes", maxBytes), check: func(_ string, v any) string {
		for i, key := range v.([]string) {
			if problem := plainProblem(key, maxBytes); problem != "" {
				return fmt.Sprintf("entry %d %s", i+1, problem)
			}
			if slices.Contains(v.([]string)[:i], key) {
				return fmt.Sprintf("entry %d is there twice", i+1)
			}
		}
		return ""
	}}
}

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// tableName leaves room for the suffixes of view, event table and what hangs on them within MySQL's 64 characters.
func tableName() rule {
	const maxBytes = 41 // as dedup.LogOptions says
	return rule{text: fmt.Sprintf("letters, digits and _, at most %d", maxBytes), check: func(raw string, _ any) string {
		switch {
		case !identifier.MatchString(raw):
			return "is no identifier: letters, digits and _, not beginning with a digit"
		case len(raw) > maxBytes:
			return fmt.Sprintf("has %d characters, at most %d are allowed", len(raw), maxBytes)
		case raw == "stock" || raw == "stock_reservation" || strings.HasPrefix(raw, "rollbackd_"):
			return "is the name of another table of rollbackd"
		}
		return ""
	}}
}

// retryDelays must grow, so that each has a queue of its own and the longest that fits a rest can be found. RabbitMQ
// keeps a queue's TTL in whole milliseconds.
func retryDelays() rule {
	const most = 20
	each := durations(100*time.Millisecond, 24*time.Hour)
	text := fmt.Sprintf("growing, 1 to %d of them, each %s", most, each.text)
	return rule{text: text, check: func(_ string, v any) string {
		delays := v.([]time.Duration)
		if len(delays) > most {
			return fmt.Sprintf("has %d delays, at most %d are allowed", len(delays), most)
		}
		for i, d := range delays {
			switch problem := each.check("", d); {
			case problem != "":
				return fmt.Sprintf("entry %d %s", i+1, problem)
			case d%time.Millisecond != 0:
				return fmt.Sprintf("entry %d is not whole milliseconds", i+1)
			case i > 0 && d <= delays[i-1]:
				return fmt.Sprintf("must grow: entry %d is not longer than the one before it", i+1)
			}
		}
		return ""
	}}
}

func deadRate() rule {
	count, per := ints(1, 1_000_000), durations(time.Second, time.Hour)
	text := fmt.Sprintf("COUNT/DURATION (%s per %s) or %s", count.text, per.text, offWord)
	return rule{text: text, check: func(_ string, v any) string {
		if problem := count.check("", v.(Rate).Count); problem != "" {
			return "the count " + problem
		}
		if problem := per.check("", v.(Rate).Per); problem != "" {
			return "the duration " + problem
		}
		return ""
	}}
}

// headerText is a secret that must fit into an HTTP header.
func headerText() rule {
	return rule{text: "no spaces or control characters", check: func(raw string, _ any) string {
		if strings.ContainsFunc(raw, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return "must be printable ASCII without spaces"
		}
		return ""
	}}
}

func listenAddr() rule {
	return rule{text: "host:port or off", check: func(raw string, _ any) string {
		_, port, err := net.SplitHostPort(raw)
		if err != nil {
			return "is not host:port"
		}
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return "has a port that is not 0 to 65535"
		}
		return ""
	}}
}

func webhookURL() rule {
	return rule{text: "http:// or https:// URL", check: func(raw string, _ any) string {
		return urlProblem(raw, "http", "https")
	}}
}

func amqpURLs() rule {
	return rule{text: "amqp:// or amqps:// URLs, comma-separated", check: func(_ string, v any) string {
		urls := v.(URLs)
		for i, raw := range urls {
			problem := urlProblem(raw, "amqp", "amqps")
			if err := rabbit.CheckURL(raw); problem == "" && err != nil {
				what, _, _ := strings.Cut(err.Error(), "; expected ") // the example is the variable's own
				problem = what
			}
			if problem != "" {
				if len(urls) > 1 {
					return fmt.Sprintf("URL %d of %d %s", i+1, len(urls), problem)
				}
				return problem
			}
		}
		return ""
	}}
}

// redisURL asks the package of the lock, by opening a client: that connects to nothing.
func redisURL() rule {
	return rule{text: "redis:// or rediss:// URL, or off", check: func(raw string, _ any) string {
		client, err := dedup.OpenRedis(raw, dedup.RedisOptions{})
		if err == nil {
			err = client.Close()
		}
		if err != nil {
			what := strings.TrimPrefix(err.Error(), "redis URL: ")
			return "cannot be used: " + what
		}
		return ""
	}}
}

// urlProblem never quotes url.Parse's error: for a password that is not encoded it holds a piece of it.
func urlProblem(raw string, schemes ...string) string {
	wanted := strings.Join(schemes, ":// or ") + "://"
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok || !slices.Contains(schemes, strings.ToLower(scheme)) {
		return "must begin with " + wanted
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil && strings.Contains(rest, "@"):
		return "cannot be parsed: percent-encode special characters of user name and password (/ is %2F, # is %23, ? is %3F, @ is %40, % is %25)"
	case err != nil:
		return "cannot be parsed as a URL"
	case strings.ContainsAny(raw, " \t"):
		return "has a space in it"
	case u.Hostname() == "" || strings.Contains(u.Host, ","):
		return "has no valid host"
	case strings.Contains(u.Path+u.RawQuery+u.Fragment, "@"):
		return "has an @ after its host: percent-encode special characters of user name and password (/ is %2F, # is %23, ? is %3F, @ is %40, % is %25)"
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return "has a port that is not 1 to 65535"
		}
	}
	return ""
}

// mysqlDSN never quotes the driver's error: for a misplaced @ it holds the password.
func mysqlDSN() rule {
	const form = "user:password@tcp(host:3306)/database"
	return rule{text: "go-sql-driver DSN: " + form, check: func(raw string, _ any) string {
		dsn, err := mysql.ParseDSN(raw)
		switch {
		case strings.Contains(raw, "://"):
			return "is a URL; wanted is the form " + form
		case err != nil:
			if withoutParameters, _, has := strings.Cut(raw, "?"); has && parses(withoutParameters) {
				return "has a parameter after the ? that the driver refuses (a duration needs its unit)"
			}
			return "is not of the form " + form
		case dsn.DBName == "":
			return "names no database after the last /"
		case dsn.User == "":
			return "names no user"
		}
		return ""
	}}
}

func parses(dsn string) bool {
	_, err := mysql.ParseDSN(dsn)
	return err == nil
}

// offOr notes in the text that "off" is allowed; Load never asks a rule about "off".
func offOr(r rule) rule {
	text := r.text + " or " + offWord
	return rule{text: text, check: func(raw string, v any) string {
		if r.check(raw, v) != "" {
			return "must be " + text
		}
		return ""
	}}
}

// keyFrom asks the package that reads messages.
func keyFrom() rule {
	return rule{text: "header:NAME, property:message_id, property:correlation_id, json:/POINTER, body:sha256; comma-separated", check: func(raw string, _ any) string {
		if _, err := wire.ParseKeySources(raw); err != nil {
			what, _, _ := strings.Cut(err.Error(), "; for example ") // the example is the variable's own
			return "does not work: " + what
		}
		return ""
	}}
}
