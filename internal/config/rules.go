package config

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/rollbackd/rollbackd/internal/admin"
	"github.com/rollbackd/rollbackd/internal/locking"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/redisdb"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// rule is how the text of a setting is read, and what the value must satisfy. The text for the documentation is made
// together with them, so that it cannot drift. Errors complete the sentence "NAME=value …" and never repeat the value,
// which may be a secret; errors of libraries do not promise that, so none is passed on as it is.
type rule[T any] struct {
	text  string
	parse func(raw string) (T, error)
	check func(T) error
}

func (r rule[T]) read(raw string) (T, error) {
	v, err := r.parse(raw)
	if err == nil {
		err = r.check(v)
	}
	return v, err
}

// value is a rule together with the field for what it reads.
type value struct {
	text   string
	accept func(raw string) error // says what is wrong, and changes nothing
	set    func(raw string) error
}

func (r rule[T]) into(field *T) value { return r.to(func(v T) { *field = v }) }

// to binds the rule to where its value goes.
func (r rule[T]) to(put func(T)) value {
	return value{
		text:   r.text,
		accept: func(raw string) error { _, err := r.read(raw); return err },
		set: func(raw string) error {
			v, err := r.read(raw)
			if err == nil {
				put(v)
			}
			return err
		},
	}
}

func asItIs(raw string) (string, error) { return raw, nil }

// texts is the rule of what is used as it is written.
func texts(text string, check func(string) error) rule[string] {
	return rule[string]{text: text, parse: asItIs, check: check}
}

// mustBe is the rule of which nothing else can be said when it is broken.
func mustBe[T any](text string, parse func(string) (T, error), good func(T) bool) rule[T] {
	return rule[T]{text: text, parse: parse, check: func(v T) error {
		if !good(v) {
			return errors.New("must be " + text)
		}
		return nil
	}}
}

// within is the rule of what has an order; show writes a value as parse reads it.
func within[T cmp.Ordered](low, high T, parse func(string) (T, error), show func(T) string) rule[T] {
	return mustBe(show(low)+" to "+show(high), parse, func(v T) bool { return low <= v && v <= high })
}

func ints(low, high int) rule[int] { return within(low, high, parseInt, strconv.Itoa) }

func sizes(low, high Bytes) rule[Bytes] { return within(low, high, parseBytes, Bytes.String) }

func durations(low, high time.Duration) rule[time.Duration] {
	return within(low, high, parseDuration, shortDuration)
}

// zeroOr is rule r with 0 allowed besides; meaning says what 0 does.
func zeroOr(meaning string, r rule[time.Duration]) rule[time.Duration] {
	return mustBe("0 ("+meaning+") or "+r.text, r.parse, func(d time.Duration) bool { return d == 0 || r.check(d) == nil })
}

// offOr notes in the text that "off" is allowed; Load never asks a rule about "off".
func offOr(r rule[time.Duration]) rule[time.Duration] {
	return mustBe(r.text+" or "+offWord, r.parse, func(d time.Duration) bool { return r.check(d) == nil })
}

func words(allowed ...string) rule[string] {
	text := strings.Join(allowed, ", ")
	if n := len(allowed); n > 1 {
		text = strings.Join(allowed[:n-1], ", ") + " or " + allowed[n-1]
	}
	return mustBe(text, asItIs, func(word string) bool { return slices.Contains(allowed, word) })
}

func logLevels() rule[slog.Level] {
	names := words("debug", "info", "warn", "error")
	parse := func(raw string) (level slog.Level, err error) {
		if err := names.check(raw); err != nil { // which knows other forms too
			return 0, err
		}
		return level, level.UnmarshalText([]byte(raw))
	}
	return mustBe(names.text, parse, func(slog.Level) bool { return true })
}

// plainText are names that stand in rows and AMQP fields: valid UTF-8 without control characters, of limited bytes.
func plainText(maxBytes int) rule[string] {
	text := fmt.Sprintf("1 to %d bytes, no control characters", maxBytes)
	return texts(text, func(raw string) error { return plainProblem(raw, maxBytes) })
}

func plainProblem(s string, maxBytes int) error {
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
}

// amqpName are queue and exchange names. AMQP allows 255 bytes; the queues derived from ours need the rest for their
// suffixes. RabbitMQ refuses to declare names that begin with amq.
func amqpName() rule[string] {
	const maxBytes = 200
	text := fmt.Sprintf("1 to %d bytes, not amq.…", maxBytes)
	return texts(text, func(raw string) error {
		if strings.HasPrefix(raw, "amq.") {
			return errors.New("begins with amq., which RabbitMQ keeps for itself")
		}
		return plainProblem(raw, maxBytes)
	})
}

func routingKeys() rule[[]string] {
	const maxBytes = 255
	text := fmt.Sprintf("comma-separated topic patterns, each 1 to %d bytes", maxBytes)
	return rule[[]string]{text: text, parse: listOf(asItIs), check: func(keys []string) error {
		for i, key := range keys {
			if err := plainProblem(key, maxBytes); err != nil {
				return fmt.Errorf("entry %d %w", i+1, err)
			}
			if slices.Contains(keys[:i], key) {
				return fmt.Errorf("entry %d is there twice", i+1)
			}
		}
		return nil
	}}
}

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// tableName leaves room for the suffixes of view, event table and what hangs on them within MySQL's 64 characters.
func tableName() rule[string] {
	const maxBytes = 41 // as dedup.LogOptions says
	text := fmt.Sprintf("letters, digits and _, at most %d", maxBytes)
	return texts(text, func(raw string) error {
		switch {
		case !identifier.MatchString(raw):
			return errors.New("is no identifier: letters, digits and _, not beginning with a digit")
		case len(raw) > maxBytes:
			return fmt.Errorf("has %d characters, at most %d are allowed", len(raw), maxBytes)
		case raw == "stock" || raw == "stock_reservation" || strings.HasPrefix(raw, "rollbackd_"):
			return errors.New("is the name of another table of rollbackd")
		}
		return nil
	})
}

// retryDelays must grow, so that each has a queue of its own and the longest that fits a rest can be found. RabbitMQ
// keeps a queue's TTL in whole milliseconds.
func retryDelays() rule[[]time.Duration] {
	const most = 20
	each := durations(100*time.Millisecond, 24*time.Hour)
	text := fmt.Sprintf("growing, 1 to %d of them, each %s", most, each.text)
	return rule[[]time.Duration]{text: text, parse: listOf(parseDuration), check: func(delays []time.Duration) error {
		if len(delays) > most {
			return fmt.Errorf("has %d delays, at most %d are allowed", len(delays), most)
		}
		for i, d := range delays {
			switch err := each.check(d); {
			case err != nil:
				return fmt.Errorf("entry %d %w", i+1, err)
			case d%time.Millisecond != 0:
				return fmt.Errorf("entry %d is not whole milliseconds", i+1)
			case i > 0 && d <= delays[i-1]:
				return fmt.Errorf("must grow: entry %d is not longer than the one before it", i+1)
			}
		}
		return nil
	}}
}

func deadRate() rule[Rate] {
	count, per := ints(1, 1_000_000), durations(time.Second, time.Hour)
	text := fmt.Sprintf("COUNT/DURATION (%s per %s) or %s", count.text, per.text, offWord)
	return rule[Rate]{text: text, parse: parseRate, check: func(r Rate) error {
		if err := count.check(r.Count); err != nil {
			return fmt.Errorf("the count %w", err)
		}
		if err := per.check(r.Per); err != nil {
			return fmt.Errorf("the duration %w", err)
		}
		return nil
	}}
}

// headerText is a secret that must fit into an HTTP header.
func headerText() rule[string] {
	return texts("no spaces or control characters", func(raw string) error {
		if strings.ContainsFunc(raw, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return errors.New("must be printable ASCII without spaces")
		}
		return nil
	})
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

// serverName is a host's name or IP address.
func serverName() rule[string] {
	const maxBytes = 253
	return texts("a host's name or IP address", func(raw string) error {
		if strings.ContainsAny(raw, " /:@,") && net.ParseIP(raw) == nil {
			return errors.New("must be a host's name or IP address, without a port")
		}
		return plainProblem(raw, maxBytes)
	})
}

// fileName is not opened here: who uses the file says what is wrong with it.
func fileName() rule[string] {
	const maxBytes = 4096
	return texts("a file's name", func(raw string) error { return plainProblem(raw, maxBytes) })
}

// adminProxy asks the package that reads the headers.
func adminProxy() rule[admin.Proxy] {
	return rule[admin.Proxy]{text: "HEADER CIDR[,CIDR…] [GROUPHEADER=GROUP]", parse: admin.ParseProxy,
		check: func(admin.Proxy) error { return nil }}
}

var plainBase = regexp.MustCompile(`^(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+$`)

// basePath has no character that means something in an address, and no step up.
func basePath() rule[string] {
	return texts("/ and a path, without a slash at its end", func(raw string) error {
		if !plainBase.MatchString(raw) || len(raw) > 200 {
			return errors.New("must be a path like /rollbackd: letters, digits, - _ . ~, no slash at its end")
		}
		return nil
	})
}

func yesOrNo() rule[bool] {
	both := words("yes", "no")
	parse := func(raw string) (bool, error) { return raw == "yes", both.check(raw) }
	return rule[bool]{text: both.text, parse: parse, check: func(bool) error { return nil }}
}

// pointers are JSON pointers, each as its steps.
func pointers() rule[[][]string] {
	unescape := strings.NewReplacer("~1", "/", "~0", "~")
	parse := listOf(func(raw string) ([]string, error) {
		rest, ok := strings.CutPrefix(raw, "/")
		if !ok {
			return nil, errors.New("is no JSON pointer: it must begin with /")
		}
		steps := strings.Split(rest, "/")
		for i := range steps {
			steps[i] = unescape.Replace(steps[i])
		}
		return steps, nil
	})
	return rule[[][]string]{text: "comma-separated JSON pointers", parse: parse,
		check: func([][]string) error { return nil }}
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

func webhookURL() rule[string] {
	return texts("http:// or https:// URL", func(raw string) error {
		return urlProblem(raw, "http", "https")
	})
}

// managementURL is asked for paths below it, so it has neither query nor fragment.
func managementURL() rule[string] {
	return texts("http:// or https:// URL, with user and password", func(raw string) error {
		if err := urlProblem(raw, "http", "https"); err != nil {
			return err
		}
		if u, err := url.Parse(raw); err != nil || u.RawQuery != "" || u.Fragment != "" {
			return errors.New("must be a URL without query and fragment")
		}
		return nil
	})
}

// httpTarget has no login: that has settings of its own.
func httpTarget() rule[string] {
	return texts("http:// or https:// URL without user and password", func(raw string) error {
		if err := urlProblem(raw, "http", "https"); err != nil {
			return err
		}
		if u, err := url.Parse(raw); err != nil || u.User != nil || u.Fragment != "" {
			return errors.New("must be a URL without user, password and fragment; HTTP_TOKEN is for a password")
		}
		return nil
	})
}

func amqpURLs() rule[[]string] {
	parse := func(raw string) ([]string, error) { return SplitURLs(raw), nil }
	return rule[[]string]{text: "amqp:// or amqps:// URLs, comma-separated", parse: parse,
		check: func(urls []string) error {
			for i, raw := range urls {
				err := urlProblem(raw, "amqp", "amqps")
				if refused := rabbit.CheckURL(raw); err == nil && refused != nil {
					what, _, _ := strings.Cut(refused.Error(), "; expected ") // the example is the variable's own
					err = errors.New(what)
				}
				if err != nil && len(urls) > 1 {
					return fmt.Errorf("URL %d of %d %w", i+1, len(urls), err)
				}
				if err != nil {
					return err
				}
			}
			return nil
		}}
}

// redisURL asks the package that connects.
func redisURL() rule[string] {
	return texts("redis:// or rediss:// URL, or off; for redlock several, comma-separated", func(raw string) error {
		urls := redisdb.SplitURLs(raw)
		for i, url := range urls {
			if err := redisdb.CheckURL(url); err != nil && len(urls) > 1 {
				return fmt.Errorf("cannot be used: URL %d of %d: %w", i+1, len(urls), err)
			} else if err != nil {
				return fmt.Errorf("cannot be used: %w", err)
			}
		}
		return nil
	})
}

// zooKeeperURL asks the package that connects.
func zooKeeperURL() rule[string] {
	return texts(locking.ZooKeeperForm, func(raw string) error {
		if err := locking.CheckZooKeeperURL(raw); err != nil {
			return fmt.Errorf("cannot be used: %w", err)
		}
		return nil
	})
}

// urlProblem never quotes url.Parse's error: for a password that is not encoded it holds a piece of it.
func urlProblem(raw string, schemes ...string) error {
	const encode = "percent-encode special characters of user name and password " +
		"(/ is %2F, # is %23, ? is %3F, @ is %40, % is %25)"
	wanted := strings.Join(schemes, ":// or ") + "://"
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok || !slices.Contains(schemes, strings.ToLower(scheme)) {
		return errors.New("must begin with " + wanted)
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
			what, _, _ := strings.Cut(err.Error(), "; for example ") // the example is the variable's own
			return errors.New("does not work: " + what)
		}
		return nil
	})
}
