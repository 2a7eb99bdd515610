package config

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/rollbackd/rollbackd/internal/lockers"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/redisdb"
	"github.com/rollbackd/rollbackd/internal/wire"
)

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
