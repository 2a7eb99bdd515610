package deadletter

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
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
	switch {
	case !f.All && !narrow:
		return ErrNoFilter
	case f.All && narrow:
		return errors.New("all letters, and a condition, contradict each other")
	case len(f.Keys) > dedup.MaxListedKeys:
		return fmt.Errorf("%d keys, at most %d", len(f.Keys), dedup.MaxListedKeys)
	case slices.Contains(f.Keys, ""):
		return errors.New("a key is empty")
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
