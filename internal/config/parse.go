package config

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Rate is a number of things in a span of time, written 100/60s. The zero Rate is "off".
type Rate struct {
	Count int
	Per   time.Duration
}

// String writes the rate as it is parsed, in seconds.
func (r Rate) String() string {
	if r == (Rate{}) {
		return offWord
	}
	return strconv.Itoa(r.Count) + "/" + strconv.FormatFloat(r.Per.Seconds(), 'f', -1, 64) + "s"
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
	if err == nil {
		return d, nil
	}
	if _, numErr := strconv.ParseFloat(s, 64); numErr == nil {
		return 0, errors.New("has no unit: a duration is a number and ms, s, m or h")
	}
	return 0, errors.New("is not a duration: a number and ms, s, m or h")
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

var betweenURLs = regexp.MustCompile(`,\s*([A-Za-z][A-Za-z0-9+.-]*://)`)

// SplitURLs are the URLs of a list as AMQP_URL has it. A comma separates only where a scheme follows it, since a
// password may hold one.
func SplitURLs(s string) []string {
	parts := strings.Split(betweenURLs.ReplaceAllString(s, "\x00$1"), "\x00")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}

func parseRate(s string) (Rate, error) {
	count, per, ok := strings.Cut(s, "/")
	if !ok {
		return Rate{}, errors.New("is not of the form COUNT/DURATION")
	}
	n, err := parseInt(count)
	if err != nil {
		return Rate{}, fmt.Errorf("is not of the form COUNT/DURATION: the count %w", err)
	}
	d, err := parseDuration(per)
	if err != nil {
		return Rate{}, fmt.Errorf("is not of the form COUNT/DURATION: the duration %w", err)
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

// Bytes is a size in memory. Its text is a whole number with a unit: 64MiB.
type Bytes int64

var units = []struct {
	name string
	size Bytes
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

// String is the shortest whole number with a unit.
func (b Bytes) String() string {
	for _, u := range units {
		if b%u.size == 0 {
			return strconv.FormatInt(int64(b/u.size), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(b), 10) + "B"
}

func parseBytes(s string) (Bytes, error) {
	for _, u := range units {
		number, ok := strings.CutSuffix(s, u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(number, 10, 64)
		switch {
		case errors.Is(err, strconv.ErrRange) || err == nil && (n > math.MaxInt64/int64(u.size) || n < 0):
			return 0, errors.New("is outside what can be counted")
		case err == nil:
			return Bytes(n) * u.size, nil
		}
	}
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		return 0, errors.New("has no unit: a size is a whole number and KiB, MiB or GiB")
	}
	return 0, errors.New("is not a size: a whole number and KiB, MiB or GiB")
}
