package config

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/internal/limits"
	"github.com/rollbackd/rollbackd/internal/lockers"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/redisdb"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// rule is how the text of a setting is read. The text for the documentation is made together with it, so that it cannot
// drift. Errors complete the sentence "NAME=value …" and never repeat the value, which may be a secret; errors of
// libraries do not promise that, so none is passed on as it is.
type rule[T any] struct {
	text, standard string // what is allowed, and the default, if it is a number
	read           func(raw string) (T, error)
}

// texts is the rule of what is used as it is written; check says what is wrong with it.
func texts(text string, check func(string) error) rule[string] {
	return rule[string]{text: text, read: func(raw string) (string, error) { return raw, check(raw) }}
}

// within is the rule of a number, with its range in format; show writes one as parse reads it.
func within[T limits.Number](
	format string, o limits.Of[T], parse func(string) (T, error), show func(T) string,
) rule[T] {
	text := fmt.Sprintf(format, show(o.Low), show(o.High))
	return rule[T]{text, show(o.Default), func(raw string) (T, error) {
		v, err := parse(raw)
		if err == nil && !o.Holds(v) {
			err = errors.New("must be " + text)
		}
		return v, err
	}}
}

const between = "%s to %s"

func ints(o limits.Of[int]) rule[int] { return within(between, o, parseInt, strconv.Itoa) }

func sizes(o limits.Of[int64]) rule[int64] { return within(between, o, parseBytes, showBytes) }

func durations(o limits.Of[time.Duration]) rule[time.Duration] { return durationsAs(between, o) }

func durationsAs(format string, o limits.Of[time.Duration]) rule[time.Duration] {
	return within(format, o, parseDuration, shortDuration)
}

// or allows besides what stands for a value.
func (r rule[T]) or(is func(raw string) bool, value T) rule[T] {
	read := r.read
	r.read = func(raw string) (T, error) {
		if is(raw) {
			return value, nil
		}
		return read(raw)
	}
	return r
}

// but refuses of what is allowed what is bad in this way.
func (r rule[T]) but(bad func(raw string) bool, says string) rule[T] {
	read := r.read
	r.read = func(raw string) (T, error) {
		v, err := read(raw)
		if err == nil && bad(raw) {
			err = errors.New(says)
		}
		return v, err
	}
	return r
}

func isOff(raw string) bool { return raw == offWord }

func isNought(raw string) bool {
	d, err := parseDuration(raw)
	return err == nil && d == 0
}

// choice is the rule of what is one of a few words; each stands for the value beside it.
func choice[T any](names []string, values []T) rule[T] {
	text := strings.Join(names[:len(names)-1], ", ") + " or " + names[len(names)-1]
	return rule[T]{text: text, read: func(raw string) (v T, err error) {
		if i := slices.Index(names, raw); i >= 0 {
			return values[i], nil
		}
		return v, errors.New("must be " + text)
	}}
}

func words[T ~string](allowed ...T) rule[T] {
	names := make([]string, len(allowed))
	for i, word := range allowed {
		names[i] = string(word)
	}
	return choice(names, allowed)
}

// plainText are names that stand in rows and AMQP fields: valid UTF-8 without control characters, of limited bytes.
func plainText(text string, maxBytes int) rule[string] {
	return texts(text, func(s string) error {
		switch {
		case s == "":
			return errors.New("is empty")
		case len(s) > maxBytes:
			return fmt.Errorf("has %d bytes, at most %d are allowed", len(s), maxBytes)
		case !utf8.ValidString(s):
			return errors.New("is not valid UTF-8")
		case strings.ContainsFunc(s, unicode.IsControl):
			return errors.New("has a control character")
		}
		return nil
	})
}

func group() rule[string] {
	return plainText(fmt.Sprintf("1 to %d bytes, no control characters", limits.MostGroup), limits.MostGroup)
}

// fileName is not opened here: who uses the file says what is wrong with it.
func fileName() rule[string] { return plainText("a file's name", 4096) }

// amqpName are queue and exchange names. RabbitMQ refuses to declare names that begin with amq.
func amqpName() rule[string] {
	return plainText(fmt.Sprintf("1 to %d bytes, not amq.…", limits.MostName), limits.MostName).
		but(func(raw string) bool { return strings.HasPrefix(raw, "amq.") },
			"begins with amq., which RabbitMQ keeps for itself")
}

// serverName is a host's name or IP address.
func serverName() rule[string] {
	return plainText("a host's name or IP address", 253).but(func(raw string) bool {
		return strings.ContainsAny(raw, " /:@,") && net.ParseIP(raw) == nil
	}, "must be a host's name or IP address, without a port")
}

func routingKeys() rule[[]string] {
	const maxBytes = 255
	text := fmt.Sprintf("comma-separated topic patterns, each 1 to %d bytes", maxBytes)
	each := listOf(plainText("", maxBytes).read)
	return rule[[]string]{text: text, read: func(raw string) ([]string, error) {
		keys, err := each(raw)
		for i, key := range keys {
			if slices.Contains(keys[:i], key) {
				return nil, fmt.Errorf("entry %d is there twice", i+1)
			}
		}
		return keys, err
	}}
}

func tableName() rule[string] {
	return plainText(fmt.Sprintf("letters, digits and _, at most %d", limits.MostTable), limits.MostTable).
		but(func(raw string) bool { return !limits.Identifier.MatchString(raw) },
			"is no identifier: letters, digits and _, not beginning with a digit").
		but(func(raw string) bool {
			return raw == "stock" || raw == "stock_reservation" || strings.HasPrefix(raw, "rollbackd_")
		}, "is the name of another table of rollbackd")
}

// retryDelays must grow, so that each has a queue of its own and the longest that fits a rest can be found. RabbitMQ
// keeps a queue's TTL in whole milliseconds.
func retryDelays() rule[[]time.Duration] {
	each := durations(limits.RetryDelay)
	text := fmt.Sprintf("growing, 1 to %d of them, each %s", limits.MostDelays, each.text)
	list := rule[[]time.Duration]{text: text, standard: listText(limits.RetryDelays, shortDuration)}
	list.read = func(raw string) ([]time.Duration, error) {
		delays, err := listOf(each.read)(raw)
		if err == nil && len(delays) > limits.MostDelays {
			err = fmt.Errorf("has %d delays, at most %d are allowed", len(delays), limits.MostDelays)
		}
		for i, d := range delays {
			switch {
			case err != nil:
			case d%time.Millisecond != 0:
				err = fmt.Errorf("entry %d is not whole milliseconds", i+1)
			case i > 0 && d <= delays[i-1]:
				err = fmt.Errorf("must grow: entry %d is not longer than the one before it", i+1)
			}
		}
		return delays, err
	}
	return list
}

// rate is a number of things in a span of time, written 100/60s.
type rate struct {
	count int
	per   time.Duration
}

func deadRate() rule[rate] {
	count, per := ints(limits.MaxDead), durations(limits.MaxDeadWindow)
	text := fmt.Sprintf("COUNT/DURATION (%s per %s) or %s", count.text, per.text, offWord)
	standard := fmt.Sprintf("%s/%vs", count.standard, limits.MaxDeadWindow.Default.Seconds())
	return rule[rate]{text, standard, func(raw string) (r rate, err error) {
		number, span, ok := strings.Cut(raw, "/")
		if !ok {
			return r, errors.New("is not of the form COUNT/DURATION")
		}
		if r.count, err = count.read(number); err != nil {
			return r, fmt.Errorf("is not of the form COUNT/DURATION: the count %w", err)
		}
		if r.per, err = per.read(span); err != nil {
			return r, fmt.Errorf("is not of the form COUNT/DURATION: the duration %w", err)
		}
		return r, nil
	}}.or(isOff, rate{count: consumer.Off})
}

// anyText is whatever there is, but for what is refused.
func anyText(text string) rule[string] { return texts(text, func(string) error { return nil }) }

// headerText is a secret that must fit into an HTTP header.
func headerText() rule[string] {
	return anyText("no spaces or control characters").but(func(raw string) bool {
		return strings.ContainsFunc(raw, func(r rune) bool { return r <= ' ' || r > '~' })
	}, "must be printable ASCII without spaces")
}

// webhookSecrets are the lines of a secret: what stands in two is known to both ends while it is changed.
func webhookSecrets() rule[string] {
	return texts("a secret, or two in lines of their own", func(raw string) error {
		if n := len(Lines(raw)); n < 1 || n > 2 {
			return fmt.Errorf("has %d lines, 1 or 2 are allowed", n)
		}
		return nil
	})
}

// Lines are the lines of a value that are not empty.
func Lines(raw string) []string {
	return strings.FieldsFunc(raw, func(r rune) bool { return r == '\n' || r == '\r' })
}

var plainBase = regexp.MustCompile(`^(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+$`)

// basePath has no character that means something in an address, and no step up.
func basePath() rule[string] {
	return anyText("/ and a path, without a slash at its end").
		but(func(raw string) bool { return !plainBase.MatchString(raw) || len(raw) > 200 },
			"must be a path like /rollbackd: letters, digits, - _ . ~, no slash at its end")
}

// pointers are JSON pointers, each as its steps.
func pointers() rule[[][]string] {
	unescape := strings.NewReplacer("~1", "/", "~0", "~")
	return rule[[][]string]{text: "comma-separated JSON pointers", read: listOf(func(raw string) ([]string, error) {
		rest, ok := strings.CutPrefix(raw, "/")
		if !ok {
			return nil, errors.New("is no JSON pointer: it must begin with /")
		}
		steps := strings.Split(rest, "/")
		for i := range steps {
			steps[i] = unescape.Replace(steps[i])
		}
		return steps, nil
	})}
}

func listenAddr() rule[string] {
	return texts("host:port or off", func(raw string) error {
		_, port, err := net.SplitHostPort(raw)
		if err != nil {
			return errors.New("is not host:port")
		}
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return errors.New("has a port that is not 0 to 65535")
		}
		return nil
	})
}

func parseInt(s string) (int, error) {
	n, err := strconv.Atoi(s)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return 0, errors.New("is too large a number")
	case err != nil:
		return 0, errors.New("is not a whole number")
	}
	return n, nil
}

func parseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, noUnit(s, "a duration", "a number and ms, s, m or h")
	}
	return d, nil
}

// noUnit says what is wrong with what cannot be read as a number with a unit.
func noUnit(s, wanted, form string) error {
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		return fmt.Errorf("has no unit: %s is %s", wanted, form)
	}
	return fmt.Errorf("is not %s: %s", wanted, form)
}

// listOf reads values with commas between them.
func listOf[T any](parse func(string) (T, error)) func(string) ([]T, error) {
	return func(raw string) ([]T, error) {
		var list []T
		for i, part := range strings.Split(raw, ",") {
			v, err := parse(strings.TrimSpace(part))
			if err != nil {
				return nil, fmt.Errorf("entry %d %w", i+1, err)
			}
			list = append(list, v)
		}
		return list, nil
	}
}

// listText writes values as listOf reads them.
func listText[T any](list []T, text func(T) string) string {
	texts := make([]string, len(list))
	for i, v := range list {
		texts[i] = text(v)
	}
	return strings.Join(texts, ",")
}

// shortDuration writes d in its shortest form: 2m, not 2m0s.
func shortDuration(d time.Duration) string {
	text := d.String()
	for _, nought := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, nought) {
			text = text[:len(text)-len("0s")]
		}
	}
	return text
}

var units = []struct {
	name string
	bits int
}{{"GiB", 30}, {"MiB", 20}, {"KiB", 10}}

// showBytes writes a size as the shortest whole number with a unit.
func showBytes(b int64) string {
	for _, u := range units {
		if n := b >> u.bits; n<<u.bits == b {
			return strconv.FormatInt(n, 10) + u.name
		}
	}
	return strconv.FormatInt(b, 10) + "B"
}

func parseBytes(s string) (int64, error) {
	for _, u := range units {
		number, ok := strings.CutSuffix(s, u.name)
		n, err := strconv.ParseInt(number, 10, 64)
		switch {
		case !ok || err != nil && !errors.Is(err, strconv.ErrRange):
		case err != nil || n < 0 || n > math.MaxInt64>>u.bits:
			return 0, errors.New("is outside what can be counted")
		default:
			return n << u.bits, nil
		}
	}
	return 0, noUnit(s, "a size", "a whole number and KiB, MiB or GiB")
}

// webURL is the rule of an HTTP URL.
func webURL(text string) rule[string] {
	return texts("http:// or https:// URL"+text, func(raw string) error { return urlProblem(raw, "http", "https") })
}

// managementURL is asked for paths below it.
func managementURL() rule[string] {
	return webURL(", with user and password").but(func(raw string) bool {
		u, err := url.Parse(raw)
		return err != nil || u.RawQuery != "" || u.Fragment != ""
	}, "must be a URL without query and fragment")
}

// httpTarget has no login: that has settings of its own.
func httpTarget() rule[string] {
	return webURL(" without user and password").but(func(raw string) bool {
		u, err := url.Parse(raw)
		return err != nil || u.User != nil || u.Fragment != ""
	}, "must be a URL without user, password and fragment; HTTP_TOKEN is for a password")
}

// eachURL makes something of each URL of several, and names the one that make refuses.
func eachURL(urls []string, make func(string) (string, error)) (all []string, err error) {
	for i, raw := range urls {
		made, err := make(raw)
		if err != nil && len(urls) > 1 {
			err = fmt.Errorf("URL %d of %d %w", i+1, len(urls), err)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, made)
	}
	return all, nil
}

func amqpURLs() rule[[]string] {
	return rule[[]string]{text: "amqp:// or amqps:// URLs, comma-separated", read: func(list string) ([]string, error) {
		return eachURL(redisdb.SplitURLs(list), func(raw string) (string, error) {
			err := urlProblem(raw, "amqp", "amqps")
			if err == nil {
				err = withoutExample(rabbit.CheckURL(raw), "; expected ")
			}
			return raw, err
		})
	}}
}

// withoutExample is an error without its example, which is the variable's own.
func withoutExample(err error, behind string) error {
	if err == nil {
		return nil
	}
	what, _, _ := strings.Cut(err.Error(), behind)
	return errors.New(what)
}

// asked is the rule of which the package knows that connects.
func asked(text string, check func(string) error) rule[string] {
	return texts(text, func(raw string) error {
		if err := check(raw); err != nil {
			return fmt.Errorf("cannot be used: %w", err)
		}
		return nil
	})
}

func redisURL() rule[string] {
	return asked("redis:// or rediss:// URL, or off; for redlock several, comma-separated", func(list string) error {
		_, err := eachURL(redisdb.SplitURLs(list), func(raw string) (string, error) { return raw, redisdb.CheckURL(raw) })
		return err
	}).or(isOff, "")
}

func zooKeeperURL() rule[string] { return asked(lockers.ZooKeeperForm, lockers.CheckZooKeeperURL) }

func mysqlDSN() rule[string] {
	return texts("go-sql-driver DSN: "+mysqldb.DSNForm, func(raw string) error {
		_, err := mysqldb.ParseDSN(raw)
		return err
	})
}

// keyFrom asks the package that reads messages.
func keyFrom() rule[string] {
	const text = "header:NAME, property:message_id, property:correlation_id, json:/POINTER, body:sha256; comma-separated"
	return texts(text, func(raw string) error {
		if _, err := wire.ParseKeySources(raw); err != nil {
			return fmt.Errorf("does not work: %w", withoutExample(err, "; for example "))
		}
		return nil
	})
}

// urlProblem never quotes url.Parse's error: for a password that is not encoded it holds a piece of it.
func urlProblem(raw string, schemes ...string) error {
	const encode = "percent-encode special characters of user name and password " +
		"(/ is %2F, # is %23, ? is %3F, @ is %40, % is %25)"
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok || !slices.Contains(schemes, strings.ToLower(scheme)) {
		return errors.New("must begin with " + strings.Join(schemes, ":// or ") + "://")
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil && strings.Contains(rest, "@"):
		return errors.New("cannot be parsed: " + encode)
	case err != nil:
		return errors.New("cannot be parsed as a URL")
	case strings.ContainsAny(raw, " \t"):
		return errors.New("has a space in it")
	case u.Hostname() == "" || strings.Contains(u.Host, ","):
		return errors.New("has no valid host")
	case strings.Contains(u.Path+u.RawQuery+u.Fragment, "@"):
		return errors.New("has an @ after its host: " + encode)
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return errors.New("has a port that is not 1 to 65535")
		}
	}
	return nil
}

// Proxy is one that has made sure who asks for pages, and says so in a header.
type Proxy struct {
	// Header names the person.
	Header string
	// Peers are the addresses of the proxy. From others the header means nothing.
	Peers []netip.Prefix
	// GroupHeader lists, with commas, the groups of the person: who is not in Group may look and not act. "": all may
	// act.
	GroupHeader, Group string
}

var proxyForm = regexp.MustCompile(`^([A-Za-z0-9-]+)\s+(\S+)(?:\s+([A-Za-z0-9-]+)=([^,\s]+))?$`)

func adminProxy() rule[Proxy] {
	const text = "HEADER CIDR[,CIDR…] [GROUPHEADER=GROUP]"
	return rule[Proxy]{text: text, read: func(raw string) (p Proxy, err error) {
		parts := proxyForm.FindStringSubmatch(strings.TrimSpace(raw))
		if parts == nil {
			return p, errors.New("must be " + text)
		}
		p.Header, p.GroupHeader, p.Group = http.CanonicalHeaderKey(parts[1]), http.CanonicalHeaderKey(parts[3]), parts[4]
		for peer := range strings.SplitSeq(parts[2], ",") {
			prefix, err := netip.ParsePrefix(peer)
			if ip, single := netip.ParseAddr(peer); err != nil && single == nil {
				prefix, err = ip.Prefix(ip.BitLen())
			}
			if err != nil {
				return p, fmt.Errorf("has %q where an address or a network like 10.0.0.0/8 belongs", peer)
			}
			p.Peers = append(p.Peers, prefix.Masked())
		}
		return p, nil
	}}
}
