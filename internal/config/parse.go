package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

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
