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

// The longest parts of an [Identity], in bytes.
const (
	MaxGroup = 100
	MaxTag   = 100
	MaxKey   = 255
)

// ErrIdentity says that a part of an identity is empty, too long, not UTF-8 or holds a control character.
var ErrIdentity = errors.New("unusable key")

// Identity is a message's identity. Two that differ in any byte (case, an accent, a trailing space) are two.
type Identity struct {
	Group string // the kind of consumer; 1 to MaxGroup bytes
	Tag   string // the kind of message; 1 to MaxTag bytes
	Key   string // the message's own key; 1 to MaxKey bytes
}

// Validate says what is wrong with k, as an [ErrIdentity]; nil when nothing is.
func (k Identity) Validate() error {
	return cmp.Or(validatePart("group", k.Group, MaxGroup), validatePart("tag", k.Tag, MaxTag),
		validatePart("key", k.Key, MaxKey))
}

func validatePart(part, value string, limit int) error {
	switch {
	case value == "":
		return fmt.Errorf("%w: the %s is empty", ErrIdentity, part)
	case len(value) > limit:
		return fmt.Errorf("%w: the %s has %d bytes, at most %d are allowed", ErrIdentity, part, len(value), limit)
	case !utf8.ValidString(value):
		return fmt.Errorf("%w: the %s is not valid UTF-8", ErrIdentity, part)
	case strings.ContainsFunc(value, unicode.IsControl):
		return fmt.Errorf("%w: the %s %q holds a control character", ErrIdentity, part, value)
	}
	return nil
}

// Compare orders keys as the log's primary key does, byte by byte. Workers that write several rows write them in this
// order, so that they queue up behind each other instead of deadlocking.
func (k Identity) Compare(o Identity) int {
	return cmp.Or(strings.Compare(k.Group, o.Group), strings.Compare(k.Tag, o.Tag), strings.Compare(k.Key, o.Key))
}

// String is for error messages; what is not printable in it is escaped.
func (k Identity) String() string { return fmt.Sprintf("%s/%s/%q", k.Group, k.Tag, k.Key) }

// LogValue is k as a group of three attributes.
func (k Identity) LogValue() slog.Value {
	return slog.GroupValue(slog.String("group", k.Group), slog.String("tag", k.Tag), slog.String("key", k.Key))
}

// Reason says why a message is dead. It stands in the row, in a header of the letter, in logs and as a metric's label.
type Reason string

// The reasons, a closed list. A row that a later version wrote may hold another one.
const (
	ReasonMalformed     Reason = "malformed"      // its body cannot be what the handler takes
	ReasonUnidentified  Reason = "unidentified"   // no usable tag or key
	ReasonConflict      Reason = "conflict"       // its key is taken by another body
	ReasonPermanent     Reason = "permanent"      // the handler says that no retry can help
	ReasonExhausted     Reason = "exhausted"      // the last attempt failed
	ReasonCrashed       Reason = "crashed"        // the last attempt never came back
	ReasonDeliveryLimit Reason = "delivery_limit" // the broker gave it up
	// ReasonEffectUnknown: the log of the consumer before rollbackd left it open, so it may have had its effect. Alone
	// among the reasons it means a row without a letter; see Log.TakeOver.
	ReasonEffectUnknown Reason = "effect_unknown"
)

// Reasons lists all reasons.
func Reasons() []Reason {
	return []Reason{
		ReasonMalformed, ReasonUnidentified, ReasonConflict, ReasonPermanent, ReasonExhausted, ReasonCrashed,
		ReasonDeliveryLimit, ReasonEffectUnknown,
	}
}

// cutText makes s fit a VARCHAR of so many characters: valid UTF-8, and never half a character at the end.
func cutText(s string, characters int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= characters || utf8.RuneCountInString(s) <= characters {
		return s
	}
	kept := 0
	for i := range s {
		if kept == characters-1 {
			return s[:i] + "…"
		}
		kept++
	}
	return s
}

// orNull is s for a column that says NULL for nothing.
func orNull(s string) any {
	if s == "" {
		return nil
	}
	return []byte(s)
}
