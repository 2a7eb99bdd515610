package deadletter

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
)

// Filter chooses letters. All conditions must hold; a zero one always does.
type Filter struct {
	// All must be set to choose without any other condition. List needs none.
	All bool
	// Keys and Tag are those of the row a letter belongs to: one of Keys, if there are any. A letter without an identity
	// of its own is also found under the one it has by now. For List at most dedup.MaxListedKeys.
	Keys []string
	Tag  string
	// Reasons are why letters are dead, for example exhausted: one of them, if there are any.
	Reasons []dedup.Reason
	// Since and Until bound when the letter died: at or after, and before.
	Since, Until time.Time
	// Error is a text that the last error holds, letter by letter; "": any.
	Error string
	// Fingerprint is the [Fingerprint] of the last error; "": any.
	Fingerprint string
	// Body is a text that the body holds, Order the order_sn that it names, or the message's key, and SKU a sku_id that it
	// names, at whatever depth; "" and 0: any. The rows keep the first dedup.MaxBody bytes of a body.
	Body, Order string
	SKU         int64
	// Limit is how many letters are taken at most, the oldest first; 0: no limit. For List it is the size of a page,
	// 1 to dedup.MaxListed, 0 for 100.
	Limit int

	due func(dedup.Row) bool // if set, the letter's row must be due; List does not ask
}

// ErrNoFilter says that a filter chooses nothing.
var ErrNoFilter = errors.New("no letter is chosen: say which, or all")

func (f Filter) validate() error {
	narrow := len(f.Keys) > 0 || f.Tag != "" || len(f.Reasons) > 0 || !f.Since.IsZero() || !f.Until.IsZero() ||
		f.Error != "" || f.Fingerprint != "" || f.Body != "" || f.Order != "" || f.SKU != 0
	switch {
	case !f.All && !narrow:
		return ErrNoFilter
	case f.Limit < 0:
		return fmt.Errorf("a limit of %d letters", f.Limit)
	case f.SKU < 0:
		return fmt.Errorf("a sku_id of %d", f.SKU)
	}
	return nil
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

// inBody reports whether the filter chooses by what stands in bodies.
func (f Filter) inBody() bool { return f.Body != "" || f.Order != "" || f.SKU != 0 }

// searches reports whether it has a condition that no index leads to.
func (f Filter) searches() bool {
	return len(f.Reasons) > 0 || f.Error != "" || f.Fingerprint != "" || f.inBody()
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
