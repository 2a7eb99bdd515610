package config

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"
)

// URLs is a comma-separated list of URLs. A comma separates only where a scheme follows it, since a password may hold one.
type URLs []string

// Rate is a number of things in a span of time, written 100/60s. The zero Rate is "off".
type Rate struct {
	Count int
	Per   time.Duration
}

// String writes the rate as it is parsed.
func (r Rate) String() string {
	if r == (Rate{}) {
		return offWord
	}
	return strconv.Itoa(r.Count) + "/" + shortDuration(r.Per)
}

// problem is an error of this package's own: it completes the sentence "NAME=value …" and never repeats the value,
// which may be a secret. Errors of libraries do not get this promise, so their text is never shown.
type problem string

func (p problem) Error() string { return string(p) }

// parsers has one function per type of a Config field; every error of theirs is a problem.
func parsers() map[reflect.Type]env.ParserFunc {
	return map[reflect.Type]env.ParserFunc{
		reflect.TypeFor[int]():             parserOf(parseInt),
		reflect.TypeFor[time.Duration]():   parserOf(parseDuration),
		reflect.TypeFor[[]time.Duration](): parserOf(func(s string) ([]time.Duration, error) { return parseList(s, parseDuration) }),
		reflect.TypeFor[[]string]():        parserOf(func(s string) ([]string, error) { return parseList(s, parseItem) }),
		reflect.TypeFor[URLs]():            parserOf(parseURLs),
		reflect.TypeFor[Rate]():            parserOf(parseRate),
	}
}

func parserOf[T any](parse func(string) (T, error)) env.ParserFunc {
	return func(s string) (any, error) { return parse(s) }
}

func parseInt(s string) (int, error) {
	n, err := strconv.Atoi(s)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return 0, problem("is too large a number")
	case err != nil:
		return 0, problem("is not a whole number")
	}
	return n, nil
}

func parseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err == nil {
		return d, nil
	}
	if _, numErr := strconv.ParseFloat(s, 64); numErr == nil {
		return 0, problem("has no unit: a duration is a number and ms, s, m or h")
	}
	return 0, problem("is not a duration: a number and ms, s, m or h")
}

func parseList[T any](s string, parse func(string) (T, error)) ([]T, error) {
	var list []T
	for i, part := range strings.Split(s, ",") {
		v, err := parse(strings.TrimSpace(part))
		if err != nil {
			return nil, problem(fmt.Sprintf("entry %d %v", i+1, err))
		}
		list = append(list, v)
	}
	return list, nil
}

func parseItem(s string) (string, error) {
	if s == "" {
		return "", problem("is empty")
	}
	return s, nil
}

var betweenURLs = regexp.MustCompile(`,\s*([A-Za-z][A-Za-z0-9+.-]*://)`)

func parseURLs(s string) (URLs, error) { return splitURLs(s), nil }

func splitURLs(s string) URLs {
	parts := strings.Split(betweenURLs.ReplaceAllString(s, "\x00$1"), "\x00")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}

func parseRate(s string) (Rate, error) {
	count, per, ok := strings.Cut(s, "/")
	if !ok {
		return Rate{}, problem("is not of the form COUNT/DURATION")
	}
	n, err := parseInt(count)
	if err != nil {
		return Rate{}, problem("is not of the form COUNT/DURATION: the count " + err.Error())
	}
	d, err := parseDuration(per)
	if err != nil {
		return Rate{}, problem("is not of the form COUNT/DURATION: the duration " + err.Error())
	}
	return Rate{Count: n, Per: d}, nil
}

// shortDuration writes d in its shortest form: 2m, not 2m0s.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
