package dedup

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The longest parts of a [Key], in bytes.
const (
	MaxGroup = 100
	MaxTag   = 100
	MaxName  = 255
)

// ErrKey says that a part of a key is empty, too long, not UTF-8 or holds a control character.
var ErrKey = errors.New("unusable key")

// Key is a message's identity. Two keys that differ in any byte (case, an accent, a trailing space) are two keys.
type Key struct {
	Group string // the kind of consumer; 1 to MaxGroup bytes
	Tag   string // the kind of message; 1 to MaxTag bytes
	Name  string // the message's own key; 1 to MaxName bytes
}

// Validate says what is wrong with k, as an [ErrKey]; nil when nothing is.
func (k Key) Validate() error {
	if err := validatePart("group", k.Group, MaxGroup); err != nil {
		return err
	}
	if err := validatePart("tag", k.Tag, MaxTag); err != nil {
		return err
	}
	return validatePart("key", k.Name, MaxName)
}

func validatePart(part, value string, limit int) error {
	switch {
	case value == "":
		return fmt.Errorf("%w: the %s is empty", ErrKey, part)
	case len(value) > limit:
		return fmt.Errorf("%w: the %s has %d bytes, at most %d are allowed", ErrKey, part, len(value), limit)
	case !utf8.ValidString(value):
		return fmt.Errorf("%w: the %s is not valid UTF-8", ErrKey, part)
	case strings.ContainsFunc(value, unicode.IsControl):
		return fmt.Errorf("%w: the %s %q holds a control character", ErrKey, part, value)
	}
	return nil
}

// Compare orders keys as the log's primary key does, byte by byte. Workers that write several rows write them in this
// order, so that they queue up behind each other instead of deadlocking.
func (k Key) Compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Group, o.Group), cmp.Compare(k.Tag, o.Tag), cmp.Compare(k.Name, o.Name))
}

// String is for error messages; what is not printable in it is escaped.
func (k Key) String() string { return fmt.Sprintf("%s/%s/%q", k.Group, k.Tag, k.Name) }

// LogValue is k as a group of three attributes.
func (k Key) LogValue() slog.Value {
	return slog.GroupValue(slog.String("group", k.Group), slog.String("tag", k.Tag), slog.String("key", k.Name))
}
