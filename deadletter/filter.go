package deadletter

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
)

// Filter chooses letters. All conditions must hold; a zero one always does. The names of its JSON form are stable.
type Filter struct {
	// All must be set to choose without any other condition, and with none. List needs none.
	All bool `json:"all,omitempty"`
	// Keys and Tag are those of the row a letter belongs to: one of Keys, if there are any, at most dedup.MaxListedKeys. A
	// letter without an identity of its own is also found under the one it has by now.
	Keys []string `json:"keys,omitempty"`
	Tag  string   `json:"tag,omitempty"`
	// Order is the order_sn that the body names, or the message's key.
	Order string `json:"order,omitempty"`
	// Reasons are why letters are dead, for example exhausted: one of them, if there are any.
	Reasons []dedup.Reason `json:"reasons,omitempty"`
	// Since and Until bound when the letter died: at or after, and before.
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`
	// Error is a text that the last error holds, letter by letter; "": any. Fingerprint is the [Fingerprint] of it.
	Error       string `json:"error,omitempty"`
	Fingerprint string `json:"fingerprint,omitempty"`
	// Body is a text that the body holds, SKU a sku_id that it names, at whatever depth; "" and 0: any. The rows keep the
	// first dedup.MaxBody bytes of a body.
	Body string `json:"body,omitempty"`
	SKU  int64  `json:"sku,omitempty"`
	// Limit is how many letters are taken at most, the oldest first; 0: no limit. For List it is the size of a page,
	// 1 to dedup.MaxListed, 0 for 100.
	Limit int `json:"-"`

	due func(dedup.Row) bool // if set, the letter's row must be due: compensation's own; List does not ask
}

// ErrNoFilter says that a filter chooses nothing.
var ErrNoFilter = errors.New("no letter is chosen: say which, or all")

// Validate says what is wrong with a filter that is to choose what somebody acts on.
func (f Filter) Validate() error {
	narrow := len(f.Keys) > 0 || f.Tag != "" || !f.Since.IsZero() || !f.Until.IsZero() || f.searches()
	if !f.All && !narrow {
		return ErrNoFilter
	}
	return cmp.Or(wrongIf(f.All && narrow, "all letters, and a condition, contradict each other"),
		wrongIf(len(f.Keys) > dedup.MaxListedKeys, "%d keys, at most %d", len(f.Keys), dedup.MaxListedKeys),
		wrongIf(slices.Contains(f.Keys, ""), "a key is empty"), wrongIf(f.Limit < 0, "a limit of %d letters", f.Limit),
		wrongIf(f.SKU < 0, "a sku_id of %d", f.SKU))
}

// String is what was asked for, for the story of a row.
func (f Filter) String() string {
	text := ""
	add := func(name, value string) {
		if value != "" {
			text += fmt.Sprintf(" %s=%q", name, value)
		}
	}
	for _, key := range f.Keys {
		add("key", key)
	}
	add("tag", f.Tag)
	for _, reason := range f.Reasons {
		add("reason", string(reason))
	}
	if !f.Since.IsZero() {
		add("since", f.Since.UTC().Format(time.RFC3339))
	}
	if !f.Until.IsZero() {
		add("until", f.Until.UTC().Format(time.RFC3339))
	}
	add("error", f.Error)
	add("fingerprint", f.Fingerprint)
	add("body", f.Body)
	add("order", f.Order)
	if f.SKU != 0 {
		add("sku", strconv.FormatInt(f.SKU, 10))
	}
	if text == "" {
		return "all"
	}
	return text[1:]
}

// fields are what the body of a letter must name.
func (f Filter) fields() (all []dedup.Field) {
	if f.Order != "" {
		all = append(all, dedup.Field{Name: "order_sn", Value: f.Order, OrKey: true})
	}
	if f.SKU != 0 {
		all = append(all, dedup.Field{Name: "sku_id", Value: strconv.FormatInt(f.SKU, 10)})
	}
	return all
}

// searches reports whether it has a condition that no index leads to.
func (f Filter) searches() bool {
	return len(f.Reasons) > 0 || f.Error != "" || f.Fingerprint != "" || f.Body != "" ||
		f.Order != "" || f.SKU != 0
}

// query asks the log for the letters of a group that f chooses.
func (f Filter) query(group string) dedup.Filter {
	q := dedup.Filter{
		Group: group, Statuses: []dedup.Status{dedup.Dead},
		Tag: f.Tag, Keys: f.Keys, Reasons: f.Reasons, Since: f.Since, Until: f.Until, Limit: f.Limit,
		Remark: f.Error, Body: f.Body, Fields: f.fields(),
	}
	if q.Remark == "" && len(f.Keys) == 0 { // so that the server leaves out most of what has another fingerprint
		q.Remark = fixed(f.Fingerprint)
	}
	return q
}

// maxFingerprint is how many bytes of an error are looked at: errors of one kind begin alike.
const maxFingerprint = 400

// joined are several # with marks between them: dates, times, addresses, UUIDs. A group of a UUID without a digit
// stands between two of them and is taken too.
var joined = regexp.MustCompile(`#(?:[-:._/T+Z#]*#|(?:-[0-9A-Fa-f]{4})+-[-:._/T+Z#]*#)+`)

// Fingerprint is an error without what differs from one letter to the next, so that errors of one kind are equal:
// numbers, hexadecimal words, UUIDs and times become #, what stands in quotes becomes "…", and the mark of a parked row
// is left out. It is pure; the same text has the same fingerprint on every machine.
func Fingerprint(text string) string {
	if rest, ok := strings.CutPrefix(text, "parked after "); ok {
		if _, cause, ok := strings.Cut(rest, ": "); ok {
			text = cause
		}
	}
	text = strings.ToValidUTF8(text[:min(len(text), maxFingerprint)], "")
	var out strings.Builder
	for rest := text; rest != ""; {
		n, with := 1, rest[:1]
		switch c := rest[0]; {
		case c == '"' || c == '`' || c == '\'' && !endsInWord(out.String()):
			if end := strings.IndexByte(rest[1:], c); end >= 0 {
				n, with = end+2, `"…"`
			}
		case strings.IndexByte(" \t\n\r", c) >= 0:
			if with = " "; strings.HasSuffix(out.String(), " ") {
				with = ""
			}
		case isWord(c):
			n = len(rest) - len(strings.TrimLeftFunc(rest, func(r rune) bool { return r < 0x80 && isWord(byte(r)) }))
			with = without(rest[:n])
		}
		out.WriteString(with)
		rest = rest[n:]
	}
	return strings.TrimSpace(joined.ReplaceAllLiteralString(out.String(), "#"))
}

// fixed is the longest word of a fingerprint that stands as it is in every error of its kind; "" when there is none.
func fixed(fingerprint string) (longest string) {
	for word := range strings.FieldsFuncSeq(fingerprint, func(r rune) bool { return strings.ContainsRune(" #\"…", r) }) {
		if len(word) > len(longest) {
			longest = word
		}
	}
	return longest
}

func isWord(c byte) bool { return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

func endsInWord(s string) bool { return s != "" && (isWord(s[len(s)-1]) || s[len(s)-1] == '#') }

var (
	// own are words that are a number or hexadecimal, such as a group of a UUID, perhaps of a time.
	own = regexp.MustCompile(`^(?:[0-9]+|[0-9A-Fa-f]{4}|[0-9A-Fa-f]{8,}|0[xX](?:[0-9A-Fa-f]{2}|[0-9A-Fa-f]{6,}))Z?$`)

	numbers = regexp.MustCompile(`[0-9]+`)
)

// without is a word of ASCII letters and digits without what is its own: all of it when it is a number or hexadecimal
// with a digit, else each number in it.
func without(word string) string {
	switch {
	case !strings.ContainsAny(word, "0123456789"):
		return word
	case own.MatchString(word):
		return "#"
	}
	return numbers.ReplaceAllLiteralString(word, "#")
}
