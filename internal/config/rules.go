package config

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/internal/limits"
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
